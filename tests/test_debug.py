"""/debug/steps: the last steps, to read and to look at."""

from itertools import pairwise
from typing import Any

from service.engine.messages import Stats
from tests.fakes import Client, FakeEngine, read_metric
from tests.test_recorder import make_record


def make_client() -> Client:
    engine = FakeEngine()
    client = Client(engine, debug_endpoints=True)
    phases = {"report": 0.25, "intake": 0.5, "schedule": 1.0, "forward": 2.0}
    engine.recorder.add(make_record(1, 100.0, schedule=1.0, forward=2.0), Stats(num_running=3))
    engine.recorder.add(make_record(2, 103.75, **phases), Stats(num_running=4, num_waiting=1))
    return client


def test_without_the_flag_there_is_no_such_route() -> None:
    assert Client().get("/debug/steps").status_code == 404


def test_steps_as_json() -> None:
    steps = make_client().get("/debug/steps").json()["steps"]
    assert [step["number"] for step in steps] == [1, 2]
    assert steps[0]["phase_seconds"] == {"schedule": 1.0, "forward": 2.0}
    assert steps[1]["after"]["num_waiting"] == 1
    assert Client(debug_endpoints=True).get("/debug/steps?format=json").json() == {"steps": []}


def trace() -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = (
        make_client().get("/debug/steps?format=chrome").json()["traceEvents"]
    )
    return events


def test_a_trace_has_a_named_track_for_each_phase() -> None:
    spans = [event for event in trace() if event["ph"] == "X"]
    tracks = {e["tid"]: e["args"]["name"] for e in trace() if e["ph"] == "M"}
    assert set(tracks.values()) == {"step", "schedule", "forward", "report", "intake"}
    assert all(tracks[span["tid"]] == span["name"] for span in spans)
    assert spans[0]["args"]["num_chunk_tokens"] == 30


def test_phases_follow_each_other_and_fill_their_step() -> None:
    spans = [event for event in trace() if event["ph"] == "X"]
    first, *phases = spans[3:]
    assert first["name"] == "step"
    assert (first["ts"], first["dur"]) == (103e6, 3.75e6)
    assert phases[0]["ts"] == first["ts"]
    assert all(a["ts"] + a["dur"] == b["ts"] for a, b in pairwise(phases))
    assert phases[2]["name"] == "schedule"
    assert phases[2]["ts"] == 103.75e6
    assert phases[-1]["ts"] + phases[-1]["dur"] == first["ts"] + first["dur"]


def test_a_trace_counts_what_the_engine_had_after_each_step() -> None:
    counts = [(e["name"], e["args"]["value"]) for e in trace() if e["ph"] == "C"]
    assert counts[:3] == [("num_running", 3), ("num_waiting", 0), ("num_free_pages", 0)]
    assert ("num_waiting", 1) in counts
    assert all(event["ts"] > 0 for event in trace() if event["ph"] == "C")


def test_an_unknown_format_is_refused_by_name() -> None:
    answer = make_client().get("/debug/steps?format=xml")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "format"
    assert '"xml": take json or chrome' in answer.json()["error"]["message"]


def test_records_are_counted_as_they_come() -> None:
    metrics = make_client().app.state.served.metrics
    assert read_metric(metrics, "engine_steps_total") == 2
    assert read_metric(metrics, "step_tokens_sum") == 2 * (2 + 30)
    assert read_metric(metrics, "prefix_cache_queries_total") == 2 * 48
    assert read_metric(metrics, "prefix_cache_hits_total") == 2 * 16
    assert read_metric(metrics, "preemptions_total") == 0
    assert read_metric(metrics, "step_seconds_sum", phase="forward") == 4.0

"""`include_timings`: each choice tells where its time went, and the histograms are told too."""

from collections.abc import Iterator
from typing import Any

import pytest

from service.engine.messages import Event, Request, Timings
from tests.fakes import Client, FakeEngine, events_of, hang_after, read_metric, say

TIMINGS = Timings(queue_seconds=0.0015, prefill_seconds=0.25, num_preemptions=3)
ENGINES = {"queue_ms": 1.5, "prefill_ms": 250.0, "preemptions": 3}
NAMES = {"prompt_n", "cached_tokens", "predicted_n", "decode_ms", *ENGINES}


def make_client() -> Client:
    return Client(FakeEngine(say("abc", num_cached_tokens=1, timings=TIMINGS)))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["complete", "chat"])
def test_every_choice_has_its_own_once(stream: bool, route: str) -> None:
    answer = getattr(make_client(), route)(include_timings=True, stream=stream, n=2)
    answers = events_of(answer) if stream else [answer.json()]
    choices = [c for a in answers for c in a["choices"] if "timings" in c]
    assert sorted(choice["index"] for choice in choices) == [0, 1]
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    for timings in (choice["timings"] for choice in choices):
        assert timings.keys() == NAMES
        assert {name: timings[name] for name in ENGINES} == ENGINES
        assert (timings["cached_tokens"], timings["predicted_n"]) == (1, 4)
        assert timings["decode_ms"] > 0


def test_what_was_computed_of_the_prompt_and_what_the_cache_had_are_the_prompt() -> None:
    answer = make_client().complete(prompt="hello", include_timings=True).json()
    timings = answer["choices"][0]["timings"]
    assert timings["prompt_n"] + timings["cached_tokens"] == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize("asked", [{}, {"include_timings": False}, {"include_timings": None}])
def test_unasked_there_are_none(asked: dict[str, Any]) -> None:
    assert "timings" not in make_client().complete(**asked).text


def test_a_sequence_that_a_stop_string_ends_has_them_too() -> None:
    def script(request: Request) -> Iterator[Event | None]:
        yield Event(request_id=request.id, token_ids=[97], timings=TIMINGS)
        yield Event(request_id=request.id, token_ids=[35])
        yield None

    client = Client(FakeEngine(script))
    [choice] = client.complete(stop="#", include_timings=True).json()["choices"]
    timings = choice["timings"]
    assert {name: timings[name] for name in ENGINES} == ENGINES
    assert timings["predicted_n"] == 2
    assert timings["decode_ms"] > 0
    assert read_metric(client.app.state.served.metrics, "decode_seconds_count") == 1


def test_without_a_token_there_is_no_time_of_one() -> None:
    def script(request: Any) -> Any:
        return hang_after("ab" if request.id.endswith("-0") else "")(request)

    answer = Client(FakeEngine(script)).post(
        "/v1/completions",
        {"prompt": "Hi", "n": 2, "include_timings": True},
        headers={"x-request-deadline-ms": "300"},
    )
    last = answer.json()["choices"][1]["timings"]
    assert last["predicted_n"] == 0
    assert {last[name] for name in ("decode_ms", *ENGINES)} == {None}


def test_histograms_are_told_once_a_sequence() -> None:
    client = make_client()
    client.complete(n=2)
    metrics = client.app.state.served.metrics
    for stage, seconds in [("queue", 0.0015), ("prefill", 0.25)]:
        assert read_metric(metrics, f"{stage}_seconds_count") == 2
        assert read_metric(metrics, f"{stage}_seconds_sum") == 2 * seconds
    assert read_metric(metrics, "decode_seconds_count") == 2
    assert read_metric(metrics, "decode_seconds_sum") > 0

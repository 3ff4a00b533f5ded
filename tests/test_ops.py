"""Probes and metrics: what they say in each phase, and that they ask nothing of the engine."""

from importlib.metadata import version
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.engine.messages import Stats
from service.engine.protocol import EngineStatus
from tests.fakes import Client, FakeEngine, events_of, say


@pytest.mark.parametrize(
    ("phase", "live", "ready"),
    [
        ("starting", 200, 503),
        ("loading", 200, 503),
        ("ready", 200, 200),
        ("restarting", 200, 503),
        ("stuck", 503, 503),
        ("failed", 503, 503),
        ("stopped", 503, 503),
    ],
)
def test_probes(phase: Any, live: int, ready: int) -> None:
    client = Client(FakeEngine(status=EngineStatus(phase, "weights", 0.5)))
    assert client.get("/livez").status_code == live
    for path in ("/readyz", "/health"):
        answer = client.get(path)
        assert answer.status_code == ready
        assert ("retry-after" in answer.headers) == (ready == 503)
        assert answer.json() == {"status": phase, "detail": "weights", "progress": 0.5}


def test_version_tells_what_computes_once_that_is_known() -> None:
    engine = FakeEngine()
    client = Client(engine)
    assert engine.info
    engine.info = msgspec.structs.replace(engine.info, device="cuda", attention="triton_paged")
    kernels = {"device": "cuda", "attention": "triton_paged"}
    assert client.get("/version").json() == {"version": version("octavo")} | kernels
    engine.info = None
    assert client.get("/version").json() == {"version": version("octavo")} | dict.fromkeys(kernels)


def samples(client: Client) -> dict[str, float]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_metrics_tell_what_the_engine_said_last() -> None:
    engine = FakeEngine()
    client = Client(engine)
    assert samples(client)["octavo_kv_cache_usage_ratio"] == 0
    engine.stats = Stats(
        num_running=3,
        num_waiting=2,
        num_free_pages=25,
        num_pages=100,
    )
    engine.num_restarts = 4
    now = samples(client)
    assert now["octavo_engine_up"] == 1
    assert now["octavo_requests_running"] == 3
    assert now["octavo_requests_waiting"] == 2
    assert now["octavo_kv_cache_usage_ratio"] == 0.75
    assert now["octavo_engine_restarts_total"] == 4
    engine.status = EngineStatus("restarting")
    assert samples(client)["octavo_engine_up"] == 0


def usage_and_tokens(client: Client, *, stream: bool, n: int) -> tuple[dict[str, Any], int]:
    """What a call of the API says that it took, and how many tokens its logprobs list."""
    asked: dict[str, Any] = {"prompt": ["Hi", "you"], "n": n, "logprobs": 0}
    if not stream:
        answer = client.complete(**asked).json()
        return answer["usage"], count_tokens([answer])
    options = {"include_usage": True}
    events = events_of(client.complete(stream=True, stream_options=options, **asked))
    return events[-1]["usage"], count_tokens(events)


def count_tokens(answers: list[Any]) -> int:
    choices = [choice for answer in answers for choice in answer["choices"] if choice["logprobs"]]
    return sum(len(choice["logprobs"]["tokens"]) for choice in choices)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(("finish_reason", "num_ends"), [("length", 0), ("stop", 1)])
def test_what_is_sent_is_what_usage_says_and_metrics_count(
    stream: bool, n: int, finish_reason: Any, num_ends: int
) -> None:
    """A token that ended a sequence is computed, so it counts, but isn't text."""
    client = Client(FakeEngine(say("Hé!", finish_reason=finish_reason, num_cached_tokens=1)))
    calls = [usage_and_tokens(client, stream=stream, n=n) for _ in range(2)]
    client.complete(temperature=99)  # refused: counts nowhere
    for usage, num_tokens in calls:
        assert usage["prompt_tokens"] == len("Hi") + len("you")
        assert usage["prompt_tokens_details"]["cached_tokens"] == 2
        assert num_tokens == 2 * n * len("Hé!".encode())
        assert usage["completion_tokens"] == num_tokens + 2 * n * num_ends
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    now = samples(client)
    prompts, outputs = (
        sum(usage[key] for usage, _ in calls) for key in ("prompt_tokens", "completion_tokens")
    )
    assert now["octavo_prompt_tokens_total"] == prompts == now["octavo_request_prompt_tokens_sum"]
    assert now["octavo_generation_tokens_total"] == outputs
    assert now["octavo_request_generation_tokens_sum"] == outputs
    assert now["octavo_request_duration_seconds_count"] == 2 * 2 * n

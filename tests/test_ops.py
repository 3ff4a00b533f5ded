"""Probes and metrics: what they say in each phase, and that they ask nothing of the engine."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.engine.client import EngineStatus
from service.engine.messages import Stats
from tests.fakes import READY, Client, FakeEngine, say


@pytest.mark.parametrize(
    ("phase", "live", "ready"),
    [
        ("starting", 200, 503),
        ("loading", 200, 503),
        ("ready", 200, 200),
        ("restarting", 200, 503),
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


def test_version() -> None:
    assert Client().get("/version").json().keys() == {"version"}


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
        num_steps=7,
        num_preemptions=1,
    )
    now = samples(client)
    assert now["octavo_engine_up"] == 1
    assert now["octavo_requests_running"] == 3
    assert now["octavo_requests_waiting"] == 2
    assert now["octavo_kv_cache_usage_ratio"] == 0.75
    assert now["octavo_engine_steps_total"] == 7
    assert now["octavo_preemptions_total"] == 1
    engine.status = EngineStatus("restarting")
    assert samples(client)["octavo_engine_up"] == 0
    engine.status = READY


def test_metrics_agree_with_usage() -> None:
    client = Client(FakeEngine(say("abc")))
    usages = [client.chat(n=2).json()["usage"], client.complete().json()["usage"]]
    client.chat(temperature=99)
    now = samples(client)
    assert now["octavo_prompt_tokens_total"] == sum(u["prompt_tokens"] for u in usages)
    assert now["octavo_generation_tokens_total"] == sum(u["completion_tokens"] for u in usages)
    assert now["octavo_request_duration_seconds_count"] == 3

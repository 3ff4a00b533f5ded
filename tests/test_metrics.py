"""The metrics file: valid, bounded, and whole from the first scrape on."""

import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import OUTCOMES, PHASES, REJECTIONS, EngineReading, Metrics
from tests.fakes import read_metric

IDLE = EngineReading(
    up=True,
    requests_running=0,
    requests_waiting=0,
    kv_cache_usage_ratio=0.0,
    restarts=0,
)


def make_metrics() -> Metrics:
    return Metrics(lambda: IDLE, version="1.2.3")


def test_names_types_and_help() -> None:
    families = {
        family.name: family
        for family in text_string_to_metric_families(make_metrics().render().decode())
    }
    assert all(name.startswith("octavo_") for name in families)
    assert all(family.documentation for family in families.values())
    assert families["octavo_requests"].type == "counter"
    assert families["octavo_engine_restarts"].type == "counter"
    assert families["octavo_requests_running"].type == "gauge"
    assert families["octavo_inter_token_latency_seconds"].type == "histogram"
    assert families["octavo_build_info"].samples[0].labels["version"] == "1.2.3"
    assert families["octavo_cache_config_info"].type == "gauge"
    assert families["octavo_startup_seconds"].type == "gauge"


def test_every_name_of_the_contract_is_there() -> None:
    """What dashboards, alerts and routers of others ask for; docs/operations.md lists them."""
    text = make_metrics().render().decode()
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    by_type = {
        kind: {name.removeprefix("octavo_") for name in types if types[name] == kind}
        for kind in ("gauge", "counter", "histogram")
    }
    assert by_type["gauge"] == {
        *("requests_running", "requests_waiting", "kv_cache_usage_ratio", "engine_up"),
        *("cache_config_info", "startup_seconds", "build_info"),
    }
    assert by_type["counter"] == {
        *("requests_total", "prompt_tokens_total", "generation_tokens_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "preemptions_total"),
        *("rejections_total", "engine_restarts_total", "engine_steps_total"),
        *("speculative_tokens_total", "speculative_hits_total"),
        *("tenant_requests_total", "tenant_prompt_tokens_total", "tenant_generation_tokens_total"),
    }
    assert by_type["histogram"] == {
        *("time_to_first_token_seconds", "inter_token_latency_seconds"),
        *("request_duration_seconds", "queue_seconds", "prefill_seconds", "decode_seconds"),
        *("step_seconds", "request_prompt_tokens", "request_generation_tokens", "step_tokens"),
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's prometheus")
def test_prometheus_own_tool_finds_no_fault() -> None:
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=make_metrics().render(), capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_the_engine_is_asked_at_each_scrape() -> None:
    reading = replace(IDLE, page_size=16, num_pages=99, startup_seconds={"weights": 1.5})
    metrics = Metrics(lambda: reading, version="1.2.3")
    labels = {"block_size": "16", "num_gpu_blocks": "99"}
    assert read_metric(metrics, "cache_config_info", **labels) == 1
    assert read_metric(metrics, "startup_seconds", phase="weights") == 1.5
    assert read_metric(metrics, "startup_seconds", phase="fetch") == 0


def test_every_outcome_is_there_before_it_happened() -> None:
    metrics = make_metrics()
    for outcome in OUTCOMES:
        assert read_metric(metrics, "requests_total", outcome=outcome) == 0
        metrics.request_ended(outcome, seconds=1.0, num_tokens=2)
        assert read_metric(metrics, "requests_total", outcome=outcome) == 1
    for reason in REJECTIONS:
        assert read_metric(metrics, "rejections_total", reason=reason) == 0
        metrics.call_rejected(reason)
        assert read_metric(metrics, "rejections_total", reason=reason) == 1


STEP: dict[str, Any] = {
    "num_tokens": 7,
    "num_preempted": 1,
    "num_queried_tokens": 5,
    "num_hit_tokens": 4,
    "num_guessed_tokens": 3,
    "num_true_guesses": 2,
}


def test_no_traffic_adds_series() -> None:
    metrics = make_metrics()
    before = metrics.render().count(b"\n")
    for outcome in OUTCOMES:
        metrics.request_ended(outcome, seconds=1e9, num_tokens=10**9)
    for reason in REJECTIONS:
        metrics.call_rejected(reason)
    metrics.prompt_ended(num_tokens=10**9)
    metrics.first_token(1e-9)
    metrics.next_token(1e9)
    metrics.prefill_ended(queue_seconds=1e9, prefill_seconds=0)
    metrics.decode_ended(1e-9)
    metrics.step_ended(dict.fromkeys((*PHASES, "a phase of the future"), 1e9), **STEP)
    assert metrics.render().count(b"\n") == before


def test_two_apps_do_not_share_counts() -> None:
    first, second = make_metrics(), make_metrics()
    first.prompt_ended(num_tokens=5)
    assert read_metric(second, "prompt_tokens_total") == 0


def test_buckets_tell_fast_tokens_apart() -> None:
    metrics = make_metrics()
    metrics.next_token(0.0007)
    name = "inter_token_latency_seconds_bucket"
    assert read_metric(metrics, name, le="0.0005") == 0
    assert read_metric(metrics, name, le="0.001") == 1


def test_steps_add_up() -> None:
    metrics = make_metrics()
    metrics.step_ended({"schedule": 0.00002, "forward": 0.5}, **STEP)
    metrics.step_ended({"schedule": 0.00004}, **STEP)
    counted = {
        name: read_metric(metrics, f"{name}_total")
        for name in ("engine_steps", "preemptions", "prefix_cache_queries", "prefix_cache_hits")
    }
    assert list(counted.values()) == [2, 2, 10, 8]
    assert read_metric(metrics, "step_tokens_sum") == 14
    assert read_metric(metrics, "step_seconds_count", phase="schedule") == 2
    assert read_metric(metrics, "step_seconds_bucket", phase="schedule", le="2.5e-05") == 1
    assert read_metric(metrics, "step_seconds_sum", phase="forward") == 0.5
    assert read_metric(metrics, "step_seconds_count", phase="pack") == 0

"""The metrics file: valid, bounded, and whole from the first scrape on."""

from prometheus_client.parser import text_string_to_metric_families

from service.metrics import OUTCOMES, EngineReading, Metrics

IDLE = EngineReading(
    up=True,
    requests_running=0,
    requests_waiting=0,
    kv_cache_usage_ratio=0.0,
    preemptions=0,
    steps=0,
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
    assert families["octavo_requests_running"].type == "gauge"
    assert families["octavo_inter_token_latency_seconds"].type == "histogram"
    assert families["octavo_build_info"].samples[0].labels == {"version": "1.2.3"}


def test_every_outcome_is_there_before_it_happened() -> None:
    metrics = make_metrics()
    for outcome in OUTCOMES:
        labels: dict[str, str] = {"outcome": outcome}
        assert metrics.registry.get_sample_value("octavo_requests_total", labels) == 0
        metrics.request_ended(outcome, seconds=1.0, num_tokens=2)
        assert metrics.registry.get_sample_value("octavo_requests_total", labels) == 1


def test_no_traffic_adds_series() -> None:
    metrics = make_metrics()
    before = metrics.render().count(b"\n")
    for outcome in OUTCOMES:
        metrics.request_ended(outcome, seconds=1e9, num_tokens=10**9)
    metrics.prompt_ended(num_tokens=10**9)
    metrics.first_token(1e-9)
    metrics.next_token(1e9)
    assert metrics.render().count(b"\n") == before


def test_two_apps_do_not_share_counts() -> None:
    first, second = make_metrics(), make_metrics()
    first.prompt_ended(num_tokens=5)
    assert second.registry.get_sample_value("octavo_prompt_tokens_total") == 0


def test_buckets_tell_fast_tokens_apart() -> None:
    metrics = make_metrics()
    metrics.next_token(0.0007)
    name = "octavo_inter_token_latency_seconds_bucket"
    assert metrics.registry.get_sample_value(name, {"le": "0.0005"}) == 0
    assert metrics.registry.get_sample_value(name, {"le": "0.001"}) == 1

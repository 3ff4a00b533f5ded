"""Prometheus metrics: what this process counts, and what the engine says when it is scraped.

The only file that imports prometheus_client. It is told numbers and outcomes, never text; its only
label of requests comes from a closed set, so that the number of series is bounded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST

Outcome = Literal["stop", "length", "cancelled", "error"]
OUTCOMES: tuple[Outcome, ...] = ("stop", "length", "cancelled", "error")

# vLLM's buckets, so that its dashboards fit, with finer low ends.
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
INTER_TOKEN_BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4),
    *(0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
DURATION_BUCKETS = (
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50),
    *(60, 120, 240, 480, 960, 1920, 7680),
)
TOKEN_BUCKETS = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """The engine's numbers at the moment of a scrape."""

    up: bool
    requests_running: int
    requests_waiting: int
    kv_cache_usage_ratio: float
    preemptions: int
    steps: int


class _EngineCollector(Collector):
    """Asks for a reading at each scrape, so that no step has to write metrics."""

    def __init__(self, read: Callable[[], EngineReading]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        now = self._read()
        yield _gauge("engine_up", "1 while the engine takes requests.", now.up)
        yield _gauge("requests_running", "Sequences being computed.", now.requests_running)
        yield _gauge("requests_waiting", "Sequences waiting for a place.", now.requests_waiting)
        yield _gauge(
            "kv_cache_usage_ratio", "Share of cache pages in use.", now.kv_cache_usage_ratio
        )
        yield _counter("preemptions", "Sequences put back to be computed again.", now.preemptions)
        yield _counter("engine_steps", "Steps since the engine started.", now.steps)


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"octavo_{name}", help, value=value)


def _counter(name: str, help: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"octavo_{name}", help, value=value)


class Metrics:
    """One registry; a request here is one sequence, as it is for the engine."""

    def __init__(self, read_engine: Callable[[], EngineReading], *, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(read_engine))
        Info("octavo_build", "What is running.", registry=self.registry).info({"version": version})
        self._outcomes = self._outcome_counter()
        self._prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens; a prompt of n choices counts once."
        )
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to first token.", FIRST_TOKEN_BUCKETS
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Between tokens of a request.", INTER_TOKEN_BUCKETS
        )
        self._duration = self._histogram(
            "request_duration_seconds", "From arrival to end.", DURATION_BUCKETS
        )
        self._request_prompt = self._histogram(
            "request_prompt_tokens", "Length of prompts.", TOKEN_BUCKETS
        )
        self._request_generation = self._histogram(
            "request_generation_tokens", "Length of outputs.", TOKEN_BUCKETS
        )

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(f"octavo_{name}", help, registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"octavo_{name}", help, buckets=buckets, registry=self.registry)

    def _outcome_counter(self) -> dict[Outcome, Counter]:
        """All series from the start, so that rates are right from the first event on."""
        counter = Counter(
            "octavo_requests", "Requests by how they ended.", ["outcome"], registry=self.registry
        )
        return {outcome: counter.labels(outcome) for outcome in OUTCOMES}

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._inter_token.observe(seconds)

    def prompt_ended(self, *, num_tokens: int) -> None:
        self._prompt_tokens.inc(num_tokens)
        self._request_prompt.observe(num_tokens)

    def request_ended(self, outcome: Outcome, *, seconds: float, num_tokens: int) -> None:
        self._outcomes[outcome].inc()
        self._duration.observe(seconds)
        self._generation_tokens.inc(num_tokens)
        self._request_generation.observe(num_tokens)

    def render(self) -> bytes:
        return generate_latest(self.registry)

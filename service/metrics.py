"""Prometheus metrics: what this process counts, and what the engine says when it is scraped.

The only file that imports prometheus_client. It is told numbers, outcomes and phases, never text;
its labels come from closed sets, so that the number of series is bounded. What counts the engine's
steps is kept here, so that it goes on when the engine restarts.
"""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Info,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.histogram import Histogram
from service.vllm_names import add_twins

CONTENT_TYPE = CONTENT_TYPE_LATEST

Outcome = Literal["stop", "length", "cancelled", "error", "deadline"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Rejection = Literal[
    "queue_requests",
    "queue_tokens",
    "deadline",
    "api_key",
    "quota_requests",
    "quota_tokens",
    "draining",
]
REJECTIONS: tuple[Rejection, ...] = get_args(Rejection)
Label = TypeVar("Label", bound=str)
STARTUP_PHASES = ("import", "fetch", "process", "weights", "cache", "warm-up", "tokenizer")
PHASES = ("intake", "schedule", "pack", "forward", "sample", "run", "wait", "commit", "report")

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
STAGE_BUCKETS = (0.001, 0.0025, 0.005, *DURATION_BUCKETS)
TOKEN_BUCKETS = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))
STEP_TOKEN_BUCKETS = (1, 2, 4, *(8 << i for i in range(12)))
PHASE_BUCKETS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """The engine's numbers at the moment of a scrape."""

    up: bool
    requests_running: int
    requests_waiting: int
    kv_cache_usage_ratio: float
    restarts: int
    page_size: int = 0
    num_pages: int = 0
    startup_seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase, of the last start."""


class _EngineCollector(Collector):
    """Asks for a reading at each scrape, so that no step has to write these."""

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
        yield CounterMetricFamily(
            "octavo_engine_restarts",
            "Times that the engine was started again after it had been ready.",
            value=now.restarts,
        )
        yield _info(
            "cache_config_info",
            "Tokens that a page of the cache holds, and how many pages there are.",
            {"block_size": str(now.page_size), "num_gpu_blocks": str(now.num_pages)},
        )
        startup = GaugeMetricFamily(
            "octavo_startup_seconds", "How long the last start took.", labels=["phase"]
        )
        for phase in STARTUP_PHASES:
            startup.add_metric([phase], now.startup_seconds.get(phase, 0.0))
        yield startup


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"octavo_{name}", help, value=value)


def _info(name: str, help: str, labels: Mapping[str, str]) -> GaugeMetricFamily:
    """A gauge that is 1, for what it says is in its labels."""
    family = GaugeMetricFamily(f"octavo_{name}", help, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


class Metrics:
    """A request here is one sequence, as it is for the engine."""

    def __init__(
        self,
        read_engine: Callable[[], EngineReading],
        *,
        version: str,
        tenants: Sequence[str] = (),
        vllm_model_name: str = "",
    ) -> None:
        """With a name for vllm_model_name, all is there under vLLM's names, too."""
        self._vllm_model_name = vllm_model_name
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(read_engine))
        build = {"version": version, "python": platform.python_version()}
        Info("octavo_build", "What is running.", registry=self._registry).info(build)
        self._histograms: list[Histogram] = []
        self._add_requests()
        self._add_stages()
        self._add_steps()
        self._add_tenants(tenants)

    def _add_requests(self) -> None:
        self._outcomes = self._counters("requests", "Requests by end.", "outcome", OUTCOMES)
        self._rejections = self._counters(
            "rejections", "Calls that were refused.", "reason", REJECTIONS
        )
        self._prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens; a prompt of n choices counts once."
        )
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._request_prompt = self._histogram(
            "request_prompt_tokens", "Length of prompts.", TOKEN_BUCKETS
        )
        self._request_generation = self._histogram(
            "request_generation_tokens", "Length of outputs.", TOKEN_BUCKETS
        )

    def _add_stages(self) -> None:
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to first token.", FIRST_TOKEN_BUCKETS
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Between tokens of a request.", INTER_TOKEN_BUCKETS
        )
        self._duration = self._histogram(
            "request_duration_seconds", "From arrival to end.", DURATION_BUCKETS
        )
        self._queue = self._histogram(
            "queue_seconds", "From the engine's intake to the first step.", STAGE_BUCKETS
        )
        self._prefill = self._histogram(
            "prefill_seconds", "From the first step to the first token.", STAGE_BUCKETS
        )
        self._decode = self._histogram(
            "decode_seconds", "From the first token to the last.", STAGE_BUCKETS
        )

    def _add_steps(self) -> None:
        self._steps = self._counter("engine_steps", "Steps that computed something.")
        self._preemptions = self._counter("preemptions", "Sequences put back to be computed again.")
        self._queried = self._counter(
            "prefix_cache_queries", "Prompt tokens that were looked for in the cache."
        )
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens that were found there.")
        self._guesses = self._counter(
            "speculative_tokens", "Tokens that were guessed and computed ahead."
        )
        self._true_guesses = self._counter(
            "speculative_hits", "Those that the sequence then went on with."
        )
        self._step_tokens = self._histogram(
            "step_tokens", "Tokens computed in a step.", STEP_TOKEN_BUCKETS
        )
        phases = Histogram(
            "octavo_step_seconds",
            "Where the time of a step goes.",
            PHASE_BUCKETS,
            label="phase",
            values=PHASES,
        )
        self._histograms.append(phases)
        self._phases = phases.series

    def _add_tenants(self, names: Sequence[str]) -> None:
        """Under the names in the key file, which bounds them; without keys there are no series."""
        self._tenants = {
            what: Counter(f"octavo_tenant_{what}", help, ["tenant"], registry=self._registry)
            for what, help in {
                "requests": "Requests that a key let in, by whose it is.",
                "prompt_tokens": "Their prompt tokens.",
                "generation_tokens": "Tokens generated for them.",
            }.items()
        }
        for name in names:
            for counter in self._tenants.values():
                counter.labels(name)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(f"octavo_{name}", help, registry=self._registry)

    def _counters(
        self, name: str, help: str, label: str, values: tuple[Label, ...]
    ) -> dict[Label, Counter]:
        """All series from the start, so that rates are right from the first event on."""
        counter = Counter(f"octavo_{name}", help, [label], registry=self._registry)
        return {value: counter.labels(value) for value in values}

    def _histogram(self, name: str, help: str, bounds: tuple[float, ...]) -> Histogram:
        self._histograms.append(Histogram(f"octavo_{name}", help, bounds))
        return self._histograms[-1]

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

    def prefill_ended(self, *, queue_seconds: float, prefill_seconds: float) -> None:
        """A sequence got its first token."""
        self._queue.observe(queue_seconds)
        self._prefill.observe(prefill_seconds)

    def decode_ended(self, seconds: float) -> None:
        """It got its last."""
        self._decode.observe(seconds)

    def tenant_ended(self, name: str, prompt_tokens: int, generation_tokens: int) -> None:
        """A request of theirs has come to its end."""
        for what, num in zip(self._tenants, (1, prompt_tokens, generation_tokens), strict=True):
            self._tenants[what].labels(name).inc(num)

    def call_rejected(self, reason: Rejection) -> None:
        self._rejections[reason].inc()

    def step_ended(
        self,
        phase_seconds: Mapping[str, float],
        *,
        num_tokens: int,
        num_preempted: int,
        num_queried_tokens: int,
        num_hit_tokens: int,
        num_guessed_tokens: int,
        num_true_guesses: int,
    ) -> None:
        """Called for every step: no more than a few microseconds. A phase that didn't happen in it
        isn't observed."""
        self._steps.inc()
        self._preemptions.inc(num_preempted)
        self._queried.inc(num_queried_tokens)
        self._hits.inc(num_hit_tokens)
        self._guesses.inc(num_guessed_tokens)
        self._true_guesses.inc(num_true_guesses)
        self._step_tokens.observe(num_tokens)
        for phase in phase_seconds.keys() & self._phases.keys():
            self._phases[phase].observe(phase_seconds[phase])

    def render(self) -> bytes:
        histograms = "".join(histogram.render() for histogram in self._histograms)
        text = generate_latest(self._registry).decode() + histograms
        return (add_twins(text, self._vllm_model_name) if self._vllm_model_name else text).encode()

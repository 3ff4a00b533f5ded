"""What report.json holds, and how it comes from observations. Times are in seconds."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from loadtests import slo
from loadtests.monitor import Sample
from loadtests.slo import Objective
from loadtests.stream import Observation

VERSION = 1
"""Of the file's form."""
CURVE_POINTS = 101


class Times(msgspec.Struct, frozen=True, kw_only=True):
    mean: float
    p50: float
    p95: float
    p99: float
    curve: list[float]
    """The quantiles 0 %, 1 %, … 100 %: the distribution, to draw it and to compare with."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run, under one load."""

    kind: Literal["concurrency", "rate", "shape"]
    load: float
    """So many at once, or so many per second; of a shape, its peak."""
    seconds: float
    requests: int
    errors: dict[str, int]
    """By kind."""
    first_error: str
    prompt_tokens: float
    """In the mean, as output_tokens."""
    output_tokens: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    requests_per_second: float
    good_requests_per_second: float
    """Of those that were within the objectives."""
    good_share: float
    ttft: Times | None
    itl: Times | None
    tpot: Times | None
    latency: Times | None
    late: float
    """By how much the most belated request was sent after it was due."""
    generator_cpu_share: float
    """Of one core, that went into making the load."""
    broken: list[str]
    """The objectives that this level didn't keep, with what it reached."""
    samples: list[Sample]

    @property
    def label(self) -> str:
        name = {"concurrency": "c", "rate": "r", "shape": "peak"}[self.kind]
        return f"{name}={self.load:g}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    label: str
    started: str
    scenario: str
    seed: int
    work: dict[str, str]
    """How it was asked."""
    objectives: str
    """By which goodput is counted."""
    machine: dict[str, str]
    server: dict[str, str]
    levels: list[Level]


def make_times(seconds: Sequence[float]) -> Times | None:
    if not seconds:
        return None
    curve = np.percentile(seconds, np.linspace(0, 100, CURVE_POINTS)).tolist()
    p50, p95, p99 = (curve[percent] for percent in (50, 95, 99))
    return Times(mean=float(np.mean(seconds)), p50=p50, p95=p95, p99=p99, curve=curve)


def make_level(
    kind: Literal["concurrency", "rate", "shape"],
    load: float,
    observations: Sequence[Observation],
    *,
    objectives: Sequence[Objective],
    cpu_seconds: float,
    samples: list[Sample],
) -> Level:
    assert observations
    whole = [each for each in observations if each.fault is None]
    faults = [each.fault for each in observations if each.fault is not None]
    start = min(each.due for each in observations)
    seconds = max(each.ended for each in observations) - start
    good = sum(slo.is_good(each, objectives) for each in observations)
    return Level(
        kind=kind,
        load=load,
        seconds=seconds,
        requests=len(observations),
        errors=dict(Counter(fault.kind for fault in faults)),
        first_error=str(faults[0]) if faults else "",
        prompt_tokens=_mean([each.prompt_tokens for each in whole]),
        output_tokens=_mean([each.output_tokens for each in whole]),
        prompt_tokens_per_second=sum(each.prompt_tokens for each in whole) / seconds,
        output_tokens_per_second=sum(each.output_tokens for each in whole) / seconds,
        requests_per_second=len(whole) / seconds,
        good_requests_per_second=good / seconds,
        good_share=good / len(observations),
        **{name: make_times(slo.times_of(name, whole)) for name in slo.TIMES},
        late=max(each.sent - each.due for each in observations),
        generator_cpu_share=cpu_seconds / seconds,
        broken=[slo.tell(*each) for each in slo.broken(objectives, observations)],
        samples=samples,
    )


def _mean(values: Sequence[int]) -> float:
    return float(np.mean(values)) if values else 0.0

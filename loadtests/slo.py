"""Service-level objectives: `ttft_p95=500ms,itl_p99=80ms,errors=1%`.

A level keeps an objective if its own percentile is within the limit. A single request is good if
it came whole and each of its times, at the same percentile of its own, is within the limits.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.errors import BenchError
from loadtests.stream import Observation

TIMES = ("ttft", "itl", "tpot", "latency")
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "%": 0.01}
EXAMPLE = "ttft_p95=500ms,itl_p99=80ms,errors=1%"


@dataclass(frozen=True, slots=True)
class Objective:
    """Of a time at a percentile, in seconds; or of the share of errors."""

    name: str
    percentile: float
    limit: float

    def __str__(self) -> str:
        if self.name == "errors":
            return f"errors={self.limit * 100:g}%"
        return f"{self.name}_p{self.percentile:g}={self.limit * 1e3:g}ms"


def parse(text: str) -> tuple[Objective, ...]:
    return tuple(_objective(part.strip()) for part in text.split(","))


def _objective(text: str) -> Objective:
    times = re.fullmatch(r"(\w+)_p(\d+(?:\.\d+)?)=(\d+(?:\.\d+)?)(us|ms|s)", text)
    if times and times[1] in TIMES and float(times[2]) <= 100:
        return Objective(times[1], float(times[2]), float(times[3]) * UNITS[times[4]])
    errors = re.fullmatch(r"errors=(\d+(?:\.\d+)?)%", text)
    if errors:
        return Objective("errors", 100, float(errors[1]) * UNITS["%"])
    raise BenchError(
        f"--slo has {text!r}: write objectives like {EXAMPLE}, of {', '.join(TIMES)} or errors"
    )


def times_of(name: str, observations: Sequence[Observation]) -> list[float]:
    """Of requests that came whole."""
    match name:
        case "itl":
            return [gap for each in observations for gap in each.gaps]
        case "tpot":
            return [tpot for each in observations if (tpot := each.tpot) is not None]
        case _:
            return [getattr(each, name) for each in observations]


def reached(objective: Objective, observations: Sequence[Observation]) -> float:
    """What came out, to compare with the limit."""
    whole = [each for each in observations if each.fault is None]
    if objective.name == "errors":
        return 1 - len(whole) / len(observations) if observations else 0.0
    times = times_of(objective.name, whole)
    return float(np.percentile(times, objective.percentile)) if times else 0.0


def is_good(observation: Observation, objectives: Sequence[Objective]) -> bool:
    return observation.fault is None and all(
        reached(objective, [observation]) <= objective.limit for objective in objectives
    )


def broken(
    objectives: Sequence[Objective], observations: Sequence[Observation]
) -> list[tuple[Objective, float]]:
    """With what came out instead. Where nothing came whole, no time is within its limit."""
    if not any(each.fault is None for each in observations):
        return [(objective, float("inf")) for objective in objectives]
    values = [(objective, reached(objective, observations)) for objective in objectives]
    return [(objective, value) for objective, value in values if value > objective.limit]


def tell(objective: Objective, value: float) -> str:
    if value == float("inf"):
        return f"{objective}: no answer came whole"
    reached = f"{value * 100:.1f}%" if objective.name == "errors" else f"{value * 1e3:.1f}ms"
    return f"{objective}: it was {reached}"

"""Markdown of what was measured, and whether that reaches the targets. Measures nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from scripts.gpu.loads import WAYS, Way

HTTP = " over HTTP"
"""Ends the name of a load that went there."""
COLUMNS = ("model", "load", "graphs", "overlap", "tokens/s", "roofline", "host µs a step")
HTTP_COLUMNS = (
    *("load", "graphs", "overlap", "first token p50, ms", "between tokens p50, ms", "p99, ms"),
    "computed by",
)
TARGET_COLUMNS = ("target", "for an H200", "measured", "met")


class Latencies(NamedTuple):
    """Seconds, as clients saw them."""

    first: list[float]
    """Until the first token of each request."""
    between: list[float]
    """Between the events of each stream, of which one may bring several tokens."""


class Measured(NamedTuple):
    num_tokens: int
    seconds: float
    num_steps: int
    host_seconds: float
    """Without what the engine's process waited for the device."""
    latencies: Latencies | None = None
    """Of what went over HTTP."""
    computed_by: str = ""

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def host_micros(self) -> float:
        return 1e6 * self.host_seconds / self.num_steps


class Row(NamedTuple):
    model: str
    load: str
    way: Way
    measured: Measured | None
    """None: it failed."""
    roofline: float = 0.0

    def __str__(self) -> str:
        if not self.measured:
            return line(self.model, self.load, *_ways(self.way), "**failed**", "", "")
        speed, host = self.measured.tokens_per_second, self.measured.host_micros
        figures = f"{speed:,.0f}", f"{self.roofline:.0%}", f"{host:,.0f}"
        return line(self.model, self.load, *_ways(self.way), *figures)


class Target(NamedTuple):
    name: str
    model: str
    load: str
    asked: float
    unit: str
    figure: Callable[[Measured], float]
    is_most: bool = False

    def line(self, rows: Sequence[Row], *, is_dry: bool) -> str:
        wanted = self.model, self.load, WAYS[0]
        found = next((row.measured for row in rows if row[:3] == wanted), None)
        asked = f"{'≤' if self.is_most else '≥'} {self.asked:,.0f} {self.unit}"
        if not found:
            return line(self.name, asked, "nothing", "not measured")
        figure = self.figure(found)
        met = figure <= self.asked if self.is_most else figure >= self.asked
        verdict = "a dry run doesn't tell" if is_dry else "yes" if met else "**no**"
        return line(self.name, asked, f"{figure:,.0f}", verdict)


def targets(models: Iterable[str], protocol: str) -> Iterator[Target]:
    """models: names; the protocol's are for the first one."""
    first, *others = models
    speed = "tokens/s", lambda measured: measured.tokens_per_second
    yield Target(f"{first}, {protocol}", first, protocol, 30_000, *speed)
    yield Target(f"{first}, {protocol}{HTTP}", first, protocol + HTTP, 25_000, *speed)
    host = "host µs a step", lambda measured: measured.host_micros
    for model in (first, *others):
        for num, most in ((1, 300), (256, 1000)):
            load = f"decode, {num}"
            yield Target(f"{model}, {load}", model, load, most, *host, is_most=True)


def http_line(row: Row) -> str:
    assert row.measured
    assert row.measured.latencies
    first, between = row.measured.latencies
    seconds = quantile(first, 0.5), quantile(between, 0.5), quantile(between, 0.99)
    figures = (f"{1e3 * value:,.1f}" for value in seconds)
    return line(row.load, *_ways(row.way), *figures, row.measured.computed_by)


def head(columns: Sequence[str]) -> str:
    return f"{line(*columns)}\n{'|---' * len(columns)}|"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _ways(way: Way) -> list[str]:
    return ["on" if is_on else "off" for is_on in way]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the others is, in between two if need be."""
    return float(np.quantile(values, share))

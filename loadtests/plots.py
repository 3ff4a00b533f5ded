"""The pictures of a report, or of several over each other. Only this file knows matplotlib."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from loadtests.monitor import Sample
from loadtests.results import Level, Report, Times

COLOURS = ("#1f6f8b", "#d1603d", "#5b8c3e", "#8a5a9e", "#b8902b", "#4a5568", "#c2416b", "#3d9b8f")
STYLE: dict[Any, Any] = {
    "axes.edgecolor": "#9aa5b1",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "font.size": 9,
    "grid.color": "#e4e7eb",
    "legend.frameon": False,
    "svg.fonttype": "none",
}
LOG_LEVELS = 4
"""Loads of as many levels grow by factors, as a rule, and then so does the axis."""
FINE_SPAN = 200
SHORTEST_MS = 0.1
"""Gaps are drawn no shorter: two tokens that came in one piece have none between them."""
Value = Callable[[Level], float | None]


def draw(reports: Sequence[Report]) -> dict[str, Figure]:
    """By the name of their files, in the order in which they tell the story."""
    with mpl.rc_context(STYLE):
        figures = {
            "throughput": _throughput(reports),
            "ttft": _percentiles(reports, "ttft", "Time to first token"),
            "itl": _percentiles(reports, "itl", "Inter-token latency"),
            "cdf": _distributions(reports),
        }
        if any(level.samples for report in reports for level in report.levels):
            figures["server"] = _server(reports)
    return figures


def save(figures: dict[str, Figure], folder: Path) -> dict[str, str]:
    """As PNG and SVG. The SVGs' texts are returned, fit to stand in one page together."""
    with mpl.rc_context(STYLE):
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png", dpi=120)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    return {name: _inline((folder / f"{name}.svg").read_text()) for name in figures}


def _inline(svg: str) -> str:
    """Without the XML head and the names of groups, which several pictures share."""
    return re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])


def _new(width: float = 7.2, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def _throughput(reports: Sequence[Report]) -> Figure:
    figure, (tokens, requests) = _new(10, columns=2)
    for report, colour in zip(reports, COLOURS, strict=False):
        line = {"color": colour, "marker": "o", "markersize": 4}
        _line(tokens, report, lambda level: level.output_tokens_per_second, report.label, line)
        _line(requests, report, lambda level: level.requests_per_second, report.label, line)
        dashed = line | {"linestyle": "--", "markerfacecolor": "white"}
        name = f"{report.label}, within objectives"
        _line(requests, report, lambda level: level.good_requests_per_second, name, dashed)
    _finish(tokens, reports, "Output tokens per second")
    _finish(requests, reports, "Requests per second")
    return figure


def _percentiles(reports: Sequence[Report], times: str, title: str) -> Figure:
    figure, (axes,) = _new()
    for report, colour in zip(reports, COLOURS, strict=False):
        for name, style in (("p50", "-"), ("p95", "--"), ("p99", ":")):
            line = {"color": colour, "linestyle": style, "marker": "o", "markersize": 3}
            _line(axes, report, _in_ms(times, name), f"{report.label} {name}", line)
    _finish(axes, reports, f"{title}, milliseconds")
    return figure


def _in_ms(times: str, name: str) -> Value:
    def value(level: Level) -> float | None:
        found: Times | None = getattr(level, times)
        return None if found is None else float(getattr(found, name)) * 1e3

    return value


def _line(axes: Axes, report: Report, value: Value, label: str, style: dict[str, object]) -> None:
    points = [(level.load, found) for level in report.levels if (found := value(level)) is not None]
    loads, values = [load for load, _ in points], [found for _, found in points]
    axes.plot(loads, values, label=label, **style)  # type: ignore[arg-type]


def _finish(axes: Axes, reports: Sequence[Report], title: str) -> None:
    loads = sorted({level.load for report in reports for level in report.levels})
    if len(loads) >= LOG_LEVELS:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xticks(loads)
    axes.set_xlabel(_load_name(reports[0].levels[0]))
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.legend()


def _load_name(level: Level) -> str:
    return {
        "concurrency": "requests at once",
        "rate": "arrivals per second",
        "shape": "users at the peak",
    }[level.kind]


def _distributions(reports: Sequence[Report]) -> Figure:
    """One line for each level; those of later reports are dashed."""
    figure, panels = _new(10, columns=3)
    names = (("ttft", "First token"), ("itl", "Between tokens"), ("latency", "Whole answer"))
    for axes, (times, title) in zip(panels, names, strict=True):
        for report, style in zip(reports, ("-", "--", ":"), strict=False):
            _curves(axes, report, times, style)
        axes.set_title(title)
        _scale_times(axes)
    panels[0].set_ylabel("share of requests or gaps")
    panels[-1].legend(fontsize=7)
    return figure


def _scale_times(axes: Axes) -> None:
    """After the lines are drawn: the more they span, the fewer numbers have room."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < FINE_SPAN * low else (1,)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("milliseconds")


def _curves(axes: Axes, report: Report, times: str, style: str) -> None:
    for level, colour in zip(report.levels, _cycle(len(report.levels)), strict=True):
        found: Times | None = getattr(level, times)
        if found is not None:
            label = f"{report.label} {level.label}"
            milliseconds = np.maximum(np.array(found.curve) * 1e3, SHORTEST_MS)
            shares = np.linspace(0, 1, len(found.curve))
            axes.plot(milliseconds, shares, color=colour, linestyle=style, label=label)


def _cycle(num: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(num)]


def _server(reports: Sequence[Report]) -> Figure:
    """Levels one after the other, with a mark where each begins."""
    figure, (batch, cache) = _new(10, rows=2)
    for report, colour in zip(reports, COLOURS, strict=False):
        seconds, samples, starts = _timeline(report)
        running, waiting = [s.running for s in samples], [s.waiting for s in samples]
        batch.plot(seconds, running, color=colour, label=f"{report.label}: computed")
        batch.plot(seconds, waiting, color=colour, ls=":", label=f"{report.label}: waiting")
        usage = [100 * sample.kv_cache_usage for sample in samples]
        cache.plot(seconds, usage, color=colour, label=report.label)
        for axes in (batch, cache):
            for start in starts:
                axes.axvline(start, color=colour, alpha=0.25)
        _name_levels(batch, report, starts)
    batch.set_title("Requests in the server", pad=16)
    cache.set_title("KV cache in use, percent")
    cache.set_xlabel("seconds")
    for axes in (batch, cache):
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


def _timeline(report: Report) -> tuple[list[float], list[Sample], list[float]]:
    seconds: list[float] = []
    samples: list[Sample] = []
    starts: list[float] = []
    start = 0.0
    for level in report.levels:
        starts.append(start)
        seconds += [start + sample.seconds for sample in level.samples]
        samples += level.samples
        start += level.seconds
    return seconds, samples, starts


def _name_levels(axes: Axes, report: Report, starts: Sequence[float]) -> None:
    for start, level in zip(starts, report.levels, strict=True):
        place = (start, 1.0)
        axes.annotate(level.label, place, xycoords=("data", "axes fraction"), va="bottom")

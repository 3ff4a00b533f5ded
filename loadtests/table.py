"""Reports as text for a terminal."""

from collections.abc import Callable, Sequence

from loadtests.results import Level, Report, Times

COLUMNS: tuple[tuple[str, Callable[[Level], str]], ...] = (
    ("load", lambda level: level.label),
    ("ok", lambda level: f"{level.requests - sum(level.errors.values())}/{level.requests}"),
    ("in", lambda level: f"{level.prompt_tokens:.0f}"),
    ("out", lambda level: f"{level.output_tokens:.0f}"),
    ("tok/s", lambda level: f"{level.output_tokens_per_second:.1f}"),
    ("req/s", lambda level: f"{level.requests_per_second:.2f}"),
    ("good", lambda level: f"{level.good_share:.0%}"),
    ("ttft50", lambda level: milliseconds(level.ttft, "p50")),
    ("ttft95", lambda level: milliseconds(level.ttft, "p95")),
    ("itl50", lambda level: milliseconds(level.itl, "p50")),
    ("itl99", lambda level: milliseconds(level.itl, "p99")),
    ("lat95", lambda level: milliseconds(level.latency, "p95")),
    ("late", lambda level: f"{level.late * 1e3:.0f}"),
    ("cpu", lambda level: f"{level.generator_cpu_share:.0%}"),
)
LEGEND = (
    "in, out: tokens, in the mean. ttft, itl, lat: milliseconds. good: within the objectives.\n"
    "late: milliseconds that the latest request was sent after it was due. "
    "cpu: of one core, by this program."
)
RATIOS: tuple[tuple[str, Callable[[Level], float | None]], ...] = (
    ("tok/s", lambda level: level.output_tokens_per_second),
    ("req/s", lambda level: level.requests_per_second),
    ("good/s", lambda level: level.good_requests_per_second),
    ("ttft50", lambda level: level.ttft.p50 if level.ttft else None),
    ("ttft95", lambda level: level.ttft.p95 if level.ttft else None),
    ("itl50", lambda level: level.itl.p50 if level.itl else None),
    ("itl99", lambda level: level.itl.p99 if level.itl else None),
    ("lat95", lambda level: level.latency.p95 if level.latency else None),
)


def milliseconds(times: Times | None, name: str) -> str:
    return "-" if times is None else f"{getattr(times, name) * 1e3:.0f}"


def rows(levels: Sequence[Level]) -> list[list[str]]:
    """With the heads first."""
    heads = [head for head, _ in COLUMNS]
    return [heads, *([cell(level) for _, cell in COLUMNS] for level in levels)]


def pairs(before: Report, after: Report) -> list[tuple[Level, Level]]:
    """The levels that both have."""
    theirs = {level.label: level for level in after.levels}
    return [(level, theirs[level.label]) for level in before.levels if level.label in theirs]


def ratio_rows(before: Report, after: Report) -> list[list[str]]:
    """After by before, with the heads first."""
    heads = ["load", *(head for head, _ in RATIOS)]
    return [
        heads,
        *(
            [one.label, *(_ratio(value(one), value(other)) for _, value in RATIOS)]
            for one, other in pairs(before, after)
        ),
    ]


def _ratio(before: float | None, after: float | None) -> str:
    return f"{after / before:.2f}" if before and after is not None else "-"


def to_text(grid: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in grid
    )

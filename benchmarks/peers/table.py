"""All runs of all servers as one table: medians, the best peer of each column, octavo beside it.

Knows neither how servers are started nor how they are asked.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.peers.measure import WORKLOADS, Run

OURS = "octavo"
GIB = 1 << 30
LEGEND = (
    "Output tokens per second, unless the column says otherwise; medians of the runs. "
    "A: 64 tokens to read, 64 to write; B: 512, 16; C: 32, 256; c: requests at once."
)


class Result(msgspec.Struct, kw_only=True):
    title: str
    runs: list[Run] = msgspec.field(default_factory=list)
    problem: str = ""
    """Why there are no more runs."""


@dataclass(frozen=True, slots=True)
class Column:
    head: str
    value: Callable[[Run], float]
    form: str
    best: Callable[[Sequence[float]], float] = max


def tokens_per_second(cell: str) -> Column:
    return Column(cell, lambda run: run.cells[cell].tokens_per_second, ".0f")


COLUMNS = (
    *(
        tokens_per_second(workload.cell(users))
        for workload in WORKLOADS
        for users in workload.users
    ),
    Column("B c1 first token, ms", lambda run: 1e3 * run.cells["B c1"].first_token_p50, ".0f", min),
    Column("ready, s", lambda run: run.ready_seconds, ".1f", min),
    Column("peak RSS, GiB", lambda run: run.peak_bytes / GIB, ".2f", min),
)


def to_json(results: Mapping[str, Result], machine: Mapping[str, str]) -> bytes:
    """Medians and ratios are by column's head."""
    heads = [column.head for column in COLUMNS]
    medians = {
        name: dict(zip(heads, row, strict=True)) for name, row in all_medians(results).items()
    }
    found = {
        "machine": machine,
        "medians": medians,
        "ratios": dict(zip(heads, ratios(results), strict=False)),
        "results": results,
    }
    return msgspec.json.format(msgspec.json.encode(found), indent=1)


def to_markdown(results: Mapping[str, Result]) -> str:
    medians = all_medians(results)
    rows = [
        ["server", *(column.head for column in COLUMNS)],
        ["---"] * (1 + len(COLUMNS)),
        *([title(result), *written(medians.get(name))] for name, result in results.items()),
        ["octavo / best peer", *(f"{ratio:.2f}" for ratio in ratios(results))],
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def title(result: Result) -> str:
    """With what went wrong, on one line."""
    problem = " ".join(result.problem.replace("|", "/").split())
    return f"{result.title}: {problem}" if problem else result.title


def written(values: Sequence[float] | None) -> list[str]:
    if values is None:
        return ["-"] * len(COLUMNS)
    return [f"{value:{column.form}}" for value, column in zip(values, COLUMNS, strict=True)]


def all_medians(results: Mapping[str, Result]) -> dict[str, list[float]]:
    """A value for each column, of the servers that were measured."""
    return {
        name: [statistics.median(map(column.value, result.runs)) for column in COLUMNS]
        for name, result in results.items()
        if result.runs
    }


def ratios(results: Mapping[str, Result]) -> list[float]:
    """Ours to the best peer's, for each column; none without both."""
    medians = all_medians(results)
    ours = medians.pop(OURS, None)
    if ours is None or not medians:
        return []
    best = [
        column.best(values)
        for column, values in zip(COLUMNS, zip(*medians.values(), strict=True), strict=True)
    ]
    return [mine / theirs for mine, theirs in zip(ours, best, strict=True)]

"""Traces of requests: when each came, how long it was, and which prompts began alike. No text.

Reads two published formats, told apart by their first line:

    JSON lines  {"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}
                of the paper on Mooncake (FAST 2025); "timestamp" is in milliseconds, "hash_ids"
                names the prompt's blocks of 512 tokens by content and may be left out; so may
                octavo's own "tenant", "weight" and "priority"
    CSV         TIMESTAMP,ContextTokens,GeneratedTokens
                2023-11-16 18:17:03.9799600,4808,10
                of Azure's traces of inference (the paper on Splitwise, ISCA 2024)

Or makes one up: Poisson arrivals, and lengths in a geometric distribution.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate, chain, islice
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from service.errors import CommandError

BLOCK_SIZE = 512
MOST_TOKENS = 10_000_000
MOST_MILLISECONDS = 1e15
LEAST_WEIGHT = 0.1
CSV_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


class TraceError(CommandError):
    """A trace can't be used; the message names line, field, value and remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    arrival: float
    """In seconds."""
    prompt_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0


class Entry:
    """A line of a trace, by field."""

    def __init__(self, line: int, values: Mapping[str, Any]) -> None:
        self._line = line
        self._values = values

    def error(self, name: str, remedy: str) -> TraceError:
        given = f"is {self._values[name]!r}" if name in self._values else "is missing"
        return TraceError(f"line {self._line} of the trace: {name} {given}: {remedy}")

    def number(self, name: str, least: float, most: float, default: float | None = None) -> float:
        value = self._values.get(name, default)
        if type(value) not in (int, float) or not least <= value <= most:
            raise self.error(name, f"give a number from {least} to {most:.0f}")
        return value

    def integer(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = self._values.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.error(name, f"give a whole number from {least} to {most}")
        return value

    def time(self, name: str) -> datetime:
        """Those without a zone are taken as UTC."""
        try:
            time = datetime.fromisoformat(str(self._values.get(name)))
        except ValueError:
            raise self.error(name, "give a date and time, as 2023-11-16 18:17:03.97") from None
        return time if time.tzinfo else time.replace(tzinfo=UTC)

    def text(self, name: str) -> str:
        value = self._values.get(name, "")
        if not isinstance(value, str):
            raise self.error(name, "give a string")
        return value

    def integers(self, name: str, most: int) -> tuple[int, ...]:
        values = self._values.get(name, [])
        if not isinstance(values, list) or any(type(value) is not int for value in values):
            raise self.error(name, "give a list of whole numbers")
        if len(values) > most:
            raise self.error(name, f"give {most} or fewer, one for each {BLOCK_SIZE} tokens")
        return tuple(values)


def read_trace(path: Path) -> list[TracedRequest]:
    """At least one, in order of arrival, the first at 0."""
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        first = next(lines, "")
        read = _read_csv if first.strip().split(",") == CSV_COLUMNS else _read_json
        requests = list(read(chain([first], lines)))
    if not requests:
        raise TraceError(f"{path} holds no request: give one in each line")
    requests.sort(key=attrgetter("arrival"))
    began = requests[0].arrival
    return [replace(request, arrival=request.arrival - began) for request in requests]


def _read_json(lines: Iterable[str]) -> Iterator[TracedRequest]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _request(Entry(number, decode(line)))
            except msgspec.MsgspecError as error:
                raise TraceError(
                    f"line {number} of the trace is {line[:60].rstrip()!r}: write a JSON object "
                    f"in each line, or {','.join(CSV_COLUMNS)} in the first ({error})"
                ) from None


def _request(entry: Entry) -> TracedRequest:
    prompt_len = entry.integer("input_length", 0, MOST_TOKENS)
    return TracedRequest(
        arrival=entry.number("timestamp", 0, MOST_MILLISECONDS) / 1000,
        prompt_len=prompt_len,
        output_len=entry.integer("output_length", 0, MOST_TOKENS),
        hash_ids=entry.integers("hash_ids", most=-(-prompt_len // BLOCK_SIZE)),
        tenant=entry.text("tenant"),
        weight=entry.number("weight", LEAST_WEIGHT, 1e6, default=1.0),
        priority=entry.integer("priority", -(1 << 31), (1 << 31) - 1, default=0),
    )


def _read_csv(lines: Iterable[str]) -> Iterator[TracedRequest]:
    began: datetime | None = None
    for number, line in enumerate(islice(lines, 1, None), start=2):
        cells = [_plain_int(cell) for cell in line.strip().split(",")]
        entry = Entry(number, dict(zip(CSV_COLUMNS, cells, strict=False)))
        came = entry.time(CSV_COLUMNS[0])
        began = began or came
        yield TracedRequest(
            arrival=(came - began).total_seconds(),
            prompt_len=entry.integer(CSV_COLUMNS[1], 0, MOST_TOKENS),
            output_len=entry.integer(CSV_COLUMNS[2], 0, MOST_TOKENS),
        )


def _plain_int(cell: str) -> int | str:
    """What is no number stays as it is, to be shown."""
    return int(cell) if cell.isascii() and cell.isdigit() and len(cell) < 20 else cell


def make_trace(
    num_requests: int, *, rate: float, prompt_len: int, output_len: int, seed: int
) -> list[TracedRequest]:
    """So many arrivals per second, and lengths, in the mean; the seed decides."""
    random = Random(seed)
    arrivals = accumulate(random.expovariate(rate) for _ in range(num_requests))
    return [
        TracedRequest(
            arrival=arrival,
            prompt_len=_geometric(random, prompt_len),
            output_len=_geometric(random, output_len),
        )
        for arrival in arrivals
    ]


def _geometric(random: Random, mean: int) -> int:
    """1 or more."""
    return 1 if mean == 1 else 1 + int(random.expovariate(math.log(mean / (mean - 1))))


def at_rate(requests: list[TracedRequest], rate: float) -> list[TracedRequest]:
    """The same, squeezed or stretched to so many arrivals per second in the mean."""
    seconds = requests[-1].arrival - requests[0].arrival
    if seconds == 0:
        raise TraceError("the trace's requests all come at once: leave out --rate")
    scale = (len(requests) - 1) / seconds / rate
    return [replace(request, arrival=request.arrival * scale) for request in requests]

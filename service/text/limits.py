"""What a chat template may take of time and memory, as checks that raise before it takes more.

An estimate may be too high, but too low by a small factor alone. Knows what Python's operations
make of their arguments, and nothing of who calls them.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from string import Formatter
from time import monotonic
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MAX_SECONDS = 2.0
MAX_CHARS = 16 << 20
ITEM_CHARS = 8
"""What an item of a list weighs besides its text: quotes, brackets, commas; digits of a number."""

_deadline: ContextVar[float] = ContextVar("_deadline")
"""When, by the monotonic clock, this thread's rendering is cut off."""


def start_clock() -> None:
    _deadline.set(monotonic() + MAX_SECONDS)


def check_time() -> None:
    if monotonic() > _deadline.get():
        raise SecurityError(f"it takes more than {MAX_SECONDS} seconds")


def within_time(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        check_time()
        yield item


def check_size(num_chars: float) -> None:
    if abs(num_chars) > MAX_CHARS:
        raise SecurityError(
            f"it makes more than {MAX_CHARS} characters at once, which is too large"
        )


def joined(pieces: Iterable[str]) -> str:
    whole = []
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece)
        check_size(num_chars)
        whole.append(piece)
    return "".join(whole)


def weight(value: Any) -> int:
    """About how many characters it takes to write the value out; of too many, not all are counted.

    What is shared counts each time: lists of lists of one list can stand for 2 ** 40 characters.
    """
    total, rest = ITEM_CHARS, [value]
    while rest and total <= MAX_CHARS:
        item = rest.pop()
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, Collection):
            check_time()
            total += ITEM_CHARS * len(item)
            rest.extend(item)
            if isinstance(item, Mapping):
                rest.extend(item.values())
        elif isinstance(item, Namespace):
            raise SecurityError("it writes out a namespace")
    return total


def magnitude(value: Any) -> Any:
    return len(value) if isinstance(value, Sized) else value


def weighed_items(items: Iterable[Any], separator: Any) -> list[Any]:
    """As a list, whose texts fit with a separator between each two."""
    listed = list(within_time(items))
    check_size(weight(listed) + len(listed) * len(separator))
    return listed


def check_replacement(text: Any, old: Any, new: Any) -> None:
    check_size(len(text) + text.count(old) * len(new))


def check_percent(text: str | bytes, values: Any) -> None:
    """Each % of the text may write out all values, in the largest width that the text names."""
    spelled = text if isinstance(text, str) else text.decode("latin-1")
    if re.search(r"%[-#0 +]*\d*\.?\*", spelled):
        raise SecurityError("it formats in a width that it computes, which may be too large")
    widest = max(map(int, re.findall(r"\d+", spelled)), default=0)
    check_size(spelled.count("%") * (weight(values) + widest))


def check_format(text: str, values: Any) -> None:
    """The same of str.format. A field is a plain name or number, in a width of up to 999."""
    fields = [field for field in Formatter().parse(text) if field[1] is not None]
    for _, name, spec, _ in fields:
        if not re.fullmatch(r"\w*", name or "") or re.search(r"\{|\d{4}", spec or ""):
            raise SecurityError(f"the field {name}:{spec} to format may become too large")
    check_size(len(fields) * (weight(values) + 1000))

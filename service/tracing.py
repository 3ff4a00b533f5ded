"""What is told of a request where requests are traced: what was asked, its stages, its end.

Knows no tracing library: service/otel.py does. Where there is no tracer, nobody is told anything.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from starlette.types import Scope


@dataclass(frozen=True, slots=True)
class Stage:
    """Of one sequence, from and to seconds of the monotonic clock."""

    name: Literal["queue", "prefill", "decode"]
    began: float
    ended: float


class Trace(Protocol):
    """One request's."""

    id: str
    """32 hexadecimal digits."""
    traceparent: str
    """The header for whoever goes on with it (https://www.w3.org/TR/trace-context)."""

    def tell(self, asked: Mapping[str, Any], stages: Mapping[int, Sequence[Stage]]) -> None:
        """What a call asked, by the names of its fields, and the stages of each choice."""

    def end(self, request_id: str, status: int, notes: Mapping[str, Any]) -> None:
        """With what the log has of it."""


class Tracer(Protocol):
    def begin(self, scope: Scope) -> Trace: ...


_trace: ContextVar[Trace | None] = ContextVar("trace", default=None)


def begin_trace(tracer: Tracer | None, scope: Scope) -> Trace | None:
    """Of the request at hand, which `current_trace` is from here on."""
    trace = None if tracer is None else tracer.begin(scope)
    _trace.set(trace)
    return trace


def current_trace() -> Trace | None:
    return _trace.get()

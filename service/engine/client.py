"""The asyncio side of the engine: submit requests, receive their events, watch over the process."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from service.engine.messages import EngineInfo, Event, Request, Stats

Phase = Literal["starting", "loading", "ready", "restarting", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class EngineStatus:
    phase: Phase
    detail: str = ""
    fraction: float = 0.0


class EngineUnavailableError(RuntimeError):
    """A request can't be taken now; the message says why."""


class Engine(Protocol):
    """What the routes need of an engine."""

    @property
    def status(self) -> EngineStatus: ...

    @property
    def info(self) -> EngineInfo | None:
        """None until the engine was ready for the first time."""

    @property
    def stats(self) -> Stats: ...

    def submit(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """The request's events, the last with a finish_reason. Leaving early cancels the request.

        Raises EngineUnavailableError on entering while the engine isn't ready.
        """

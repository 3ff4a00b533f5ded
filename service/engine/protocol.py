"""What the rest of the service needs of an engine, whoever runs it. Knows no process or socket."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from service.engine.messages import EngineInfo, Event, Request, Stats, Vocabulary
from service.engine.recorder import FlightRecorder

Phase = Literal["starting", "loading", "ready", "stuck", "restarting", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class EngineStatus:
    phase: Phase
    detail: str = ""
    fraction: float = 0.0


class EngineUnavailableError(RuntimeError):
    """A request can't be taken now; the message says why."""


class Engine(Protocol):
    """What routes and terminal need of an engine."""

    async def start(self, model_path: Path) -> None:
        """Begin to load; returns at once, and `status` tells the rest."""

    async def stop(self) -> None:
        """End it, if it was started; whatever is unfinished ends with an error event."""

    @property
    def status(self) -> EngineStatus: ...

    @property
    def info(self) -> EngineInfo | None:
        """None until the engine was ready for the first time."""

    @property
    def stats(self) -> Stats: ...

    @property
    def recorder(self) -> FlightRecorder:
        """Of the steps that computed something, over all its restarts."""

    @property
    def startup_seconds(self) -> Mapping[str, float]:
        """By phase, of its last start; empty before the first."""

    @property
    def num_restarts(self) -> int:
        """After it was ready for the first time."""

    def learn(self, vocabulary: Vocabulary) -> None:
        """Call before the first request with a grammar."""

    def submit(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """The request's events, the last with a finish_reason. Leaving early cancels the request.

        Raises EngineUnavailableError on entering while the engine isn't ready.
        """

"""The asyncio side of the engine: submit requests, receive their events, watch over the process.

Supervision: when the process dies or falls silent it is started again, and requests in flight are
submitted again with the tokens they have, so that their streams pause and go on. Those that were
there at two deaths in a row are suspects: from then on each request is tried by itself until it has
got a token, suspects first, and one that meets a third death that way is ended with an error.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from service.config import EngineConfig
from service.engine.child import COMMAND, EngineChild, EngineDiedError, spawn
from service.engine.messages import (
    Abort,
    EngineInfo,
    Event,
    Failed,
    FinishReason,
    Loading,
    Ready,
    Request,
    Stats,
    StepReport,
    Vocabulary,
)
from service.engine.protocol import EngineStatus, EngineUnavailableError
from service.engine.recorder import FlightRecorder
from service.engine.stopwatch import Stopwatch

log = logging.getLogger(__name__)

MAX_DEATHS = 4
"""Deaths in a row without becoming ready after which the engine is given up."""
BACKOFF_SECONDS = 0.1
"""Before the second start in a row, and twice as long before each further one."""
STUCK_MARGIN_SECONDS = 10.0
"""Within which an engine that was silent for the step timeout should have been ended."""
SUSPECT_DEATHS = 2
MOST_DEATHS = 8
"""Of the engine in one request's life, even if it gets a token each time."""


class Submission:
    """A request in flight: its events as they come, and the tokens it has got so far."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.output_ids = list(request.output_ids)
        self.num_deaths = 0
        """Of the engine while it worked on this."""
        self.num_deaths_in_a_row = 0
        """Since this last got a token."""
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended = False

    def put(self, event: Event) -> None:
        self.num_deaths_in_a_row = 0
        self.output_ids += event.token_ids
        self._events.put_nowait(event)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._ended:
            raise StopAsyncIteration
        event = await self._events.get()
        self._ended = event.finish_reason is not None
        return event

    def resumed(self) -> Request:
        return msgspec.structs.replace(self.request, output_ids=self.output_ids)


class EngineClient:
    """Owns the engine process: starts it, restarts it, ends it, and routes its events."""

    def __init__(self, config: EngineConfig, *, command: Sequence[str] = COMMAND) -> None:
        self.recorder = FlightRecorder()
        self.num_restarts = 0
        self._config = config
        self._command = command
        self._status = EngineStatus("starting")
        self._info: EngineInfo | None = None
        self._stats = Stats()
        self._vocabulary: Vocabulary | None = None
        self._child: EngineChild | None = None  # set while it is ready
        self._startup = Stopwatch(time.monotonic)
        self._startup_phase = "process"
        self._startup_seconds: Mapping[str, float] = {}
        self._heard = 0.0
        """When the engine process reported last."""
        self._num_deaths = 0  # in a row, without becoming ready in between
        self._supervisor: asyncio.Task[None] | None = None
        self._submissions: dict[str, Submission] = {}
        self._trials: deque[Submission] = deque()  # the first is on, the others wait for it

    @property
    def status(self) -> EngineStatus:
        """Of an engine that should have been restarted, and isn't, that it is stuck."""
        if self._child is not None and time.monotonic() - self._heard > self._patience:
            return EngineStatus("stuck", f"it was silent for more than {self._patience:g} s")
        return self._status

    @property
    def _patience(self) -> float:
        return self._config.step_timeout + STUCK_MARGIN_SECONDS

    @property
    def info(self) -> EngineInfo | None:
        return self._info

    @property
    def startup_seconds(self) -> Mapping[str, float]:
        return self._startup_seconds

    @property
    def stats(self) -> Stats:
        return self._stats

    async def start(self, model_path: Path) -> None:
        self._supervisor = asyncio.create_task(self._supervise(model_path))

    async def stop(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        self._give_up(EngineStatus("stopped", "the server is stopping"))

    def learn(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        if self._child is not None:
            self._child.send(vocabulary)

    @asynccontextmanager
    async def submit(self, request: Request) -> AsyncIterator[AsyncIterator[Event]]:
        if self._child is None:
            raise EngineUnavailableError(f"the engine is {self._status.phase}")
        submission = self._submissions[request.id] = Submission(request)
        try:
            if self._trials:
                self._trials.append(submission)
            else:
                self._child.send(request)
            yield submission
        finally:
            unfinished = self._submissions.pop(request.id, None)
            if unfinished and self._child is not None:
                self._child.send(Abort(request.id))
            self._end_trial(submission)

    async def _supervise(self, model_path: Path) -> None:
        try:
            reason = await self._live(model_path)
        except Exception as error:
            log.exception("the engine can't be watched over any longer")
            reason = f"the server failed: {type(error).__name__}"
        log.critical("giving up: %s", reason)
        self._give_up(EngineStatus("failed", reason))

    async def _live(self, model_path: Path) -> str:
        """Through one engine process after the other, until none can be had; says why not."""
        while True:
            try:
                self._startup.restart()
                self._startup_phase = "process"
                async with spawn(model_path, self._config, command=self._command) as child:
                    return await self._follow(child)
            except EngineDiedError as death:
                reason = f"the engine process died: {death}"
            self._on_death(reason)
            if self._num_deaths == MAX_DEATHS:
                return reason
            log.error("%s; starting it again", reason)
            self.num_restarts += self._info is not None
            await asyncio.sleep(self._backoff_seconds)

    @property
    def _backoff_seconds(self) -> float:
        return BACKOFF_SECONDS * (2 ** (self._num_deaths - 1) - 1)

    async def _follow(self, child: EngineChild) -> str:
        """Take in one process's reports; returns only if it says that it can't run, and why."""
        while True:
            ready = self._child is child
            report = await child.receive(patience=self._config.step_timeout if ready else None)
            self._heard = time.monotonic()
            if isinstance(report, Failed):
                return report.message
            self._take(report, child)

    def _take(self, report: Loading | Ready | StepReport, child: EngineChild) -> None:
        if isinstance(report, StepReport):
            self._stats = report.stats
            if report.record is not None:
                self.recorder.add(report.record, report.stats)
            self._deliver(report.events)
        elif isinstance(report, Ready):
            self._on_ready(child, report.info)
        else:
            self._startup.lap(self._startup_phase)
            self._startup_phase = report.phase
            detail = f"{report.phase} {report.detail}".strip()
            self._status = EngineStatus("loading", detail, report.fraction)

    def _on_ready(self, child: EngineChild, info: EngineInfo) -> None:
        self._startup.lap(self._startup_phase)
        self._startup_seconds = self._startup.take()
        self._child = child
        self._info = info
        self._num_deaths = 0
        self._status = EngineStatus("ready", fraction=1.0)
        if self._vocabulary is not None:
            child.send(self._vocabulary)
        in_flight = list(self._submissions.values())
        if any(s.num_deaths_in_a_row >= SUSPECT_DEATHS for s in in_flight):
            self._trials.extend(sorted(in_flight, key=lambda s: -s.num_deaths_in_a_row))
            in_flight = [self._trials[0]]
        for submission in in_flight:
            child.send(submission.resumed())

    def _end_trial(self, submission: Submission) -> None:
        """It has got a token or has left: the next one's turn."""
        if submission not in self._trials:
            return
        was_on = submission is self._trials[0]
        self._trials.remove(submission)
        if was_on and self._trials and self._child is not None:
            self._child.send(self._trials[0].resumed())

    def _on_death(self, reason: str) -> None:
        if self._child is not None:  # while it loads, it works on no request
            self.recorder.log_last()
            self._charge_in_flight()
        self._child = None
        self._stats = Stats()
        self._num_deaths += 1
        self._status = EngineStatus("restarting", reason)

    def _charge_in_flight(self) -> None:
        waiting = list(self._trials)[1:]
        self._trials.clear()
        for submission in list(self._submissions.values()):
            if submission in waiting:
                continue
            submission.num_deaths += 1
            submission.num_deaths_in_a_row += 1
            in_a_row = submission.num_deaths_in_a_row
            if in_a_row > SUSPECT_DEATHS or submission.num_deaths == MOST_DEATHS:
                self._fail(submission, "the engine died each time it worked on this request")

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            submission = self._submissions.get(event.request_id)
            if submission is None:
                continue  # cancelled, while this event was on its way
            if event.finish_reason:
                del self._submissions[event.request_id]
            submission.put(event)
            self._end_trial(submission)

    def _fail(self, submission: Submission, message: str, reason: FinishReason = "error") -> None:
        name = submission.request.id
        self._deliver([Event(request_id=name, finish_reason=reason, message=message)])

    def _give_up(self, status: EngineStatus) -> None:
        self._child = None
        self._status = status
        for submission in list(self._submissions.values()):
            self._fail(submission, status.detail, "unavailable")

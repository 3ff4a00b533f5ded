"""The time of one sequence: until when it is waited for, and where its time went."""

import asyncio
import math
import time
from collections.abc import AsyncIterator

from service.engine.messages import Event, Timings
from service.metrics import Metrics
from service.tracing import Stage


class SequenceClock:
    """Measures when the tokens of one sequence come."""

    def __init__(self, arrived: float, metrics: Metrics) -> None:
        self._first: float | None = None
        self._last = arrived
        self._observe = metrics.first_token
        self._metrics = metrics
        self._engines: Timings | None = None
        self.stages: list[Stage] = []
        """Those that have ended; the engine tells of the first two with the first token."""

    def tick(self, event: Event) -> None:
        now = time.monotonic()
        if event.token_ids:
            self._observe(now - self._last)
            self._observe = self._metrics.next_token
            self._first = self._first or now
            self._last = now
        if event.timings is not None:
            self._take(event.timings, now)

    def _take(self, timings: Timings, now: float) -> None:
        if self._engines is None:
            admitted = now - timings.prefill_seconds
            arrived = admitted - timings.queue_seconds
            self.stages = [Stage("queue", arrived, admitted), Stage("prefill", admitted, now)]
            self._metrics.prefill_ended(
                queue_seconds=timings.queue_seconds, prefill_seconds=timings.prefill_seconds
            )
        self._engines = timings

    def end(self) -> None:
        """Nothing more will come."""
        if self._first is not None:
            self._metrics.decode_ended(self._last - self._first)
            self.stages.append(Stage("decode", self._first, self._last))

    @property
    def first_token_at(self) -> float:
        """On the monotonic clock; infinite while there is none."""
        return math.inf if self._first is None else self._first

    def as_dict(self) -> dict[str, object]:
        """Null where no token ever came."""
        first, engines = self._first, self._engines
        return {
            "queue_ms": None if engines is None else _ms(engines.queue_seconds),
            "prefill_ms": None if engines is None else _ms(engines.prefill_seconds),
            "decode_ms": None if first is None else _ms(self._last - first),
            "preemptions": None if engines is None else engines.num_preemptions,
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


class TimelyEvents:
    """A request's events up to the deadline, where an event of ours ends it with "length"."""

    def __init__(
        self, events: AsyncIterator[Event], request_id: str, deadline: float | None
    ) -> None:
        self.expired = False
        self._events = events
        self._request_id = request_id
        self._deadline = deadline

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """Only the wait for events is cut short, never the sending of what they bring."""
        if self._deadline is None:
            return await anext(self._events)
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            return self._expire()
        try:
            async with asyncio.timeout(seconds):
                return await anext(self._events)
        except TimeoutError:
            return self._expire()

    def _expire(self) -> Event:
        self.expired = True
        return Event(request_id=self._request_id, finish_reason="length")

"""How much may wait for the engine, and when to come back once no more may. Knows no clock.

A sequence waits from before it is submitted until its first news. Whoever calls brings the time,
in seconds of the monotonic clock.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

WINDOW_SECONDS = 30.0
MAX_RETRY_SECONDS = 600

Bound = Literal["queue_requests", "queue_tokens"]


class QueueFullError(Exception):
    """A call can't be taken; `bound` says which limit it would break."""

    def __init__(self, bound: Bound, num_waiting: int, limit: int, *, retry_after: int) -> None:
        what = "requests" if bound == "queue_requests" else "prompt tokens"
        super().__init__(f"{num_waiting} {what} wait already, and the limit is {limit}")
        self.bound: Bound = bound
        self.retry_after = retry_after
        """Whole seconds, in which what waits now should be under way."""


class Place:
    """One sequence's, until it leaves the queue."""

    def __init__(self, admission: "Admission", num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._admission: Admission | None = admission

    def leave(self, now: float, *, computed: bool) -> None:
        """The first time counts. What was given up, not computed, says nothing of the pace."""
        if self._admission is not None:
            self._admission.remove(self, now, computed=computed)
            self._admission = None


class Admission:
    """To the queue, which is bounded in sequences and in prompt tokens; a limit of 0 is none."""

    def __init__(
        self, *, max_requests: int, max_tokens: int, count_refusal: Callable[[Bound], None]
    ) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self._max_requests = max_requests or math.inf
        self._max_tokens = max_tokens or math.inf
        self._count_refusal = count_refusal
        self._begun = 0
        """Tokens done of prompts that still wait."""
        self._pace = _Pace()

    def admit(self, prompt_lens: Sequence[int], *, n: int, now: float) -> list[Place]:
        """A place for each of a call's sequences, or QueueFullError and none.

        The n sequences of a prompt share its computation, so that its tokens count once.
        """
        self.check(len(prompt_lens) * n, sum(prompt_lens), now)
        if not self.num_requests:
            self._pace.wake(now)
        places = [
            Place(self, num_tokens)
            for prompt_len in prompt_lens
            for num_tokens in (prompt_len, *[0] * (n - 1))
        ]
        self.num_requests += len(places)
        self.num_tokens += sum(prompt_lens)
        return places

    def check(self, num_requests: int, num_tokens: int, now: float) -> None:
        """Raises QueueFullError if these are too many more.

        Nothing is too much for an empty queue, or a call beyond the limits would never get through.
        """
        if not self.num_requests:
            return
        if self.num_requests + num_requests > self._max_requests:
            raise self._full("queue_requests", self.num_requests, self._max_requests, now)
        if self.num_tokens + num_tokens > self._max_tokens:
            raise self._full("queue_tokens", self.num_tokens, self._max_tokens, now)

    def progress(self, num_tokens: int) -> None:
        """The engine has got through so many tokens of prompts, be it of some that still wait."""
        self._begun = min(self._begun + num_tokens, self.num_tokens)

    def _full(self, bound: Bound, num_waiting: int, limit: float, now: float) -> QueueFullError:
        self._count_refusal(bound)
        seconds = math.ceil(self._pace.seconds_for(self.num_tokens, now, begun=self._begun))
        retry_after = min(max(seconds, 1), MAX_RETRY_SECONDS)
        return QueueFullError(bound, num_waiting, int(limit), retry_after=retry_after)

    def remove(self, place: Place, now: float, *, computed: bool) -> None:
        self.num_requests -= 1
        self.num_tokens -= place.num_tokens
        if computed:
            self._pace.count(place.num_tokens, now)
            self._begun -= place.num_tokens
        self._begun = max(min(self._begun, self.num_tokens), 0)


class _Pace:
    """How fast prompts get done, by what left the queue while somebody waited in it.

    That is the queue's own measure: it has in it what running sequences take of the engine, what
    the prefix cache saves, and what is computed twice. Time with nobody waiting doesn't count, or
    a quiet night would look like slow work.
    """

    def __init__(self) -> None:
        self._departures: deque[tuple[float, int]] = deque()  # seconds since the last, tokens
        self._seconds = 0.0
        self._num_tokens = 0
        self._last = 0.0

    def wake(self, now: float) -> None:
        """Somebody waits again."""
        self._last = now

    def count(self, num_tokens: int, now: float) -> None:
        self._add(now - self._last, num_tokens)
        self._last = now
        while self._seconds - self._departures[0][0] > WINDOW_SECONDS:
            seconds, num_tokens = self._departures.popleft()
            self._seconds -= seconds
            self._num_tokens -= num_tokens

    def _add(self, seconds: float, num_tokens: int) -> None:
        self._departures.append((seconds, num_tokens))
        self._seconds += seconds
        self._num_tokens += num_tokens

    def seconds_for(self, num_tokens: int, now: float, *, begun: int) -> float:
        """0 while nothing was measured. What isn't through yet counts by what is done of it, and
        by its time, so that a stuck engine's promises get longer."""
        num_done = self._num_tokens + begun
        return num_tokens * (self._seconds + now - self._last) / num_done if num_done else 0.0

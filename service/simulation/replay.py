"""Plays a trace through the engine, whose clock jumps to the next arrival whenever it is idle.

The engine is the one that serves; only its runner is another. Knows no files and prints nothing.
"""

from collections import deque
from collections.abc import Sequence

from service.engine.engine import Engine
from service.engine.messages import Request
from service.simulation.machine import FILL, VirtualClock
from service.simulation.tally import Tally
from service.simulation.trace import BLOCK_SIZE, TracedRequest


class Prompts:
    """Makes token ids that begin alike where the trace says so, and nowhere else."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}  # by hash id
        self._last_token = FILL

    def ids(self, traced: TracedRequest) -> list[int]:
        ids: list[int] = []
        for hash_id in traced.hash_ids:
            if hash_id not in self._tokens:
                self._tokens[hash_id] = self._new_token()
            ids += [self._tokens[hash_id]] * BLOCK_SIZE
        del ids[traced.prompt_len :]
        num_own = traced.prompt_len - len(ids)
        if num_own:
            ids += [self._new_token(), *[FILL] * (num_own - 1)]
        return ids

    def _new_token(self) -> int:
        self._last_token += 1
        return self._last_token


def replay(trace: Sequence[TracedRequest], engine: Engine, clock: VirtualClock) -> Tally:
    """Until all of the trace, in order of arrival, has ended."""
    tally, prompts, coming = Tally(), Prompts(), deque(enumerate(trace))
    while coming or engine.has_work:
        if not engine.has_work:
            clock.now = max(clock.now, coming[0][1].arrival)
        while coming and coming[0][1].arrival <= clock.now:
            index, traced = coming.popleft()
            engine.add(make_request(str(index), traced, prompts))
            tally.enter(str(index), traced, now=clock.now)
        started = clock.now
        events = engine.step()
        tally.observe(events, now=clock.now)
        if engine.record:
            tally.count(engine.record, engine.stats, seconds=clock.now - started)
        assert events or engine.record, "an engine with work gets on"
    return tally


def make_request(request_id: str, traced: TracedRequest, prompts: Prompts) -> Request:
    return Request(
        id=request_id,
        prompt_ids=prompts.ids(traced),
        max_tokens=traced.output_len,
        tenant=traced.tenant,
        weight=traced.weight,
        priority=traced.priority,
    )

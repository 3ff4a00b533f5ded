"""The engine core: requests in, a step at a time, events out. Synchronous, without I/O or torch.

add, abort --> scheduler.schedule() --> runner.run(batch) --> scheduler.commit(output) --> events

With a runner that has a device of its own, step N+1 is scheduled and launched while that computes
step N, whose output is committed then.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from typing import NamedTuple

from model.batch import Batch, Collect, OverlappingRunner, Runner
from service.engine.blocks import BlockManager
from service.engine.grammar import Constraint, Grammars
from service.engine.messages import EngineInfo, Event, Request, Stats, StepRecord, Vocabulary
from service.engine.scheduler import Scheduler
from service.engine.sequence import Sequence
from service.engine.stopwatch import Stopwatch

LINGER_SECONDS = 0.001
"""For grammars that are being compiled; then others may have come, or left."""

Clock = Callable[[], float]
"""Gives seconds; never goes backwards."""


class Launch(NamedTuple):
    batch: Batch
    started: float
    collect: Collect


class Engine:
    def __init__(
        self,
        runner: Runner,
        *,
        max_batch_tokens: int,
        max_sequences: int,
        speculative: bool = False,
        overlap: bool = True,
        clock: Clock = time.monotonic,
    ) -> None:
        self.stopwatch = Stopwatch(clock)
        self.record: StepRecord | None = None
        """Of the last step, if that computed something."""
        self._runner = runner
        self._blocks = BlockManager(runner.num_pages, page_size=runner.page_size)
        self._scheduler = Scheduler(
            self._blocks,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            speculative=speculative,
        )
        self._grammars: Grammars | None = None
        self._compiling: dict[str, tuple[Sequence, Constraint]] = {}  # by request, in order
        self._clock = clock
        self._events: list[Event] = []
        self._num_arrivals = 0
        self._num_steps = 0
        can_overlap = isinstance(runner, OverlappingRunner) and not speculative
        self._most_launched = 2 if overlap and can_overlap else 1
        self._launches: deque[Launch] = deque()
        self._collected_at = clock()

    @property
    def info(self) -> EngineInfo:
        runner = self._runner
        return EngineInfo(
            max_model_len=min(runner.max_model_len, runner.num_pages * runner.page_size),
            vocab_size=runner.vocab_size,
            page_size=runner.page_size,
            num_pages=runner.num_pages,
            device=runner.device,
            attention=runner.attention,
        )

    @property
    def stats(self) -> Stats:
        return Stats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting) + len(self._compiling),
            num_free_pages=self._blocks.num_free,
            num_pages=self._blocks.num_pages,
        )

    @property
    def has_work(self) -> bool:
        return bool(self._is_computing or self._compiling)

    @property
    def _is_computing(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting or self._launches)

    def learn(self, vocabulary: Vocabulary) -> None:
        """Before the first request with a grammar."""
        self._grammars = Grammars(vocabulary)

    def rest(self) -> None:
        """Call when there is no work: does what would hold up requests later."""
        self.check_integrity()
        if self._grammars is not None:
            self._grammars.prepare()

    def add(self, request: Request) -> None:
        """Queue a request. One that can never run is refused by an event in the next step."""
        if problem := self._problem(request):
            refusal = Event(request_id=request.id, finish_reason="refused", message=problem)
            self._events.append(refusal)
            return
        constraint = self._constraint(request)
        sequence = Sequence(
            request, arrival=self._num_arrivals, now=self._clock(), constraint=constraint
        )
        self._num_arrivals += 1
        if constraint:
            self._compiling[request.id] = sequence, constraint
        else:
            self._scheduler.add(sequence)

    def _constraint(self, request: Request) -> Constraint | None:
        if not request.grammar:
            return None
        assert self._grammars is not None, "a grammar before the vocabulary"
        return self._grammars.start(request.grammar, request.output_ids)

    def _problem(self, request: Request) -> str:
        """Why a request can never run; empty if it can. The routes refuse such requests earlier."""
        info = self.info
        num_tokens = len(request.prompt_ids) + request.max_tokens
        asks_about_prompt = request.num_prompt_logprobs is not None or request.pooling
        if not request.prompt_ids or request.max_tokens < (not asks_about_prompt):
            return "a request needs at least one prompt token and one token to generate"
        if num_tokens > info.max_model_len:
            return f"{num_tokens} tokens of prompt and output exceed {info.max_model_len}"
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < info.vocab_size:
            return f"a prompt token is outside the vocabulary of {info.vocab_size}"
        return ""

    def abort(self, request_id: str) -> None:
        """End a request now and free its pages; one that has ended already is left in peace."""
        if self._compiling.pop(request_id, None) or self._scheduler.remove(request_id):
            self._events.append(Event(request_id=request_id, finish_reason="cancelled"))

    def step(self) -> list[Event]:
        """Compute one batch, if there is work, and return all news since the last step."""
        self._queue_compiled()
        started = self._clock()
        batch = self._scheduler.schedule(now=started)
        self.stopwatch.lap("schedule")
        if batch.rows:
            self._launches.append(Launch(batch, started, self._launched(batch)))
        is_full = len(self._launches) == self._most_launched
        can_collect = self._launches and (is_full or not batch.rows)
        self.record = self._collect(self._launches.popleft()) if can_collect else None
        events, self._events = self._events, []
        return events

    def _queue_compiled(self) -> None:
        """Those whose grammar is ready. Lingers only where there is nothing else to do."""
        if self._compiling and not self._is_computing:
            wait(
                (constraint.work for _, constraint in self._compiling.values()),
                LINGER_SECONDS,
                FIRST_COMPLETED,
            )
        for request_id, (sequence, constraint) in list(self._compiling.items()):
            if constraint.work.done():
                del self._compiling[request_id]
                self._scheduler.add(sequence)

    def _launched(self, batch: Batch) -> Collect:
        if self._grammars is not None:
            self._grammars.find()
        if self._most_launched > 1 and isinstance(self._runner, OverlappingRunner):
            return self._runner.launch(batch)
        output = self._runner.run(batch)
        return lambda: output

    def _collect(self, launch: Launch) -> StepRecord:
        batch, started, collect = launch
        num_decodes = sum(len(row.token_ids) == 1 for row in batch.rows)
        num_chunk_tokens = sum(len(row.token_ids) for row in batch.rows) - num_decodes
        output = collect()
        self.stopwatch.lap("run", parts=output.phase_seconds)
        now = self._clock()
        self._scheduler.pace.observe(
            num_decodes=num_decodes,
            num_prompt_tokens=num_chunk_tokens,
            seconds=now - max(started, self._collected_at),
        )
        self._collected_at = now
        self._events += self._scheduler.commit(output, now=now)
        self._num_steps += 1
        self.stopwatch.lap("commit")
        counts = self._scheduler.take_counts()
        return StepRecord(
            number=self._num_steps,
            started=started,
            num_decodes=num_decodes,
            num_chunks=len(batch.rows) - num_decodes,
            num_chunk_tokens=num_chunk_tokens,
            num_admitted=counts.admitted,
            num_preempted=counts.preempted,
            num_finished=counts.finished,
            num_queried_tokens=counts.queried_tokens,
            num_hit_tokens=counts.hit_tokens,
            num_copied_pages=len(batch.copies),
            num_guessed_tokens=counts.guessed,
            num_true_guesses=counts.guessed_true,
            phase_seconds=self.stopwatch.take(),
        )

    def check_integrity(self) -> None:
        """Assert that no page is lost, held twice by one, or held by nobody who runs."""
        self._blocks.check_integrity(self._scheduler.page_tables)
        assert not any(s.page_ids for s in self._scheduler.waiting), (
            "a waiting sequence holds pages"
        )

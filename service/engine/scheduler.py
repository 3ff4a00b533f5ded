"""Decides what each step computes. Two queues, two verbs, integers only: no tensors, text or clock.

A step takes at most `max_batch_tokens` tokens: running decodes first, then chunks of running
prompts, then waiting requests in order of arrival. A request is admitted once pages for all its
known tokens are at hand; afterwards it grows page by page. When pages are short, the youngest
running sequence is preempted: it gives back its pages, waits again at the front, and is recomputed
later. The oldest can always go on, since every accepted request fits the pool alone; so all finish.
"""

from collections import deque

from model.batch import Batch, SampledToken, StepOutput
from service.engine.blocks import BlockManager
from service.engine.messages import Event
from service.engine.sequence import Sequence


class Scheduler:
    def __init__(self, blocks: BlockManager, *, max_batch_tokens: int, max_sequences: int) -> None:
        self.blocks = blocks
        self.max_batch_tokens = max_batch_tokens
        self.max_sequences = max_sequences
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._plan: dict[Sequence, int] = {}

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, request_id: str) -> bool:
        """Forget a request between two steps and free its pages; False if it isn't here."""
        queues: tuple[deque[Sequence] | list[Sequence], ...] = (self.running, self.waiting)
        for queue in queues:
            for sequence in queue:
                if sequence.request.id == request_id:
                    queue.remove(sequence)
                    self.blocks.release(sequence.page_ids)
                    return True
        return False

    def schedule(self) -> Batch:
        """Choose the next step's rows and reserve their pages."""
        self._plan = {}
        budget = self.max_batch_tokens
        for sequence in sorted(self.running, key=lambda s: s.num_pending > 1):  # decodes first
            budget -= self._plan_running(sequence, budget)
        while budget and self.waiting and len(self.running) < self.max_sequences:
            num_planned = self._admit(self.waiting[0], budget)
            if not num_planned:
                break
            budget -= num_planned
        return Batch([sequence.row(num) for sequence, num in self._plan.items()])

    def commit(self, output: StepOutput) -> list[Event]:
        """Take in what the step computed: tokens, finished sequences, full pages."""
        events = []
        for (sequence, num), sampled in zip(self._plan.items(), output.sampled, strict=True):
            self._advance(sequence, num)
            if sampled is not None:
                events.append(self._append(sequence, sampled))
        return events

    def _plan_running(self, sequence: Sequence, budget: int) -> int:
        """Plan a running sequence's share, preempting younger ones for pages; how many tokens."""
        num = min(sequence.num_pending, budget)
        while num and sequence in self.running:
            if self.blocks.grow(sequence.page_ids, num_tokens=sequence.num_computed + num):
                self._plan[sequence] = num
                return num
            self._preempt(max(self.running, key=lambda s: s.arrival))
        return 0

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._plan.pop(sequence, None)
        self.blocks.release(sequence.page_ids)
        sequence.num_computed = 0
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _admit(self, sequence: Sequence, budget: int) -> int:
        """Let the first waiting sequence run if pages for all its known tokens are at hand."""
        page_size = self.blocks.page_size
        num_full = (sequence.num_tokens - 1) // page_size  # its last token is always computed
        self.blocks.share(sequence.page_ids, sequence.page_hashes(num_full, page_size=page_size))
        num_cached = len(sequence.page_ids) * page_size
        if not self.blocks.grow(sequence.page_ids, num_tokens=sequence.num_tokens):
            self.blocks.release(sequence.page_ids)
            return 0
        self.running.append(self.waiting.popleft())
        sequence.num_computed = num_cached
        if sequence.num_cached is None:  # later, some of it may be the sequence's own work
            sequence.num_cached = num_cached
        self._plan[sequence] = min(sequence.num_pending, budget)
        return self._plan[sequence]

    def _advance(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens as computed and name the pages that they filled."""
        page_size = self.blocks.page_size
        first = sequence.num_computed // page_size
        sequence.num_computed += num_tokens
        num_full = sequence.num_computed // page_size
        hashes = sequence.page_hashes(num_full, page_size=page_size)
        for index in range(first, num_full):
            self.blocks.name(sequence.page_ids[index], hashes[index])

    def _append(self, sequence: Sequence, sampled: SampledToken) -> Event:
        """Add the new token; a finished sequence leaves and its pages are free at once."""
        sequence.token_ids.append(sampled.token_id)
        reason = sequence.finish_reason
        if reason:
            self.running.remove(sequence)
            self.blocks.release(sequence.page_ids)
        return Event(
            request_id=sequence.request.id,
            token_ids=[sampled.token_id],
            logprobs=[sampled.logprobs] if sampled.logprobs else [],
            num_cached_tokens=(sequence.num_cached or 0) if sequence.num_output == 1 else 0,
            finish_reason=reason,
        )

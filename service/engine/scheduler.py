"""Decides what each step computes. Two queues, two verbs, integers only: no tensors or text.

A step takes at most `max_batch_tokens` tokens: running decodes first, then chunks of running
prompts, then waiting requests, as the queue orders them. Beside decodes, prompts get what `pace`
allows. A request is admitted once pages for all its known tokens are at hand, or are being filled
by another that began with the same ones; afterwards it grows page by page. When pages are short,
the youngest running sequence is preempted: it gives back its pages, waits again before all others,
and is recomputed later. The oldest can always go on, since every accepted request fits the pool
alone; so all finish.

A step may be scheduled while the one before it is computed: sequences whose next token that one
draws go on with it, unknown as it is. None is preempted then; where pages were short, the next step
is empty, so that the one after it can preempt.
"""

from collections.abc import Sequence as ListLike

from model.batch import Batch, SampledToken, StepOutput
from service.engine.blocks import BlockManager
from service.engine.grammar import GrammarError
from service.engine.in_flight import InFlight
from service.engine.launched import Launched, Step
from service.engine.messages import Event
from service.engine.pace import Pace
from service.engine.queue import WaitingQueue
from service.engine.sequence import Sequence

SPECULATIVE_TOKENS = 16
"""Decodes and guesses of a step. About as many take little longer than one, for the weights have to
be read all the same."""


class Counts:
    """What happened since they were last taken."""

    def __init__(self) -> None:
        self.admitted = 0
        self.preempted = 0
        self.finished = 0
        self.guessed = 0
        self.guessed_true = 0
        self.queried_tokens = 0
        self.hit_tokens = 0


class Scheduler:
    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_batch_tokens: int,
        max_sequences: int,
        speculative: bool = False,
    ) -> None:
        self.blocks = blocks
        self.speculative = speculative
        self.pace = Pace()
        self.max_batch_tokens = max_batch_tokens
        self.max_sequences = max_sequences
        self.waiting = WaitingQueue()
        self.running: dict[str, Sequence] = {}  # by request, in order of admission
        self._counts = Counts()
        self._launched = Launched()
        self._is_short = False
        """Whether one must be preempted, which waits until nothing is being computed."""
        self._in_flight = InFlight(page_size=blocks.page_size)
        self._plan: dict[Sequence, int] = {}
        self._guesses: dict[Sequence, ListLike[int]] = {}
        self._copies: dict[Sequence, tuple[int, int]] = {}

    @property
    def page_tables(self) -> list[list[int]]:
        """All pages that aren't free or cached."""
        return [*(s.page_ids for s in self.running.values()), *self._launched.given_back]

    def add(self, sequence: Sequence) -> None:
        sequence.fix_prefix(page_size=self.blocks.page_size)
        self.waiting.push(sequence)

    def remove(self, request_id: str) -> bool:
        """Forget a request between two steps and free its pages; False if it isn't here."""
        sequence = self.running.get(request_id)
        if sequence is None:
            return self.waiting.remove(request_id) is not None
        self._leave(sequence)
        return True

    def schedule(self, *, now: float = 0.0) -> Batch:
        """Choose the next step's rows and reserve their pages; `now` is kept as a time stamp."""
        self._plan, self._guesses, self._copies = {}, {}, {}
        if self._launched and self._is_short:
            return Batch([])
        self._is_short = False
        ready = [s for s in self.running.values() if not s.awaits_token]
        decodes = [s for s in ready if s.num_pending == 1]
        chunks = [s for s in ready if s.num_pending > 1]
        budget = self._plan_all(decodes, self.max_batch_tokens)
        self._plan_prompts(chunks, budget, now=now)
        if self.speculative and not any(num > 1 for num in self._plan.values()):
            self._guess()
        return self._launch()

    def _plan_prompts(self, chunks: list[Sequence], budget: int, *, now: float) -> None:
        """Of those that run, then of those that wait."""
        if self._plan:
            num_prompts = len(chunks) + len(self.waiting)
            most = self.pace.num_prompt_tokens(len(self._plan), num_prompts=num_prompts)
            budget = min(budget, most)
        budget = self._plan_all(chunks, budget)
        while budget and len(self.running) < self.max_sequences:
            sequence = self.waiting.peek()
            if sequence is None or not self._admit(sequence, now=now):
                break
            budget -= self._plan_running(sequence, budget)

    def _launch(self) -> Batch:
        if not self._plan:
            return Batch([])
        drawing = self._launched.rows()
        rows = [
            s.row(num, self._guesses.get(s, ()), drawing.get(s)) for s, num in self._plan.items()
        ]
        self._launched.add(Step(self._plan, self._guesses))
        return Batch(rows, list(self._copies.values()))

    def commit(self, output: StepOutput, *, now: float = 0.0) -> list[Event]:
        """Take in what the first step launched computed: tokens, finished sequences, full pages."""
        events = []
        step = self._launched.take()
        for row, (sequence, num) in enumerate(step.plan.items()):
            if self.running.get(sequence.request.id) is not sequence:
                continue  # it has ended, and this row was in vain
            if row in output.scores:
                sequence.prompt_logprobs[sequence.num_computed :] = output.scores[row]
            if row in output.pooled:
                sequence.pool(output.pooled[row])
            self._advance(sequence, num)
            sampled = output.sampled[row]
            sequence.num_launched -= num
            if sampled is not None or sequence.num_computed == len(sequence.token_ids):
                sequence.num_unknown -= sampled is not None
                followers = output.followers.get(row, ())
                self._learn(sequence, len(step.guesses.get(sequence, ())), len(followers))
                tokens = [sampled, *followers] if sampled else []
                events.append(self._extend(sequence, tokens, now=now))
        self.blocks.release(step.given_back)
        return events

    def take_counts(self) -> Counts:
        taken, self._counts = self._counts, Counts()
        return taken

    def _plan_all(self, sequences: list[Sequence], budget: int) -> int:
        """Plan what the budget allows; how much of it is left."""
        for sequence in sequences:
            if budget and sequence.request.id in self.running:
                budget -= self._plan_running(sequence, budget)
        return budget

    def _plan_running(self, sequence: Sequence, budget: int) -> int:
        """Plan a running sequence's share, preempting younger ones for pages; how many tokens."""
        if not sequence.has_room and self._awaits_another(sequence):
            return 0
        while not self._hold_pages(sequence):
            if self._launched:
                self._is_short = True
                return 0
            youngest = max(self.running.values(), key=lambda s: s.arrival)
            self._preempt(youngest)
            if youngest is sequence:
                return 0
        self._plan[sequence] = min(sequence.num_pending, budget)
        return self._plan[sequence]

    def _guess(self) -> None:
        """Let sequences guess beside their decodes, while a step is too small to take longer."""
        left = min(SPECULATIVE_TOKENS, self.max_batch_tokens) - len(self._plan)
        for sequence in self._plan:
            guesses = sequence.guesses(most=left)
            num_tokens = sequence.num_tokens + len(guesses)
            if guesses and self.blocks.grow(sequence.page_ids, num_tokens=num_tokens):
                self._guesses[sequence] = guesses
                left -= len(guesses)

    def _learn(self, sequence: Sequence, num_guessed: int, num_true: int) -> None:
        if num_guessed:
            sequence.lookup.learn(num_guessed, num_true)
            self._counts.guessed += num_guessed
            self._counts.guessed_true += num_true

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence)
        self._plan.pop(sequence, None)
        self._copies.pop(sequence, None)
        sequence.num_preemptions += 1
        sequence.fix_prefix(page_size=self.blocks.page_size)
        self.waiting.put_back(sequence)
        self._counts.preempted += 1

    def _leave(self, sequence: Sequence) -> None:
        del self.running[sequence.request.id]
        self._in_flight.forget(sequence)
        if self._launched:
            self._launched.keep(sequence.page_ids)
        else:
            self.blocks.release(sequence.page_ids)
        sequence.num_computed = sequence.num_launched = sequence.num_unknown = 0
        sequence.has_room = False

    def _admit(self, sequence: Sequence, *, now: float) -> bool:
        """Let the next waiting sequence run, unless pages lack."""
        if not self._awaits_another(sequence) and not self._hold_pages(sequence):
            self.blocks.release(sequence.page_ids)
            return False
        self.waiting.take()
        self.running[sequence.request.id] = sequence
        self._counts.admitted += 1
        if sequence.num_preemptions == 0:
            sequence.admitted = now
        return True

    def _awaits_another(self, sequence: Sequence) -> bool:
        """Take all pages that are computed; whether the next one is being computed by another."""
        names, page_ids = sequence.prefix_names, sequence.page_ids
        num_full = sequence.prefix_len // self.blocks.page_size
        self.blocks.share(page_ids, names[len(page_ids) : num_full])
        sequence.num_computed = len(page_ids) * self.blocks.page_size
        return len(page_ids) < len(names) and self._in_flight.is_coming(names[len(page_ids)])

    def _hold_pages(self, sequence: Sequence) -> bool:
        """For all its known tokens. False, changing nothing, if pages lack."""
        num_found = len(sequence.page_ids)
        if not self.blocks.grow(sequence.page_ids, num_tokens=sequence.num_tokens):
            return False
        if not sequence.has_room:
            self._copy_tail(sequence, num_found)
            self._settle(sequence)
        return True

    def _copy_tail(self, sequence: Sequence, num_found: int) -> None:
        """Copy a running sequence's page if it is all that the prefix still lacks."""
        names = sequence.prefix_names
        if num_found != len(names) - 1 or sequence.prefix_len % self.blocks.page_size == 0:
            return
        page = self._in_flight.page(names[-1])
        if page is not None:
            self._copies[sequence] = page, sequence.page_ids[num_found]
            sequence.num_computed = sequence.prefix_len

    def _settle(self, sequence: Sequence) -> None:
        sequence.has_room = True
        self._in_flight.announce(sequence)
        if sequence.num_cached is None:  # later, some of it may be the sequence's own work
            sequence.num_cached = sequence.num_computed
            self._counts.queried_tokens += sequence.num_tokens
            self._counts.hit_tokens += sequence.num_computed
            self.waiting.charge(sequence, -sequence.num_computed)

    def _advance(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens as computed and name the pages that they filled."""
        page_size = self.blocks.page_size
        first = sequence.num_computed // page_size
        sequence.num_computed += num_tokens
        num_full = sequence.num_computed // page_size
        if first < num_full:
            hashes = sequence.page_hashes(num_full, page_size=page_size)
            for index in range(first, num_full):
                self.blocks.name(sequence.page_ids[index], hashes[index])

    def _extend(self, sequence: Sequence, tokens: list[SampledToken], *, now: float) -> Event:
        """Append its new tokens, up to one that ends it, and tell. All but the last one were
        guessed, and so are computed."""
        new: list[SampledToken] = []
        try:
            for token in tokens:
                if new:
                    self._advance(sequence, 1)
                sequence.append(token.token_id)
                self.waiting.charge(sequence, 1)
                new.append(token)
                if sequence.finish_reason:
                    break
        except GrammarError as error:
            self._leave(sequence)
            return Event(
                request_id=sequence.request.id, finish_reason="refused", message=str(error)
            )
        return self._event(sequence, new, now=now)

    def _event(self, sequence: Sequence, new: list[SampledToken], *, now: float) -> Event:
        request, num_output = sequence.request, sequence.num_output
        is_first = num_output - len(new) <= len(request.output_ids)
        if is_first:
            sequence.got_first_token = now
        reason = sequence.finish_reason
        if reason:
            self._leave(sequence)
            self._counts.finished += 1
        return Event(
            request_id=request.id,
            token_ids=[token.token_id for token in new],
            logprobs=[token.logprobs for token in new if token.logprobs],
            prompt_logprobs=sequence.prompt_logprobs if is_first else (),
            embedding=sequence.embedding if reason else (),
            num_cached_tokens=(sequence.num_cached or 0) if num_output <= len(new) else 0,
            finish_reason=reason,
            timings=sequence.timings if reason or is_first else None,
        )

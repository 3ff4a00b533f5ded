"""One request's state while the engine works on it: its tokens, and which of them are computed.

token_ids   p p p p p p p p o o o ?      prompt, then output; num_unknown: ?, which is being drawn
            `--------' `-' `-----'
     num_computed    |      num_pending  (one pending token: a decode; more: a prompt chunk)
                num_launched             in steps that are being computed
"""

from collections.abc import Callable, Sequence as ListLike

from model.batch import UNKNOWN, Context, Row, Scoring, TokenLogprobs
from service.engine.blocks import page_hash, root_hash
from service.engine.grammar import Constraint
from service.engine.lookup import Lookup
from service.engine.messages import FinishReason, Request, Timings


class Sequence:
    def __init__(
        self, request: Request, *, arrival: int, now: float, constraint: Constraint | None = None
    ) -> None:
        self.request = request
        self.arrival = arrival
        """Its place in the order of arrivals; the youngest is preempted first."""
        self.token_ids = [*request.prompt_ids, *request.output_ids]
        self.page_ids: list[int] = []
        self.prefix_len = 0
        """Of its tokens, those that may be found computed: all known when it was queued, but one,
        since the last token is always computed."""
        self.prefix_names: list[bytes] = []
        """The names of the prefix's pages; the last one isn't full, or the prefix ends with it."""
        self.num_computed = 0
        self.num_launched = 0
        self.num_unknown = 0
        self.has_room = False
        """Whether it holds pages for all its known tokens; else only those it found computed."""
        self.num_cached: int | None = None
        """Tokens that the prefix cache supplied when it first ran; None: not yet."""
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.embedding: list[float] = []
        """Of the tokens computed so far."""
        self.lookup = Lookup()
        self.num_preemptions = 0
        self.arrived = now
        self.admitted = 0.0
        self.got_first_token = 0.0
        self._page_hashes: list[bytes] = []
        self._constraint = constraint
        self._allowed = constraint.allowed if constraint else _always(request.allowed)
        self._has_context = bool(
            constraint is not None
            or request.sampling.has_penalty
            or request.allowed is not None
            or request.min_tokens
            or request.bad_words
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_unknown

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def num_pending(self) -> int:
        return self.num_tokens - self.num_computed - self.num_launched

    @property
    def awaits_token(self) -> bool:
        """Whether it can't go on before the token that is being drawn is known: that is the last
        one, or has a say in what may follow."""
        is_last = self.num_output + self.num_unknown >= self.request.max_tokens
        return self.num_unknown > 0 and (is_last or self._has_context)

    @property
    def scores_prompt(self) -> bool:
        """Whether logprobs of its prompt are still to be told."""
        return self.request.num_prompt_logprobs is not None and self.num_output == 0

    @property
    def skips_nothing(self) -> bool:
        """Whether what it asks for needs all its tokens computed, and nothing from the cache."""
        return self.scores_prompt or self.request.pooling == "mean"

    def pool(self, vector: ListLike[float]) -> None:
        """Take in the vector of a row; call before its tokens count as computed."""
        if self.request.pooling == "last" or self.num_computed == 0:
            self.embedding = list(vector)
            return
        self.embedding = [a + b for a, b in zip(self.embedding, vector, strict=True)]

    @property
    def finish_reason(self) -> FinishReason | None:
        if self.num_output and self.token_ids[-1] in self.request.stop_token_ids:
            return "stop"
        return "length" if self.num_output >= self.request.max_tokens else None

    def append(self, token_id: int) -> None:
        """Raises GrammarError if its grammar has no place for the token."""
        self.token_ids.append(token_id)
        if self._constraint is not None:
            self._constraint.push([token_id])

    def guesses(self, *, most: int) -> ListLike[int]:
        """What may follow its tokens; nothing if penalties, a grammar and the like have a say in
        that. It never goes on beyond max_tokens."""
        if self._has_context:
            return ()
        left = self.request.max_tokens - self.num_output - 1
        return self.lookup.guess(self.token_ids, most=min(most, left))

    def row(self, num_tokens: int, guesses: ListLike[int] = (), drawn_by: int | None = None) -> Row:
        """The next num_tokens pending tokens as a row; the last pending token brings a new one,
        unless none is wanted. drawn_by: the row of the step before that draws the unknown one."""
        start = self.num_computed + self.num_launched
        end = start + num_tokens
        draws = self._draws_at(end)
        return Row(
            [UNKNOWN] if self.num_unknown else self.token_ids[start:end],
            start,
            self.page_ids,
            self.request.sampling if draws else None,
            self._context() if draws else None,
            self._scoring(start, end) if self.scores_prompt else None,
            self.request.pooling,
            guesses,
            drawn_by if self.num_unknown else None,
        )

    def launch(self, num_tokens: int) -> None:
        """They are being computed from now on, and with the last one known another is drawn."""
        self.num_launched += num_tokens
        self.num_unknown += self._draws_at(self.num_computed + self.num_launched)

    def _draws_at(self, end: int) -> bool:
        return end == self.num_tokens and self.request.max_tokens > 0

    def _context(self) -> Context | None:
        if not self._has_context:
            return None
        return Context(
            known_ids=self.token_ids,
            prompt_len=len(self.request.prompt_ids),
            forbidden_ids=self._forbidden_ids(),
            allowed=self._allowed,
        )

    def _forbidden_ids(self) -> set[int]:
        """What may not come next."""
        too_short = self.num_output < self.request.min_tokens
        forbidden = set(self.request.stop_token_ids) if too_short else set()
        for word in self.request.bad_words:
            *start, last = word
            if self._ends_with(start):
                forbidden.add(last)
        return forbidden

    def _ends_with(self, token_ids: ListLike[int]) -> bool:
        """Whether the output does."""
        first = len(self.token_ids) - len(token_ids)
        return first >= len(self.request.prompt_ids) and self.token_ids[first:] == token_ids

    def _scoring(self, start: int, end: int) -> Scoring | None:
        """Of the prompt's tokens that follow those from `start` to `end`."""
        known = self.token_ids[start + 1 : end + 1]
        num_logprobs = self.request.num_prompt_logprobs
        return Scoring(known, num_logprobs) if known and num_logprobs is not None else None

    def fix_prefix(self, *, page_size: int) -> None:
        """Call before it is queued, for the first time or again with more known tokens."""
        self.prefix_len = 0 if self.skips_nothing else len(self.token_ids) - 1
        num_full = self.prefix_len // page_size
        self.prefix_names = self.page_hashes(num_full, page_size=page_size)
        tail = self.token_ids[num_full * page_size : self.prefix_len]
        if tail:
            self.prefix_names.append(self._hash(num_full, tail))

    def page_hashes(self, num_pages: int, *, page_size: int) -> list[bytes]:
        """The names of the first num_pages pages, which must be full of known tokens."""
        hashes = self._page_hashes
        while len(hashes) < num_pages:
            start = len(hashes) * page_size
            hashes.append(self._hash(len(hashes), self.token_ids[start : start + page_size]))
        return hashes[:num_pages]

    def _hash(self, index: int, token_ids: list[int]) -> bytes:
        parent = self._page_hashes[index - 1] if index else root_hash(self.request.cache_salt)
        return page_hash(parent, token_ids)

    @property
    def timings(self) -> Timings:
        return Timings(
            queue_seconds=self.admitted - self.arrived,
            prefill_seconds=self.got_first_token - self.admitted,
            num_preemptions=self.num_preemptions,
        )


def _always(allowed: bytes | None) -> Callable[[], bytes] | None:
    return None if allowed is None else lambda: allowed

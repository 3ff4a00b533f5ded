"""Grammars that constrain what a sequence generates: which tokens may come next. Knows no requests.

The only file of the engine that knows llguidance. A grammar comes in llguidance's own form and was
tried by the API process before; here it is followed, token by token. Other threads do what takes
its time, for which llguidance lets go of Python's lock: they compile a grammar while steps go on
without it, and find what may come next while the model computes how likely that is.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from service.engine.messages import Vocabulary

LIMITS = LLParserLimits(step_lexer_fuel=200_000, step_max_items=50_000, max_lexer_states=50_000)
"""Of what a step may compute, some 15 ms each, and of memory, some 100 MB."""


class GrammarError(ValueError):
    """A grammar that can't be followed any further; the message is for who sent it."""


class Constraint:
    """One sequence's place in its grammar."""

    def __init__(self, moved: "list[Constraint]") -> None:
        """moved: those of which it isn't being found yet what they allow."""
        self.work: Future[None]
        """What another thread does for it, or has done; all else waits for that."""
        self._moved = moved
        self._matcher: LLMatcher
        self._allowed: bytes | None = None

    def begin(
        self, tokenizer: Future[LLTokenizer], grammar: str, output_ids: Sequence[int]
    ) -> None:
        """At the place in the grammar behind what was generated already. Is work."""
        self._matcher = LLMatcher(tokenizer.result(), grammar, log_level=0, limits=LIMITS)
        self._matcher.consume_tokens(list(output_ids))
        self.find()

    def find(self) -> None:
        """What may come next. Is work."""
        self._allowed = self._matcher.compute_bitmask()

    def allowed(self) -> bytes:
        """The ids that may come next, as in `model.batch.Context`; where the text must end, only
        the ends of text."""
        self.work.result()
        if self._allowed is None:
            self.find()
        assert self._allowed is not None
        return self._allowed

    def push(self, token_ids: Sequence[int]) -> None:
        """Raises GrammarError if the grammar has no place for them, or got too complex by now."""
        self.work.result()
        if not self._matcher.is_stopped():  # else it takes not even an end of text
            self._matcher.consume_tokens(list(token_ids))
        if self._matcher.is_error():
            raise GrammarError(f"the grammar can't be followed: {self._matcher.get_error()}")
        self._allowed = None
        self._moved.append(self)


class Grammars:
    """Of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: Future[LLTokenizer] | None = None
        self._compiler, self._finder = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._moved: list[Constraint] = []

    def prepare(self) -> Future[LLTokenizer]:
        """Read the vocabulary, in the background, since that takes a few hundred milliseconds."""
        if self._tokenizer is None:
            self._tokenizer = self._compiler.submit(
                LLTokenizer,
                self._vocabulary.tokenizer_json,
                n_vocab=self._vocabulary.size,
                eos_token=self._vocabulary.eos_ids or None,
            )
        return self._tokenizer

    def start(self, grammar: str, output_ids: Sequence[int]) -> Constraint:
        """At the place in the grammar behind what was generated already. One that is none has no
        place for any token."""
        constraint = Constraint(self._moved)
        constraint.work = self._compiler.submit(
            constraint.begin, self.prepare(), grammar, output_ids
        )
        return constraint

    def find(self) -> None:
        """Begin to find what sequences that have moved on allow, all of them by one thread."""
        if self._moved:
            moved = self._moved.copy()
            self._moved.clear()
            work = self._finder.submit(_find, moved)
            for constraint in moved:
                constraint.work = work


def _find(constraints: Sequence[Constraint]) -> None:
    for constraint in constraints:
        constraint.find()

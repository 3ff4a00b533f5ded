"""Grammars that constrain what a sequence generates: which tokens may come next. Knows no requests.

The only file of the engine that knows llguidance. A grammar comes in llguidance's own form and was
tried by the API process before; here it is followed, token by token.
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

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.allowed = b""
        """The ids that may come next, as in `model.batch.Context`; where the text must end, only
        the ends of text."""

    def push(self, token_ids: Sequence[int]) -> None:
        """Raises GrammarError if the grammar has no place for them, or gets too complex there."""
        if not self._matcher.is_stopped():  # else it takes not even an end of text
            self._matcher.consume_tokens(list(token_ids))
        self.allowed = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarError(f"the grammar can't be followed: {self._matcher.get_error()}")


class Grammars:
    """Of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: Future[LLTokenizer] | None = None

    def prepare(self) -> Future[LLTokenizer]:
        """Read the vocabulary, in the background, since that takes a few hundred milliseconds."""
        if self._tokenizer is None:
            reader = ThreadPoolExecutor(1)
            self._tokenizer = reader.submit(
                LLTokenizer,
                self._vocabulary.tokenizer_json,
                n_vocab=self._vocabulary.size,
                eos_token=self._vocabulary.eos_ids or None,
            )
            reader.shutdown(wait=False)
        return self._tokenizer

    def start(self, grammar: str, output_ids: Sequence[int]) -> Constraint:
        """At the place in the grammar behind what was generated already."""
        tokenizer = self.prepare().result()
        constraint = Constraint(LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS))
        constraint.push(output_ids)
        return constraint

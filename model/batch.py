"""The seam between service and model: what a step computes and what it gives back.

Integers, floats and ids only. This file imports no torch and knows no text, queue or clock.

A sequence of five known tokens whose first two are already in the cache, in pages of four tokens:

    position      0    1    2    3    4    5
    token         a    b    c    d    e    ?
                  cached    `-- row --'    `-- sampled by this step (position 5)
    page_ids      [   7              ] [ 3 …
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one sequence's next token is drawn. The defaults draw from the unchanged distribution."""

    temperature: float = 1.0
    """0 takes the most likely token."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probabilities reach this sum."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one's probability."""
    repetition_penalty: float = 1.0
    """Divides a positive logit of each token that was in the prompt or the output, and multiplies a
    negative one (CTRL, https://arxiv.org/abs/1909.05858)."""
    frequency_penalty: float = 0.0
    """Taken off a token's logit for each time that it is in the output."""
    presence_penalty: float = 0.0
    """Taken off once if it is in the output at all."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to logits, by vocabulary id."""
    seed: int = 0
    """Noise is a hash of (seed, position, vocabulary id), so that a request draws the same alone,
    in any batch, after preemption and after a restart."""
    num_logprobs: int | None = None
    """None: no logprobs; k: the chosen token's logprob and the k most likely tokens'."""

    @property
    def has_penalty(self) -> bool:
        """Whether a draw must know the tokens before it."""
        return (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What decides, besides the parameters, which tokens a row may draw and how likely they are."""

    known_ids: Sequence[int] = ()
    """Prompt and output so far; needed where there are penalties."""
    prompt_len: int = 0
    forbidden_ids: Collection[int] = ()
    """Never drawn."""
    allowed: Callable[[], bytes] | None = None
    """Bit i % 8 of byte i // 8, the lowest first, says whether id i may be drawn; None: all may.
    Asked for once the logits are there, since it may take its time as well."""


UNKNOWN = 0
"""Stands for a token that the device alone will know in time; any id would do."""

Pooling = Literal["last", "mean"]
"""What makes one vector of a sequence's tokens: the last one's, or the mean of all."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """Asks for the logprobs of tokens that are known already."""

    token_ids: Sequence[int]
    """Those that follow the row's first, second, … token."""
    num_logprobs: int
    """How many of the most likely tokens to list beside each."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a step: a decode (one token), a whole prompt or a chunk of one."""

    token_ids: Sequence[int]
    """The tokens whose keys and values this step computes."""
    start: int
    """The position of token_ids[0]; keys and values of positions [0, start) are in the cache."""
    page_ids: Sequence[int]
    """The page table: page_ids[i] holds positions [i * page_size, (i + 1) * page_size)."""
    sampling: SamplingParams | None
    """How to draw the token after the last one; None: more of the prompt follows, draw nothing."""
    context: Context | None = None
    """None where the parameters say it all, as they mostly do."""
    scoring: Scoring | None = None
    pooling: Pooling | None = None
    guessed_ids: Sequence[int] = ()
    """What may follow token_ids, computed with them: the token after each is drawn too, as long as
    the ones before came true. Not with a context, which they might change."""
    drawn_by: int | None = None
    """Its one token isn't known yet: this row of the step launched before is drawing it, and
    token_ids is [UNKNOWN]. Not with a context."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + len(self.guessed_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, each of another sequence, in any mixture of lengths."""

    rows: Sequence[Row]
    copies: Sequence[tuple[int, int]] = ()
    """Pages to copy, as (from, to), before the rows are computed; all are read, then all written.
    None is written twice."""

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities as the model gives them, before all that changes them."""

    chosen: float
    top: Sequence[tuple[int, float]]
    """(vocabulary id, logprob), most likely first."""
    rank: int = 0
    """The chosen token's: one more than there are likelier ones; 0: not told."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One entry per row of the batch, in its order; None where the row samples nothing."""

    sampled: Sequence[SampledToken | None]
    scores: Mapping[int, Sequence[TokenLogprobs]] = field(default_factory=dict)
    """By the number of the row, for rows with a scoring."""
    pooled: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """By the number of the row, for rows with a pooling: the last token's vector, or the sum of
    those of all tokens of the row; as the head would get them."""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """Where the run's time went, by phase, in order; as far as the runner tells."""
    followers: Mapping[int, Sequence[SampledToken]] = field(default_factory=dict)
    """By the number of the row, for rows with guesses: what was drawn after each that came true."""


class Runner(Protocol):
    """What the engine needs of a model. Raises whatever the device raises; never a user's error."""

    page_size: int
    num_pages: int
    vocab_size: int
    max_model_len: int
    device: str
    """Where it computes: "cpu", "cuda", …"""
    attention: str
    """Which kernels compute attention there."""

    def run(self, batch: Batch) -> StepOutput: ...


Collect = Callable[[], StepOutput]
"""Waits for a launched step, and gives what it brought."""


@runtime_checkable
class OverlappingRunner(Runner, Protocol):
    """One with a device of its own, which computes a step while the host prepares the next one."""

    def launch(self, batch: Batch) -> Collect:
        """Returns before the step is computed. Steps are computed and collected in the order of
        their launches, and at most two are launched at a time. Each may ask for tokens of the one
        before (Row.drawn_by)."""

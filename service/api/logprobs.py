"""Tokens and how likely they were, between the engine's numbers and each route's words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model.batch import TokenLogprobs
from service.api.schema_generation import GenerationRequest
from service.text.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0
"""Stands for what isn't finite, which JSON can't say."""


@dataclass(frozen=True, slots=True)
class TokenChance:
    """A token and how likely it was."""

    spelling: bytes
    """What it stands for; a special token's name; or its id, where those are asked for."""
    text_bytes: bytes
    """What of that is in the text: nothing, where special tokens are skipped."""
    logprob: float | None
    """None for a prompt's first token, which nothing comes before."""


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    chosen: TokenChance
    top: Sequence[TokenChance]
    text_offset: int
    """Where in the choice's text the token begins, in characters."""


class Speller:
    """Writes tokens as one request wants them written."""

    def __init__(self, tokenizer: Tokenizer, asked: GenerationRequest) -> None:
        self._tokenizer = tokenizer
        self._skips_special = asked.skip_special_tokens
        self._writes_ids = asked.return_tokens_as_token_ids

    def entry(
        self,
        token_id: int,
        logprobs: TokenLogprobs | None,
        text_offset: int,
        num_top: int | None,
    ) -> LogprobEntry:
        """num_top: how many of the likeliest are wanted, where more are told."""
        return LogprobEntry(
            chosen=self._chance(token_id, logprobs.chosen if logprobs else None),
            top=[self._chance(*likely) for likely in (logprobs.top[:num_top] if logprobs else ())],
            text_offset=text_offset,
        )

    def _chance(self, token_id: int, logprob: float | None) -> TokenChance:
        text = self._tokenizer.token_bytes(token_id)
        hidden = self._skips_special and token_id in self._tokenizer.special_ids
        spelling = f"token_id:{token_id}".encode() if self._writes_ids else text
        return TokenChance(
            spelling, b"" if hidden else text, None if logprob is None else finite(logprob)
        )


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def is_scored(prompt_ids: Sequence[int], scores: Sequence[TokenLogprobs]) -> bool:
    """Whether these are all the scores of the prompt: of each token but the first."""
    return len(scores) == len(prompt_ids) - 1


def spell_prompt_logprobs(
    prompt_ids: Sequence[int],
    scores: Sequence[TokenLogprobs],
    num_top: int,
    tokenizer: Tokenizer,
) -> list[Mapping[str, object] | None] | None:
    """As vLLM does: for each token but the first, the likeliest ids and the token's own.

    Ranks count from 1; a token's own is one more than the number of likelier ones. None where a
    deadline came before the prompt was scored.
    """
    if not is_scored(prompt_ids, scores):
        return None

    def spell(token_id: int, logprob: float, rank: int) -> dict[str, object]:
        decoded = tokenizer.token_bytes(token_id).decode(errors="replace")
        return {"logprob": finite(logprob), "rank": rank, "decoded_token": decoded}

    def spell_place(token_id: int, score: TokenLogprobs) -> Mapping[str, object]:
        top = [(*likely, rank) for rank, likely in enumerate(score.top[:num_top], start=1)]
        chances = [*top, (token_id, score.chosen, score.rank)]
        return {str(id_): spell(id_, logprob, rank) for id_, logprob, rank in chances}

    return [None, *map(spell_place, prompt_ids[1:], scores)]

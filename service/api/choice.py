"""One choice of an answer: the engine's token ids become text, up to the first stop.

    Event ids -> bytes -> whole characters -> text that no stop string can begin in -> Delta

Knows no JSON and no HTTP. Whatever pieces the ids come in, the deltas join to the same text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

from model.batch import TokenLogprobs
from service.api.schema_generation import GenerationRequest
from service.engine.messages import Event
from service.text.stops import StopChecker
from service.text.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0
"""Stands for what isn't finite, which JSON can't say."""


@dataclass(frozen=True, slots=True)
class TokenChance:
    """A token and how likely it was."""

    spelling: bytes
    """What it stands for; a special token's name."""
    text_bytes: bytes
    """What of that is in the text: nothing, where special tokens are skipped."""
    logprob: float


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    chosen: TokenChance
    top: Sequence[TokenChance]
    text_offset: int
    """Where in the choice's text the token begins, in characters."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of a choice."""

    index: int
    text: str
    logprobs: Sequence[LogprobEntry] = ()
    finish_reason: Literal["stop", "length"] | None = None


class Choice:
    def __init__(
        self, index: int, tokenizer: Tokenizer, stops: StopChecker, asked: GenerationRequest
    ) -> None:
        self.index = index
        self.num_tokens = 0
        """As usage counts them: every id the engine delivered, up to the one that ended it."""
        self.num_cached_tokens = 0
        """Of the prompt, known with the first token."""
        self.finish_reason: Literal["stop", "length"] | None = None
        self._tokenizer = tokenizer
        self._asked = asked
        self._detokenizer = tokenizer.detokenizer(
            skip_special_tokens=asked.skip_special_tokens, continues_text=True
        )
        self._stops = stops
        self._text_len = 0
        self._entries: list[LogprobEntry] = []

    def push(self, event: Event) -> Delta:
        """What the event adds. The token that ended the sequence counts, but isn't text."""
        self.num_cached_tokens += event.num_cached_tokens
        hides_last = event.finish_reason == "stop" and not self._asked.include_stop_str_in_output
        shown_ids = event.token_ids[:-1] if hides_last else event.token_ids
        text = ""
        for token_id, logprobs in zip(shown_ids, event.logprobs or repeat(None), strict=False):
            text += self._push_token(token_id, logprobs)
            if self._stops.matched is not None:
                return self._end(text, "stop")
        self.num_tokens += len(event.token_ids) - len(shown_ids)
        match event.finish_reason:
            case "stop" | "length" as reason:
                text += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
                return self._end(text, reason if self._stops.matched is None else "stop")
            case _:
                return Delta(self.index, text, self._take_entries() if text else ())

    def _push_token(self, token_id: int, logprobs: TokenLogprobs | None) -> str:
        self.num_tokens += 1
        if logprobs is not None:
            self._entries.append(self._entry(token_id, logprobs))
        text = self._detokenizer.push(token_id)
        self._text_len += len(text)
        return self._stops.push(text)

    def _end(self, text: str, reason: Literal["stop", "length"]) -> Delta:
        self.finish_reason = reason
        return Delta(self.index, text, self._take_entries(), reason)

    def _take_entries(self) -> Sequence[LogprobEntry]:
        """Those of tokens whose text was held back come with the text."""
        taken, self._entries = self._entries, []
        return taken

    def _entry(self, token_id: int, logprobs: TokenLogprobs) -> LogprobEntry:
        return LogprobEntry(
            chosen=self._chance(token_id, logprobs.chosen),
            top=[self._chance(*likely) for likely in logprobs.top],
            text_offset=self._text_len,
        )

    def _chance(self, token_id: int, logprob: float) -> TokenChance:
        spelling = self._tokenizer.token_bytes(token_id)
        hidden = self._asked.skip_special_tokens and token_id in self._tokenizer.special_ids
        finite = logprob if math.isfinite(logprob) else LEAST_LOGPROB
        return TokenChance(spelling, b"" if hidden else spelling, finite)

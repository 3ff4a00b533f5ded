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
from service.api.form import FREE, Form
from service.api.logprobs import LogprobEntry, Speller, finite, is_scored
from service.api.schema import AnyRequest
from service.engine.messages import Event
from service.text.message import Pieces
from service.text.stops import StopChecker
from service.text.tokenizer import Tokenizer
from service.text.tool_parser import CallPiece

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of a choice."""

    index: int
    text: str
    logprobs: Sequence[LogprobEntry] = ()
    finish_reason: FinishReason | None = None
    token_ids: Sequence[int] = ()
    """Those generated, of which one that ended the sequence is no text."""
    thoughts: str = ""
    calls: Sequence[CallPiece] = ()

    @property
    def tells(self) -> bool:
        return bool(self.text or self.thoughts or self.calls)


class Choice:
    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        stops: StopChecker,
        asked: AnyRequest,
        prompt_ids: Sequence[int] = (),
        form: Form = FREE,
    ) -> None:
        self.index = index
        self.num_tokens = 0
        """As usage counts them: every id the engine delivered, up to the one that ended it."""
        self.num_cached_tokens = 0
        """Of the prompt, known with the first token."""
        self.prompt_logprobs: Sequence[TokenLogprobs] = ()
        """Of the prompt's tokens but the first, where they were asked for."""
        self.finish_reason: FinishReason | None = None
        self._tokenizer = tokenizer
        self._asked = asked
        self._unechoed_ids = prompt_ids if asked.echoes else ()
        self._speller = Speller(tokenizer, asked)
        self._detokenizer = tokenizer.detokenizer(
            skip_special_tokens=asked.skip_special_tokens,
            continues_text=True,
            shown_ids=form.shown_ids,
        )
        self._parser = form.new_parser() if form.new_parser else None
        self._stops = stops
        self._text_len = 0
        self._logprob_sum = 0.0
        self._entries: list[LogprobEntry] = []
        self._ids: list[int] = []
        self._thoughts = ""
        self._calls: list[CallPiece] = []

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, where the engine told them."""
        return self._logprob_sum / self.num_tokens if self.num_tokens else -math.inf

    def push(self, event: Event) -> Delta:
        """What the event adds. The token that ended the sequence counts, but isn't text."""
        self.num_cached_tokens += event.num_cached_tokens
        self.prompt_logprobs = event.prompt_logprobs or self.prompt_logprobs
        text = self._echo() if self._unechoed_ids else ""
        hides_last = event.finish_reason == "stop" and not self._asked.include_stop_str_in_output
        num_shown = len(event.token_ids) - hides_last
        scored = zip(event.token_ids, event.logprobs or repeat(None), strict=False)
        for number, (token_id, logprobs) in enumerate(scored):
            self.num_tokens += 1
            self._ids.append(token_id)
            if logprobs is not None:
                self._logprob_sum += finite(logprobs.chosen)
            if number < num_shown:
                text += self._show(token_id, logprobs)
            if self._stops.matched is not None:
                return self._end(text, "stop")
        match event.finish_reason:
            case "stop" | "length" as reason:
                text += self._read(self._detokenizer.flush()) + self._flush()
                return self._end(text, reason if self._stops.matched is None else "stop")
            case _:
                tells = text or self._thoughts or self._calls
                return self._delta(text) if tells else Delta(self.index, "")

    def _echo(self) -> str:
        """The prompt, once. Its special tokens are shown, but for one that begins all texts.

        It has the logprobs of all its tokens, or of none if a deadline came before they did.
        """
        ids, self._unechoed_ids = self._unechoed_ids, ()
        detokenizer = self._tokenizer.detokenizer(skip_special_tokens=False)
        text = ""
        enters = self._asked.num_logprobs is not None and is_scored(ids, self.prompt_logprobs)
        for number, token_id in enumerate(ids):
            if enters:
                self._enter(
                    token_id, self.prompt_logprobs[number - 1] if number else None, len(text)
                )
            if number or token_id != self._tokenizer.bos_id:
                text += detokenizer.push(token_id)
        text += detokenizer.flush()
        self._text_len += len(text)
        return text

    def _show(self, token_id: int, logprobs: TokenLogprobs | None) -> str:
        if logprobs is not None:
            self._enter(token_id, logprobs, self._text_len)
        text = self._detokenizer.push(token_id)
        self._text_len += len(text)
        return self._read(text)

    def _read(self, text: str) -> str:
        """What of it is content that no stop string can begin in."""
        return self._stops.push(self._keep(self._parser.push(text)) if self._parser else text)

    def _flush(self) -> str:
        text = self._stops.push(self._keep(self._parser.flush())) if self._parser else ""
        return text + self._stops.flush()

    def _keep(self, pieces: Pieces) -> str:
        """What isn't content goes with the next delta."""
        self._thoughts += pieces.thoughts
        self._calls += pieces.calls
        return pieces.content

    def _enter(self, token_id: int, logprobs: TokenLogprobs | None, text_offset: int) -> None:
        num_top = self._asked.num_logprobs
        self._entries.append(self._speller.entry(token_id, logprobs, text_offset, num_top))

    def _end(self, text: str, reason: FinishReason) -> Delta:
        if reason == "stop" and self._parser and self._parser.has_whole_calls:
            reason = "tool_calls"
        self.finish_reason = reason
        return self._delta(text, reason)

    def _delta(self, text: str, reason: FinishReason | None = None) -> Delta:
        """Ids and logprobs of tokens whose text was held back come with the text."""
        entries, self._entries = self._entries, []
        ids, self._ids = self._ids, []
        calls, self._calls = self._calls, []
        thoughts, self._thoughts = self._thoughts, ""
        return Delta(self.index, text, entries, reason, ids, thoughts, calls)

"""Deltas to answers: the events of a stream, or one object when all has come.

What is the same for chat and completions; each brings its own words as a Dialect.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.choice import Delta
from service.api.generation import Generation
from service.api.logprobs import LogprobEntry, spell_prompt_logprobs
from service.api.responses import JsonResponse
from service.api.schema_generation import StreamOptions
from service.api.served import Ticket
from service.api.sse import EventStream, Write, event, while_connected

Logprobs = Sequence[LogprobEntry]

PLACEHOLDER = "\0"
PLACEHOLDER_JSON = orjson.dumps(PLACEHOLDER)


class Dialect(Protocol):
    """How one route spells the parts of an answer."""

    object: str
    chunk_object: str
    tells_prompt_once: bool
    """Whether what is told of the prompt stands beside the choices, not in each."""

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Choices to send before a choice's first text: one, or none."""

    def chunk(
        self, index: int, text: str | None, logprobs: Logprobs | None, finish_reason: str | None
    ) -> dict[str, Any]:
        """A choice in a stream; without text where only its end is told."""

    def choice(
        self, index: int, text: str, logprobs: Logprobs | None, finish_reason: str | None
    ) -> dict[str, Any]:
        """A choice that is whole, but for what isn't text."""

    def asides(self, delta: Delta) -> list[dict[str, Any]]:
        """Choices in a stream, for what of a delta isn't text."""

    def add_asides(self, choice: dict[str, Any], parts: Sequence[Delta]) -> None:
        """The same of a whole choice."""


async def answer(request: Request, generation: Generation, dialect: Dialect) -> Response:
    if generation.asked.stream:
        return EventStream(partial(_write_stream, generation, dialect))
    return await _whole(request, generation, dialect)


async def _write_stream(generation: Generation, dialect: Dialect, write: Write) -> None:
    chunks = ChunkEncoder(generation, dialect)

    async def emit(delta: Delta) -> None:
        await write(chunks.encode(delta))

    await generation.run(emit)
    if chunks.options.include_usage:
        await write(chunks.usage())


class ChunkEncoder:
    """Deltas to events. Text without more, which is nearly all of a stream, goes by a template."""

    def __init__(self, generation: Generation, dialect: Dialect) -> None:
        self.options = generation.asked.stream_options or StreamOptions()
        self._generation = generation
        self._dialect = dialect
        self._envelope = _envelope(generation.ticket, dialect.chunk_object)
        self._tells_ids = generation.asked.return_token_ids
        self._tells_more = self._tells_ids or self.options.continuous_usage_stats
        self._begun: set[int] = set()
        self._templates: dict[int, tuple[bytes, bytes]] = {}

    def encode(self, delta: Delta) -> bytes:
        """All that is to be sent of a delta, in one piece."""
        events = b""
        if delta.index not in self._begun:
            opening = self._dialect.opening(delta.index)
            events = b"".join(self._event(choice) for choice in opening)
        token_ids = delta.token_ids
        for aside in self._dialect.asides(delta):
            events += self._event(aside, token_ids)
            token_ids = ()
        hides = self._tells_ids and token_ids and delta.finish_reason is None  # thoughts, perhaps
        if delta.text or delta.logprobs or hides:
            events += self._text(delta, token_ids)
            token_ids = ()
        if delta.finish_reason is not None:
            last = self._chunk(delta.index, finish_reason=delta.finish_reason)
            events += self._event(last | _timings(delta.index, self._generation), token_ids)
        return events

    def _text(self, delta: Delta, token_ids: Sequence[int]) -> bytes:
        if delta.logprobs or self._tells_more:
            chunk = self._chunk(delta.index, delta.text, delta.logprobs or None)
            return self._event(chunk, token_ids)
        if delta.index not in self._templates:
            self._templates[delta.index] = self._template(delta.index)
        before, after = self._templates[delta.index]
        return before + orjson.dumps(delta.text) + after

    def _template(self, index: int) -> tuple[bytes, bytes]:
        """The event of a text, cut where the text goes."""
        before, after = self._event(self._chunk(index, PLACEHOLDER)).rsplit(PLACEHOLDER_JSON, 1)
        return before, after

    def _chunk(
        self,
        index: int,
        text: str | None = None,
        logprobs: Logprobs | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        return self._dialect.chunk(index, text, logprobs, finish_reason)

    def _event(self, choice: dict[str, Any], token_ids: Sequence[int] = ()) -> bytes:
        chunk = self._envelope | {"choices": [choice]} | self._usage_so_far()
        if self._tells_ids:
            choice["token_ids"] = token_ids
        if choice["index"] not in self._begun:
            self._begun.add(choice["index"])
            told = _told_of_prompt(self._generation, choice["index"])
            (chunk if self._dialect.tells_prompt_once else choice).update(told)
        return event(chunk)

    def _usage_so_far(self) -> dict[str, Any]:
        if self.options.continuous_usage_stats:
            return {"usage": self._generation.usage.as_dict()}
        return {"usage": None} if self.options.include_usage else {}

    def usage(self) -> bytes:
        """The event after all choices."""
        return event(self._envelope | {"choices": [], "usage": self._generation.usage.as_dict()})


async def _whole(request: Request, generation: Generation, dialect: Dialect) -> Response:
    deltas: list[list[Delta]] = [[] for _ in generation.choices]

    async def emit(delta: Delta) -> None:
        deltas[delta.index].append(delta)

    await while_connected(generation.run(emit), request.receive)
    choices = [
        _join(number, deltas[index], generation, dialect)
        for number, index in enumerate(generation.answered())
    ]
    told = _told_of_prompt(generation, 0) if dialect.tells_prompt_once else {}
    usage = generation.usage.as_dict()
    envelope = _envelope(generation.ticket, dialect.object)
    return JsonResponse(envelope | {"choices": choices, "usage": usage} | told)


def _join(
    number: int, parts: Sequence[Delta], generation: Generation, dialect: Dialect
) -> dict[str, Any]:
    """number: the choice's place in the answer, which isn't its index where some are left out."""
    asked, index = generation.asked, parts[0].index
    choice = dialect.choice(
        number,
        "".join(part.text for part in parts),
        None if asked.num_logprobs is None else [e for part in parts for e in part.logprobs],
        parts[-1].finish_reason,
    )
    dialect.add_asides(choice, parts)
    if asked.return_token_ids:
        choice["token_ids"] = [token_id for part in parts for token_id in part.token_ids]
    if not dialect.tells_prompt_once:
        choice |= _told_of_prompt(generation, index)
    return choice | _timings(index, generation)


def _told_of_prompt(generation: Generation, index: int) -> dict[str, Any]:
    """In the words of vLLM, where the call asks for it; `index` is a choice's."""
    asked, prompt_ids = generation.asked, generation.prompt_ids(index)
    told: dict[str, Any] = {"prompt_token_ids": prompt_ids} if asked.return_token_ids else {}
    if asked.prompt_logprobs is not None:
        scores = generation.prompt_logprobs(index)
        told["prompt_logprobs"] = spell_prompt_logprobs(
            prompt_ids, scores, asked.prompt_logprobs, generation.tokenizer
        )
    return told


def _timings(index: int, generation: Generation) -> dict[str, Any]:
    """A choice's, in the same words on both routes, where the call asks for them."""
    return {"timings": generation.timings(index)} if generation.asked.include_timings else {}


def _envelope(ticket: Ticket, object: str) -> dict[str, Any]:
    return {"id": ticket.id, "object": object, "created": ticket.created, "model": ticket.model}

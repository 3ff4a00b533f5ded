"""POST /v1/chat/completions: a conversation in, the assistant's next message out.

The way of a request: `read_json` -> `encode_chat` -> Generation -> `answer`, which ends in an
EventStream or one object. Here are the route and the words of its answers.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.api.answer import Logprobs, answer
from service.api.body import read_json
from service.api.caller import Calling
from service.api.choice import Delta
from service.api.description import DEADLINE, OF_GENERATION, described
from service.api.form import form_of_chat
from service.api.generation import Generation
from service.api.logprobs import LogprobEntry, TokenChance
from service.api.prompts import encode_chat, num_kept
from service.api.schema import ChatRequest
from service.api.schema_generated import ChatCompletion, ChatCompletionChunk
from service.api.served import Ready
from service.api.tool_calls import spell_call_piece, spell_calls

router = APIRouter(tags=["generation"])


DESCRIPTION = described(
    ChatCompletion,
    body=ChatRequest,
    chunk=ChatCompletionChunk,
    errors=OF_GENERATION,
    parameters=[DEADLINE],
)


@router.post("/v1/chat/completions", openapi_extra=DESCRIPTION)
async def create_chat_completion(request: Request, serving: Ready, caller: Calling) -> Response:
    asked = await read_json(request, ChatRequest, max_bytes=serving.max_body_bytes)
    ticket = serving.ticket("chatcmpl", asked.model, caller)
    keep = num_kept(asked, serving.info.max_model_len)
    prompt, prompt_ids = await encode_chat(asked, serving, keep=keep)
    form = await form_of_chat(asked, serving, prompt)
    generation = Generation(ticket, asked, [prompt_ids], serving, form)
    return await answer(request, generation, ChatDialect(shows_thoughts=asked.include_reasoning))


class ChatDialect:
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    tells_prompt_once = True

    def __init__(self, *, shows_thoughts: bool) -> None:
        self._shows_thoughts = shows_thoughts

    def opening(self, index: int) -> list[dict[str, Any]]:
        return [_chunk(index, {"role": "assistant", "content": ""})]

    def chunk(
        self, index: int, text: str | None, logprobs: Logprobs | None, finish_reason: str | None
    ) -> dict[str, Any]:
        delta = {} if text is None else {"content": text}
        return _chunk(index, delta, logprobs, finish_reason)

    def choice(
        self, index: int, text: str, logprobs: Logprobs | None, finish_reason: str | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": _spell_logprobs(logprobs),
            "finish_reason": finish_reason,
        }

    def asides(self, delta: Delta) -> list[dict[str, Any]]:
        asides = self._spell_thoughts(delta.thoughts)
        if delta.calls:
            asides["tool_calls"] = list(map(spell_call_piece, delta.calls))
        return [_chunk(delta.index, asides)] if asides else []

    def add_asides(self, choice: dict[str, Any], parts: Sequence[Delta]) -> None:
        """There is no content, where something else is there instead of it."""
        thoughts = self._spell_thoughts("".join(part.thoughts for part in parts))
        calls = spell_calls([piece for part in parts for piece in part.calls])
        message = choice["message"]
        message |= thoughts | ({"tool_calls": calls} if calls else {})
        if thoughts or calls:
            message["content"] = message["content"] or None

    def _spell_thoughts(self, thoughts: str) -> dict[str, Any]:
        """Under the two names that clients look for."""
        if not thoughts or not self._shows_thoughts:
            return {}
        return {"reasoning_content": thoughts, "reasoning": thoughts}


def _chunk(
    index: int,
    delta: dict[str, Any],
    logprobs: Logprobs | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {
        "index": index,
        "delta": delta,
        "logprobs": _spell_logprobs(logprobs),
        "finish_reason": finish_reason,
    }


def _spell_logprobs(entries: Logprobs | None) -> dict[str, Any] | None:
    if entries is None:
        return None
    return {"content": list(map(_spell_entry, entries)), "refusal": None}


def _spell_entry(entry: LogprobEntry) -> dict[str, Any]:
    return {**_spell_chance(entry.chosen), "top_logprobs": list(map(_spell_chance, entry.top))}


def _spell_chance(chance: TokenChance) -> dict[str, Any]:
    """The bytes of all tokens, joined, are the text, though a token may be half a character."""
    return {
        "token": chance.spelling.decode(errors="replace"),
        "logprob": chance.logprob,
        "bytes": list(chance.text_bytes),
    }

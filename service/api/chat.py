"""POST /v1/chat/completions: a conversation in, the assistant's next message out.

The way of a request: `read_json` -> `encode_chat` -> Generation -> `answer`, which ends in an
EventStream or one object. Here are the route and the words of its answers.
"""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.api.answer import Logprobs, answer
from service.api.body import read_json, request_body
from service.api.caller import Calling
from service.api.generation import Generation
from service.api.logprobs import LogprobEntry, TokenChance
from service.api.prompts import encode_chat, num_kept
from service.api.schema import ChatRequest
from service.api.served import Ready

router = APIRouter(tags=["generation"])


@router.post("/v1/chat/completions", openapi_extra=request_body(ChatRequest))
async def create_chat_completion(request: Request, serving: Ready, caller: Calling) -> Response:
    asked = await read_json(request, ChatRequest, max_bytes=serving.max_body_bytes)
    ticket = serving.ticket("chatcmpl", asked.model, caller)
    keep = num_kept(asked, serving.info.max_model_len)
    _, prompt_ids = await encode_chat(asked, serving, keep=keep)
    generation = Generation(ticket, asked, [prompt_ids], serving)
    return await answer(request, generation, ChatDialect())


class ChatDialect:
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    tells_prompt_once = True

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


def _chunk(
    index: int,
    delta: dict[str, str],
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

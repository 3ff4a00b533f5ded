"""POST /v1/completions: prompts in, how they go on out.

The way of a request is that of `service.api.chat`, but for the prompts and the words.
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
from service.api.form import form_of_completion
from service.api.generation import Generation
from service.api.logprobs import LogprobEntry
from service.api.prompts import encode_prompts, num_kept
from service.api.schema import CompletionRequest
from service.api.schema_generated import Completion, CompletionChunk
from service.api.served import Ready

router = APIRouter(tags=["generation"])


DESCRIPTION = described(
    Completion,
    body=CompletionRequest,
    chunk=CompletionChunk,
    errors=OF_GENERATION,
    parameters=[DEADLINE],
)


@router.post("/v1/completions", openapi_extra=DESCRIPTION)
async def create_completion(request: Request, serving: Ready, caller: Calling) -> Response:
    asked = await read_json(request, CompletionRequest, max_bytes=serving.max_body_bytes)
    ticket = serving.ticket("cmpl", asked.model, caller)
    prompts = await encode_prompts(
        asked.prompt,
        serving,
        add_special_tokens=asked.add_special_tokens,
        keep=num_kept(asked, serving.info.max_model_len),
    )
    form = await form_of_completion(asked, serving)
    generation = Generation(ticket, asked, prompts, serving, form)
    return await answer(request, generation, CompletionDialect())


class CompletionDialect:
    object = "text_completion"
    chunk_object = "text_completion"
    tells_prompt_once = False

    def opening(self, index: int) -> list[dict[str, Any]]:
        return []

    def chunk(
        self, index: int, text: str | None, logprobs: Logprobs | None, finish_reason: str | None
    ) -> dict[str, Any]:
        return self.choice(index, text or "", logprobs, finish_reason)

    def choice(
        self, index: int, text: str, logprobs: Logprobs | None, finish_reason: str | None
    ) -> dict[str, Any]:
        return {
            "text": text,
            "index": index,
            "logprobs": _spell_logprobs(logprobs),
            "finish_reason": finish_reason,
        }

    def asides(self, delta: Delta) -> list[dict[str, Any]]:
        return []

    def add_asides(self, choice: dict[str, Any], parts: Sequence[Delta]) -> None:
        """A completion is text and nothing else."""


def _spell_logprobs(entries: Logprobs | None) -> dict[str, Any] | None:
    """Four lists of one length."""
    if entries is None:
        return None
    return {
        "tokens": [_spell_token(entry.chosen.spelling) for entry in entries],
        "token_logprobs": [entry.chosen.logprob for entry in entries],
        "top_logprobs": list(map(_spell_top, entries)),
        "text_offset": [entry.text_offset for entry in entries],
    }


def _spell_top(entry: LogprobEntry) -> dict[str, float | None] | None:
    """The chosen token is always among them, even if others were likelier."""
    if entry.chosen.logprob is None:
        return None
    return {_spell_token(chance.spelling): chance.logprob for chance in (*entry.top, entry.chosen)}


def _spell_token(spelling: bytes) -> str:
    """Bytes that aren't text by themselves are written as OpenAI does: bytes:\\xf0\\x9f."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)

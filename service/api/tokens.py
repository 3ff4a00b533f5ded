"""The tokenizer and the chat template alone, in the words of vLLM: nothing is generated.

POST /tokenize                        a prompt or a chat in, ids out
POST /detokenize                      ids in, text out
POST /v1/chat/completions/render      a chat completion's request in, its prompt out
GET  /tokenizer_info                  what a client needs to do the same; only where it is wanted
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from service.api.body import read_json
from service.api.description import OF_ALL, OF_BODIES, described
from service.api.errors import bad_request
from service.api.prompts import encode_chat, encode_prompts, num_kept, run_aside
from service.api.responses import JsonResponse
from service.api.schema import ChatRequest
from service.api.schema_answers import Detokenized, Rendered, Tokenized, TokenizerInfo
from service.api.schema_tokens import DetokenizeRequest, TokenizeRequest
from service.api.served import Ready, Serving

router = APIRouter(tags=["tokens"])
info_router = APIRouter(tags=["tokens"])


@router.post(
    "/tokenize",
    openapi_extra=described(Tokenized, body=TokenizeRequest, errors=OF_BODIES),
)
async def tokenize(request: Request, serving: Ready) -> JsonResponse:
    asked = await read_json(request, TokenizeRequest, max_bytes=serving.max_body_bytes)
    serving.name(asked.model)
    ids = await _encode(asked, serving)
    strings = _spellings(ids, serving) if asked.return_token_strs else None
    return JsonResponse(_counted(ids, serving) | {"tokens": ids, "token_strs": strings})


async def _encode(asked: TokenizeRequest, serving: Serving) -> list[int]:
    if (asked.prompt is None) == (not asked.messages):
        raise bad_request("Send either prompt or messages.", param="prompt")
    if asked.prompt is None:
        _, ids = await encode_chat(asked, serving)
    else:
        adds = asked.adds_special_tokens
        [ids] = await encode_prompts([asked.prompt], serving, add_special_tokens=adds)
    return ids


def _spellings(ids: Sequence[int], serving: Serving) -> list[str]:
    return list(map(serving.text.tokenizer.spelling, ids))


def _counted(ids: Sequence[int], serving: Serving) -> dict[str, Any]:
    return {"count": len(ids), "max_model_len": serving.info.max_model_len}


@router.post(
    "/detokenize",
    openapi_extra=described(Detokenized, body=DetokenizeRequest, errors=OF_BODIES),
)
async def detokenize(request: Request, serving: Ready) -> JsonResponse:
    asked = await read_json(request, DetokenizeRequest, max_bytes=serving.max_body_bytes)
    serving.name(asked.model)
    serving.check_ids("tokens", asked.tokens)

    def decode() -> str:
        return serving.text.tokenizer.decode(asked.tokens, skip_special_tokens=False)

    return JsonResponse({"prompt": await run_aside(decode, len(asked.tokens))})


@router.post(
    "/v1/chat/completions/render",
    openapi_extra=described(Rendered, body=ChatRequest, errors=OF_BODIES),
)
async def render(request: Request, serving: Ready) -> JsonResponse:
    """The text is the whole one; of the ids, truncate_prompt_tokens may have left the last."""
    asked = await read_json(request, ChatRequest, max_bytes=serving.max_body_bytes)
    serving.name(asked.model)
    keep = num_kept(asked, serving.info.max_model_len)
    text, ids = await encode_chat(asked, serving, keep=keep)
    return JsonResponse({"prompt": text, "prompt_token_ids": ids} | _counted(ids, serving))


@info_router.get(
    "/tokenizer_info",
    openapi_extra=described(TokenizerInfo, errors=(*OF_ALL, 503)),
)
async def get_tokenizer_info(serving: Ready) -> JsonResponse:
    """As in a tokenizer_config.json."""
    tokenizer = serving.text.tokenizer
    return JsonResponse(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokenizer.bos_token or None,
            "eos_token": tokenizer.eos_token or None,
            "pad_token": None,
            "additional_special_tokens": _spellings(sorted(tokenizer.special_ids), serving),
            "model_max_length": serving.info.max_model_len,
            "vocab_size": tokenizer.vocab_size,
            "chat_template": serving.text.chat_template.source,
        }
    )

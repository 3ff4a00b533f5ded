"""Prompts as token ids that fit the model; what can't fit is refused before it is tokenized.

Rendering and tokenizing long texts happens in a thread, so that streams and probes don't wait.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from service.api.errors import ApiError, bad_request
from service.api.schema import Prompt
from service.api.schema_messages import Message
from service.api.served import Serving
from service.text.chat_template import ChatTemplateError

INLINE_CHARS = 2000
"""Less is tokenized in less time than a thread takes to wake up."""

Result = TypeVar("Result")


async def encode_chat(
    messages: Sequence[Message], serving: Serving, *, add_special_tokens: bool
) -> list[int]:
    """The model's own template writes special tokens too, so that few ask to add any to them."""

    def encode() -> list[int]:
        text = _render(messages, serving)
        return _encode(text, serving, add_special_tokens=add_special_tokens)

    per_message = 20  # for what a template writes around each
    return await _run(encode, sum(len(m.content or "") + per_message for m in messages))


async def encode_prompts(
    prompts: Sequence[Prompt], serving: Serving, *, add_special_tokens: bool
) -> list[list[int]]:
    """Texts are encoded, ids are checked and used as they are."""

    def encode() -> list[list[int]]:
        return [
            _encode(prompt, serving, add_special_tokens=add_special_tokens)
            if isinstance(prompt, str)
            else _checked(prompt, serving)
            for prompt in prompts
        ]

    return await _run(encode, sum(map(len, prompts)))


async def _run(work: Callable[[], Result], num_chars: int) -> Result:
    return work() if num_chars <= INLINE_CHARS else await asyncio.to_thread(work)


def _render(messages: Sequence[Message], serving: Serving) -> str:
    try:
        return serving.text.chat_template.render([m.for_template() for m in messages])
    except ChatTemplateError as error:
        raise bad_request(f"{error}.", param="messages") from None


def _checked(ids: list[int], serving: Serving) -> list[int]:
    if max(ids) >= serving.info.vocab_size:
        last = serving.info.vocab_size - 1
        raise bad_request(
            f"prompt has the token id {max(ids)}; this model's go up to {last}.", param="prompt"
        )
    return ids


def _encode(text: str, serving: Serving, *, add_special_tokens: bool) -> list[int]:
    tokenizer, max_model_len = serving.text.tokenizer, serving.info.max_model_len
    num_bytes = len(text.encode())
    if num_bytes > max_model_len * tokenizer.max_token_bytes:
        raise too_long(f"the prompt's {num_bytes} bytes of text are more", max_model_len)
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)


def max_new_tokens(prompt_len: int, asked: int | None, max_model_len: int) -> int:
    """How many tokens to generate at most; by default, all that fit."""
    if prompt_len == 0:
        raise bad_request("There is nothing to go on from: the prompt has no tokens.")
    wanted = asked if asked is not None else max(max_model_len - prompt_len, 1)
    if prompt_len + wanted > max_model_len:
        what = f"the prompt's {prompt_len} and the {wanted} to generate are {prompt_len + wanted}"
        raise too_long(what, max_model_len)
    return wanted


def too_long(what: str, max_model_len: int) -> ApiError:
    return bad_request(
        f"This model takes {max_model_len} tokens of prompt and output together: {what}. "
        "Shorten the prompt or lower max_tokens.",
        code="context_length_exceeded",
    )

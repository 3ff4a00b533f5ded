"""Prompts as token ids that fit the model; what can't fit is refused before it is tokenized.

Rendering and tokenizing long texts happens in a thread, so that streams and probes don't wait.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from service.api.errors import ApiError, bad_request, shown
from service.api.schema import AnyRequest, Prompt
from service.api.schema_messages import ChatPrompt
from service.api.served import Serving
from service.text.chat_template import ChatTemplateError
from service.text.tool_prompt import with_tools, with_written_arguments

INLINE_CHARS = 2000
"""Less is tokenized in less time than a thread takes to wake up."""

Result = TypeVar("Result")


async def encode_chat(
    asked: ChatPrompt, serving: Serving, *, keep: int | None = None
) -> tuple[str, list[int]]:
    """The chat as the model's own template writes it, with special tokens, and as ids."""
    _check_variables(asked.chat_template_kwargs, serving)

    def encode() -> tuple[str, list[int]]:
        text = _render(asked, serving)
        special = asked.add_special_tokens
        return text, _encode(text, serving, add_special_tokens=special, keep=keep, param="messages")

    per_message, per_tool = 20, 500  # for what a template writes around each, or of it
    num_chars = sum(len(message.content or "") + per_message for message in asked.messages)
    num_chars += per_tool * len(asked.offered)
    return await run_aside(encode, num_chars)


async def encode_prompts(
    prompts: Sequence[Prompt],
    serving: Serving,
    *,
    add_special_tokens: bool,
    keep: int | None = None,
    param: str = "prompt",
) -> list[list[int]]:
    """Texts are encoded, ids are checked and used as they are; of both the last `keep` are kept.

    param: the parameter that has them.
    """

    def encode_one(prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return _encode(
                prompt, serving, add_special_tokens=add_special_tokens, keep=keep, param=param
            )
        serving.check_ids(param, prompt)
        return _last(keep, prompt)

    def encode() -> list[list[int]]:
        return list(map(encode_one, prompts))

    return await run_aside(encode, sum(map(len, prompts)))


def num_kept(asked: AnyRequest, max_model_len: int) -> int | None:
    """How many tokens of each prompt are wanted at most; None: all."""
    if asked.truncate_prompt_tokens != -1:
        return asked.truncate_prompt_tokens
    num_new = 1 if asked.token_limit is None else asked.token_limit
    return max(max_model_len - num_new, 1)


async def run_aside(work: Callable[[], Result], num_chars: int) -> Result:
    """In a thread, where that is worth while."""
    return work() if num_chars <= INLINE_CHARS else await asyncio.to_thread(work)


def _check_variables(given: Mapping[str, Any], serving: Serving) -> None:
    """A variable that the template doesn't ask for would change nothing."""
    known = serving.text.chat_template.variables
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        names = ", ".join(sorted(known)) or "none"
        raise bad_request(
            f"chat_template_kwargs has {shown(unknown)}; this model's template asks for {names}.",
            param="chat_template_kwargs",
        )


def _render(asked: ChatPrompt, serving: Serving) -> str:
    messages = [message.for_template() for message in asked.messages]
    tools = [tool.for_template() for tool in asked.offered]
    if not serving.text.chat_template.knows_tools:
        messages, tools = with_tools(messages, tools), []
    try:
        return _write(asked, serving, messages, tools)
    except ChatTemplateError as error:
        problem = error
    if any(message.tool_calls for message in asked.messages):  # some take arguments as texts
        with suppress(ChatTemplateError):
            return _write(asked, serving, list(map(with_written_arguments, messages)), tools)
    raise bad_request(f"{problem}.", param="messages")


def _write(
    asked: ChatPrompt,
    serving: Serving,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> str:
    return serving.text.chat_template.render(
        messages,
        add_generation_prompt=asked.begins_answer,
        continue_final_message=asked.continue_final_message,
        tools=tools or None,
        **asked.chat_template_kwargs,
    )


def _encode(
    text: str, serving: Serving, *, add_special_tokens: bool, keep: int | None, param: str
) -> list[int]:
    tokenizer, max_model_len = serving.text.tokenizer, serving.info.max_model_len
    num_bytes = len(text.encode())
    if keep is None and num_bytes > max_model_len * tokenizer.max_token_bytes:
        what = f"the prompt's {num_bytes} bytes of text are more"
        raise too_long(what, max_model_len, param=param)
    return _last(keep, tokenizer.encode(text, add_special_tokens=add_special_tokens))


def _last(keep: int | None, ids: list[int]) -> list[int]:
    return ids if keep is None else ids[-keep:]


def max_new_tokens(prompt_len: int, asked: int | None, max_model_len: int, *, param: str) -> int:
    """How many tokens to generate at most; by default, all that fit."""
    if prompt_len == 0:
        raise bad_request("There is nothing to go on from: the prompt has no tokens.", param=param)
    wanted = asked if asked is not None else max(max_model_len - prompt_len, 1)
    if prompt_len + wanted > max_model_len:
        what = f"the prompt's {prompt_len} and the {wanted} to generate are {prompt_len + wanted}"
        raise too_long(what, max_model_len, param=param)
    return wanted


def too_long(what: str, max_model_len: int, *, param: str) -> ApiError:
    return bad_request(
        f"This model takes {max_model_len} tokens of prompt and output together: {what}. "
        "Shorten the prompt or lower max_tokens.",
        param=param,
        code="context_length_exceeded",
    )

"""The parameters that clients know and octavo doesn't honour yet. None of them is ever ignored."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "logit_bias": ({},),
    "max_completion_tokens": (),
    "min_tokens": (0,),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "priority": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "structured_outputs": (),
    "suffix": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
}
"""Parameters that clients know and a request model here may not, with the values that change
nothing. Any other value is refused by name, never ignored. Whoever brings a parameter makes it a
field of the request and takes it out of here."""


def find_unsupported(raw: Mapping[str, Any], model: type[BaseModel]) -> str | None:
    """The first parameter whose value would have to be ignored."""
    candidates = raw.keys() & UNSUPPORTED.keys() - model.model_fields.keys()
    return next((name for name in sorted(candidates) if not _is_neutral(name, raw[name])), None)


def _is_neutral(name: str, value: object) -> bool:
    """Whether the value changes nothing; true isn't 1 here, nor false 0."""
    return value is None or any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        for neutral in UNSUPPORTED[name]
    )

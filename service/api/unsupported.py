"""The parameters that clients know and octavo doesn't honour, with the values that change nothing.

Any other value is refused by name: what would change the answer is never ignored. Whoever brings a
parameter makes it a field of the request model and takes it out of here.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

ANYTHING = object()
"""No value changes the answer: it is about accounts, storage or speed, and ignored on purpose."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    # OpenAI's
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "max_completion_tokens": (),
    "metadata": (ANYTHING,),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (ANYTHING,),
    "prompt_cache_key": (ANYTHING,),
    "prompt_cache_options": (ANYTHING,),
    "prompt_cache_retention": (ANYTHING,),
    "reasoning_effort": (),
    "safety_identifier": (ANYTHING,),
    "service_tier": (ANYTHING,),
    "store": (ANYTHING,),
    "suffix": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "user": (ANYTHING,),
    "verbosity": ("medium",),
    "web_search_options": (),
    # vLLM's
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": (),
    "repetition_detection": (),
    "request_id": (),
    "spaces_between_special_tokens": (True, False),
    "structural_tag": (),
    "thinking_token_budget": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}


def find_unsupported(raw: Mapping[str, Any], model: type[BaseModel]) -> str | None:
    """The first parameter whose value would have to be ignored."""
    candidates = raw.keys() & NEUTRAL.keys() - model.model_fields.keys()
    return next((name for name in sorted(candidates) if not _is_neutral(name, raw[name])), None)


def _is_neutral(name: str, value: object) -> bool:
    """Whether the value changes nothing; true isn't 1 here, nor false 0."""
    return value is None or any(
        neutral is ANYTHING
        or (value == neutral and isinstance(value, bool) == isinstance(neutral, bool))
        for neutral in NEUTRAL[name]
    )

"""Rotary positions and their scalings, as config.json and GGUF metadata describe them."""

import math
from typing import Any

from model.fields import Fields
from model.scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)

DEFAULT_THETA = 10_000.0
KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "su")


def read_rope(
    config: Fields,
    *,
    head_dim: int,
    theta: float = DEFAULT_THETA,
    share: float = 1.0,
    context_len: int | None = None,
) -> dict[str, Any]:
    """The last three: where the file doesn't say.

    Version 5 of transformers writes rope_parameters; before, the same was in several places.
    """
    context_len = config.integer("max_position_embeddings", context_len)
    rope = config.group("rope_parameters" if config.get("rope_parameters") else "rope_scaling")
    scaling = read_scaling(config, rope, context_len)
    old_theta = config.number("rope_theta", config.number("rotary_emb_base", theta))
    old_share = config.number("partial_rotary_factor", config.number("rotary_pct", share))
    share = rope.number("partial_rotary_factor", old_share)
    return {
        "rope_theta": rope.number("rope_theta", old_theta),
        "rope_scaling": scaling,
        "rope_dim": None if share == 1 else int(head_dim * share),
        "context_len": stretched(scaling, context_len),
    }


def read_scaling(config: Fields, rope: Fields, context_len: int) -> RopeScaling | None:
    name = "rope_type" if rope.get("rope_type") else "type"  # the older name
    rope.allow(name, *KINDS)
    match rope.get(name):
        case "linear":
            return LinearScaling(factor=rope.number("factor"))
        case "dynamic":
            return DynamicScaling(factor=rope.number("factor"), original_context_len=context_len)
        case "llama3":
            return _llama3(rope)
        case "yarn":
            return _yarn(rope, context_len)
        case "longrope" | "su":
            return _longrope(config, rope, context_len)
        case _:
            return None


def stretched(scaling: RopeScaling | None, context_len: int) -> int:
    """What max_position_embeddings means: for these two kinds it may be the original context."""
    match scaling:
        case DynamicScaling():
            return int(scaling.factor * scaling.original_context_len)
        case YarnScaling():
            return max(context_len, int(scaling.factor * scaling.original_context_len))
        case _:
            return context_len


def _llama3(rope: Fields) -> Llama3Scaling:
    return Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_context_len=rope.integer("original_max_position_embeddings"),
    )


def _yarn(rope: Fields, context_len: int) -> YarnScaling:
    original_len = rope.integer("original_max_position_embeddings", context_len)
    factor = rope.number("factor", context_len / original_len)
    return YarnScaling(
        factor=factor,
        original_context_len=original_len,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=rope.number("attention_factor", _yarn_attention_factor(rope, factor)),
    )


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    wanted, divisor = rope.optional_number("mscale"), rope.optional_number("mscale_all_dim")
    if wanted and divisor:
        return yarn_length(factor, wanted) / yarn_length(factor, divisor)
    return yarn_length(factor)


def yarn_length(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1


def _longrope(config: Fields, rope: Fields, context_len: int) -> LongRopeScaling:
    name = "original_max_position_embeddings"
    original_len = config.integer(name, rope.integer(name, context_len))
    factor = rope.number("factor", context_len / original_len)
    return LongRopeScaling(
        short_factors=rope.numbers("short_factor"),
        long_factors=rope.numbers("long_factor"),
        original_context_len=original_len,
        attention_factor=rope.number("attention_factor", longrope_length(factor, original_len)),
    )


def longrope_length(factor: float, original_len: int) -> float:
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_len))

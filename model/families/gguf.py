"""GGUF metadata → the fields of a ModelConfig, by the file's general.architecture.

What a family does at all times is in no metadata but in llama.cpp's code for it (src/models); such
constants are cited here. Tensors are looked at only for whether they are there.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from model.errors import ModelError
from model.families.rope import DEFAULT_THETA, longrope_length, stretched, yarn_length
from model.fields import Fields
from model.scaling import LinearScaling, LongRopeScaling, RopeScaling, YarnScaling
from model.weights.gguf import GgufHeader

Values = dict[str, Any]

LONG_DIVISORS, SHORT_DIVISORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""Phi-3's longrope: its factors are tensors, one of which divides the frequencies at load."""
GEMMA_27B_LAYERS = (46, 62)
"""Those whose queries are scaled by another number than the rest of their family's."""


class Source(NamedTuple):
    metadata: Fields
    fields: Fields
    """Those of the architecture."""
    header: GgufHeader


def describe(header: GgufHeader) -> Values:
    architecture = header.metadata.get("general.architecture")
    runs = ", ".join(READERS)
    if not isinstance(architecture, str) or architecture not in READERS:
        raise ModelError(
            f"general.architecture is {architecture!r}, which octavo can't run from GGUF. "
            f"It runs {runs}"
        )
    metadata = Fields(header.metadata, runs=runs)
    fields = Fields(header.metadata, prefix=f"{architecture}.", runs=runs)
    if architecture not in ROUTED:
        fields.allow("expert_count", 0)
    values = READERS[architecture](Source(metadata, fields, header))
    return {"family": architecture} | values


def _common(source: Source) -> Values:
    metadata, fields, header = source
    hidden_size, num_heads = (
        fields.integer("embedding_length"),
        fields.integer("attention.head_count"),
    )
    head_dim = fields.integer("attention.key_length", max(1, hidden_size // num_heads))
    fields.allow("attention.value_length", head_dim)
    return {
        "vocab_size": fields.integer(
            "vocab_size", len(metadata.get("tokenizer.ggml.tokens") or ())
        ),
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_layers": fields.integer("block_count"),
        "num_heads": num_heads,
        "num_kv_heads": fields.integer("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "tied_head": "output.weight" not in header.tensors,
        "qkv_bias": "blk.0.attn_q.bias" in header.tensors,
        "output_bias": "blk.0.attn_output.bias" in header.tensors,
        "feed_forward_bias": "blk.0.ffn_up.bias" in header.tensors,
    }


def _rms(source: Source) -> Values:
    values = _common(source)
    fields, context_len = source.fields, source.fields.integer("context_length")
    rope_dim = fields.integer("rope.dimension_count", values["head_dim"])
    scaling = _scaling(source, rope_dim=rope_dim, context_len=context_len)
    return values | {
        "norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": fields.number("rope.freq_base", DEFAULT_THETA),
        "rope_scaling": scaling,
        "rope_dim": None if rope_dim == values["head_dim"] else rope_dim,
        "context_len": stretched(scaling, context_len),
    }


def _scaling(source: Source, *, rope_dim: int, context_len: int) -> RopeScaling | None:
    """Llama 3's is a tensor without any metadata; see model.weights.load."""
    fields = source.fields
    original_len = fields.integer("rope.scaling.original_context_length", context_len)
    if LONG_DIVISORS in source.header.tensors:
        factor = context_len / original_len
        length = longrope_length(factor, original_len)
        ones = (1.0,) * (rope_dim // 2)
        return LongRopeScaling(
            short_factors=ones,
            long_factors=ones,
            original_context_len=original_len,
            attention_factor=fields.number("rope.scaling.attn_factor", length),
        )
    fields.allow("rope.scaling.type", "none", "linear", "yarn")
    match fields.get("rope.scaling.type"):
        case "linear":
            return LinearScaling(factor=fields.number("rope.scaling.factor"))
        case "yarn":
            factor = fields.number("rope.scaling.factor")
            return YarnScaling(
                factor=factor,
                original_context_len=original_len,
                beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
                truncate=True,
                attention_factor=yarn_length(factor),
            )
        case _:
            return None


def _llama(source: Source) -> Values:
    """Mistral and Mixtral, too."""
    values = _rms(source) | _window(source, lambda layer: True)
    if not source.fields.get("expert_count"):  # 0 is none, too
        return values
    return values | _experts(source) | {"expert_size": values["intermediate_size"]}


def _experts(source: Source) -> Values:
    fields = source.fields
    fields.allow("expert_shared_count", 0)
    fields.allow("expert_weights_norm", True)
    fields.allow("expert_weights_scale", 0.0, 1.0)
    return {
        "num_experts": fields.integer("expert_count"),
        "num_active_experts": fields.integer("expert_used_count"),
        "normalize_experts": True,
    }


def _qwen3(source: Source) -> Values:
    return _rms(source) | {"qk_norm": "head"}


def _qwen3moe(source: Source) -> Values:
    size = source.fields.integer("expert_feed_forward_length")
    return _qwen3(source) | _experts(source) | {"expert_size": size}


def _phi3(source: Source) -> Values:
    return _rms(source) | _window(source, lambda layer: True)


def _gemma(source: Source) -> Values:
    values = _rms(source)
    return values | {
        "activation": "gelu_tanh",
        "embedding_scale": math.sqrt(values["hidden_size"]),
    }


def _gemma2(source: Source) -> Values:
    values, fields = _gemma(source), source.fields
    is_27b = values["num_layers"] in GEMMA_27B_LAYERS
    scaled_dim = values["hidden_size"] / values["num_heads"] if is_27b else values["head_dim"]
    return (
        values
        | _window(source, lambda layer: layer % 2 == 0)
        | {
            "residual": "sandwich",
            "attention_scale": scaled_dim**-0.5,
            "attention_softcap": fields.optional_number("attn_logit_softcapping"),
            "logit_softcap": fields.optional_number("final_logit_softcapping"),
        }
    )


def _gemma3(source: Source) -> Values:
    period = source.fields.integer("attention.sliding_window_pattern", 6)
    return (
        _gemma2(source)
        | _window(source, lambda layer: (layer + 1) % period != 0)
        | {
            "qk_norm": "head",
            "rope_theta": source.fields.number("rope.freq_base", 1_000_000.0),
            "local_rope_theta": source.fields.number("rope.freq_base_swa", 10_000.0),
        }
    )


def _gpt2(source: Source) -> Values:
    num_positions = source.fields.integer("context_length")
    return _common(source) | {
        "norm_eps": source.fields.number("attention.layer_norm_epsilon", 1e-5),
        "rope_theta": 1.0,
        "rope_scaling": None,
        "context_len": num_positions,
        "positions": "learned",
        "num_positions": num_positions,
        "norm": "layer",
        "norm_bias": True,
        "activation": "gelu_tanh",
        "gated": False,
        "qkv_bias": True,
    }


def _window(source: Source, is_local: Callable[[int], bool]) -> Values:
    if not source.fields.get("attention.sliding_window"):  # 0 is none, too
        return {}
    return {
        "sliding_window": source.fields.integer("attention.sliding_window"),
        "local_layers": frozenset(filter(is_local, source.fields.layers("block_count"))),
    }


ROUTED = ("llama", "qwen3moe")
"""Architectures whose feed-forward networks may be experts."""
READERS = {
    "llama": _llama,
    "qwen2": _rms,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt2": _gpt2,
}

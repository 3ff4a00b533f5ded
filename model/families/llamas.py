"""The families that grew from Llama: what each does otherwise, by its config.json."""

import math

from model.families.common import (
    Values,
    activation,
    biases,
    common,
    layers,
    window_by_layer,
    window_everywhere,
)
from model.families.rope import DEFAULT_THETA, read_scaling
from model.fields import Fields

GEMMA_3_SIZES = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}


def llama(config: Fields) -> Values:
    config.allow("hidden_act", "silu")
    return common(config) | biases(config)


def mistral(config: Fields, *, theta: float = DEFAULT_THETA) -> Values:
    return common(config, theta=theta) | window_everywhere(config)


def mixtral(config: Fields) -> Values:
    experts = {
        "num_experts": config.integer("num_local_experts"),
        "num_active_experts": config.integer("num_experts_per_tok"),
        "normalize_experts": True,
        "expert_size": config.integer("intermediate_size"),
    }
    return mistral(config, theta=1_000_000.0) | experts


def qwen2(config: Fields) -> Values:
    return common(config) | {"qkv_bias": True} | _window_of_last_layers(config)


def _window_of_last_layers(config: Fields) -> Values:
    if not config.flag("use_sliding_window"):
        return {}
    first = config.integer("max_window_layers", 28)
    return window_by_layer(config, lambda layer: layer >= first)


def qwen3(config: Fields) -> Values:
    bias = config.flag("attention_bias")
    changes = {"qk_norm": "head", "qkv_bias": bias, "output_bias": bias}
    return common(config) | changes | _window_of_last_layers(config)


def qwen3_moe(config: Fields) -> Values:
    config.allow("use_sliding_window", False)
    period = config.integer("decoder_sparse_step", 1)
    without = config.integers("mlp_only_layers") or ()
    return qwen3(config) | {
        "num_experts": config.integer("num_experts", config.integer("num_local_experts", 128)),
        "num_active_experts": config.integer("num_experts_per_tok"),
        "normalize_experts": config.flag("norm_topk_prob"),
        "expert_size": config.integer("moe_intermediate_size"),
        "dense_layers": frozenset(
            layer for layer in layers(config) if layer in without or (layer + 1) % period
        ),
    }


def gemma(config: Fields) -> Values:
    config.allow("use_bidirectional_attention", False)
    config.allow("hidden_act", "gelu", "gelu_pytorch_tanh")  # by either they mean the latter
    values = common(config, tied=True)
    bias = config.flag("attention_bias")
    return values | {
        "activation": activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        "embedding_scale": math.sqrt(values["hidden_size"]),
        "qkv_bias": bias,
        "output_bias": bias,
    }


def gemma2(config: Fields) -> Values:
    return (
        gemma(config)
        | window_by_layer(config, lambda layer: layer % 2 == 0)
        | {
            "residual": "sandwich",
            "attention_scale": config.number("query_pre_attn_scalar", 256.0) ** -0.5,
            "attention_softcap": config.optional_number("attn_logit_softcapping"),
            "logit_softcap": config.optional_number("final_logit_softcapping"),
        }
    )


def gemma3(config: Fields) -> Values:
    period = config.integer("sliding_window_pattern", 6)
    windows = window_by_layer(config, lambda layer: (layer + 1) % period != 0)
    rope = _rope_by_kind(config, theta=1_000_000.0, local_theta=10_000.0)
    return gemma2(config) | windows | {"qk_norm": "head"} | rope


def gemma3_with_images(config: Fields) -> Values:
    """The text's side of it, whose description leaves out what is as in the first of them."""
    return gemma3(config.group("text_config", GEMMA_3_SIZES))


def _rope_by_kind(config: Fields, *, theta: float, local_theta: float | None = None) -> Values:
    """Of layers that see all and of those that see a window, which aren't scaled.

    Version 5 has parameters for each kind, earlier ones two thetas or but one.
    """
    rope = config.group("rope_parameters")
    context_len = config.integer("max_position_embeddings", 131_072)
    if not rope.get("full_attention"):
        scaled = config.group("rope_scaling")
        theta = config.number("rope_theta", theta)
        return {
            "rope_theta": theta,
            "rope_scaling": read_scaling(config, scaled, context_len),
            "local_rope_theta": config.number("rope_local_base_freq", local_theta or theta),
        }
    whole, local = rope.group("full_attention"), rope.group("sliding_attention")
    local.allow("rope_type", "default")
    return {
        "rope_theta": whole.number("rope_theta"),
        "rope_scaling": read_scaling(config, whole, context_len),
        "local_rope_theta": local.number("rope_theta"),
    }


def phi3(config: Fields) -> Values:
    return common(config) | window_everywhere(config)


def smollm3(config: Fields) -> Values:
    period = config.integer("no_rope_layer_interval", 4)
    rotated = config.integers("no_rope_layers") or [(i + 1) % period for i in layers(config)]
    unrotated = frozenset(layer for layer, rotates in enumerate(rotated) if not rotates)
    has_windows = config.flag("use_sliding_window")
    windows = window_by_layer(config, unrotated.__contains__) if has_windows else {}
    values = common(config, tied=True, theta=2_000_000.0) | biases(config)
    return values | windows | {"unrotated_layers": unrotated}


def olmo2(config: Fields) -> Values:
    bias = config.flag("attention_bias")
    changes = {"qk_norm": "width", "residual": "post"}
    return common(config) | changes | {"qkv_bias": bias, "output_bias": bias}


def olmo3(config: Fields) -> Values:
    windows = window_by_layer(config, lambda layer: (layer + 1) % 4 != 0)
    return olmo2(config) | windows | _rope_by_kind(config, theta=500_000.0)


def granite(config: Fields) -> Values:
    return (
        common(config)
        | biases(config)
        | {
            "embedding_scale": config.number("embedding_multiplier", 1.0),
            "attention_scale": config.number("attention_multiplier", 1.0),
            "residual_scale": config.number("residual_multiplier", 1.0),
            "logit_scale": 1 / config.number("logits_scaling", 1.0),
        }
    )

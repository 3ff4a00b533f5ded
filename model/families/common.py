"""What config.json says by the same names in most families, read into the fields of a ModelConfig.

Knows no family.
"""

from collections.abc import Callable
from typing import Any

from model.families.rope import DEFAULT_THETA, read_rope
from model.fields import Fields

Values = dict[str, Any]

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def dimensions(config: Fields) -> Values:
    """By the names that most families share."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", max(1, hidden_size // num_heads))
    return {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden_size,
        "num_layers": config.integer("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": config.integer("num_key_value_heads", num_heads),
        "head_dim": head_dim,
        "tied_head": config.flag("tie_word_embeddings"),
    }


def common(
    config: Fields, *, tied: bool = False, theta: float = DEFAULT_THETA, share: float = 1.0
) -> Values:
    """tied, theta and share: where the file doesn't say."""
    values = dimensions(config)
    return values | {
        "intermediate_size": config.integer("intermediate_size"),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "activation": activation(config, "hidden_act", "silu"),
        "tied_head": config.flag("tie_word_embeddings", tied),
        **read_rope(config, head_dim=values["head_dim"], theta=theta, share=share),
    }


def biases(config: Fields) -> Values:
    attention = config.flag("attention_bias")
    return {
        "qkv_bias": attention,
        "output_bias": attention,
        "feed_forward_bias": config.flag("mlp_bias"),
    }


def window_everywhere(config: Fields) -> Values:
    window = config.optional_integer("sliding_window")
    if window is None or window >= config.integer("max_position_embeddings"):
        return {}
    return {"sliding_window": window, "local_layers": frozenset(layers(config))}


def window_by_layer(config: Fields, is_local: Callable[[int], bool]) -> Values:
    """is_local: holds where the file has no list of layer_types."""
    window = config.optional_integer("sliding_window")
    kinds = config.words("layer_types")
    if kinds is not None:
        local = frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
    else:
        local = frozenset(filter(is_local, layers(config)))
    return {"sliding_window": window, "local_layers": local} if window and local else {}


def layers(config: Fields) -> range:
    return config.layers("num_hidden_layers")


def activation(config: Fields, name: str, default: str) -> str:
    config.allow(name, *ACTIVATIONS)
    return ACTIVATIONS[config.get(name) or default]

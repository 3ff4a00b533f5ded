"""The families with LayerNorm, most of which grew from GPT: what each does, by its config.json."""

from model.families.common import (
    Values,
    activation,
    common,
    dimensions,
    layers,
    window_by_layer,
    window_everywhere,
)
from model.families.rope import read_rope
from model.fields import Fields


def stablelm(config: Fields) -> Values:
    config.allow("qk_layernorm", False)
    return common(config, share=0.25) | {
        "norm": "layer",
        "norm_bias": True,
        "norm_eps": config.number("layer_norm_eps", 1e-5),
        "qkv_bias": config.flag("use_qkv_bias"),
        "parallel": "one norm" if config.flag("use_parallel_residual") else "no",
    }


def starcoder2(config: Fields) -> Values:
    bias = config.flag("use_bias", True)
    return (
        common(config, tied=True)
        | window_everywhere(config)
        | {
            "norm": "layer",
            "norm_bias": True,
            "norm_eps": config.number("norm_epsilon", 1e-5),
            "activation": activation(config, "hidden_act", "gelu_pytorch_tanh"),
            "gated": False,
            "feed_forward_bias": bias,
            "qkv_bias": bias,
            "output_bias": bias,
        }
    )


def cohere(config: Fields) -> Values:
    config.allow("use_qk_norm", False)
    bias = config.flag("attention_bias")
    return common(config, tied=True, theta=500_000.0) | {
        "norm": "layer",
        "norm_eps": config.number("layer_norm_eps", 1e-5),
        "qkv_bias": bias,
        "output_bias": bias,
        "parallel": "one norm",
        "logit_scale": config.number("logit_scale", 0.0625),
    }


def cohere2(config: Fields) -> Values:
    """Positions are told apart in windows alone."""
    period = config.integer("sliding_window_pattern", 4)
    windows = window_by_layer(config, lambda layer: (layer + 1) % period != 0)
    local = windows.get("local_layers", frozenset())
    return cohere(config) | windows | {"unrotated_layers": frozenset(layers(config)) - local}


def gpt_neox(config: Fields) -> Values:
    bias = config.flag("attention_bias", True)
    parallel = config.flag("use_parallel_residual", True)
    return common(config, share=0.25) | {
        "num_kv_heads": config.integer("num_attention_heads"),
        "norm": "layer",
        "norm_bias": True,
        "norm_eps": config.number("layer_norm_eps", 1e-5),
        "activation": activation(config, "hidden_act", "gelu"),
        "gated": False,
        "feed_forward_bias": True,
        "qkv_bias": bias,
        "output_bias": bias,
        "parallel": "two norms" if parallel else "no",
    }


def falcon(config: Fields) -> Values:
    config.allow("alibi", False)
    values, bias = dimensions(config), config.flag("bias")
    grouped = config.flag("new_decoder_architecture")
    if not grouped:
        shared = config.flag("multi_query", True)
        values["num_kv_heads"] = 1 if shared else values["num_heads"]
    else:
        values["num_kv_heads"] = config.integer("num_kv_heads", values["num_heads"])
    return values | {
        "intermediate_size": config.integer("ffn_hidden_size", 4 * values["hidden_size"]),
        "tied_head": config.flag("tie_word_embeddings", True),
        "norm": "layer",
        "norm_bias": True,
        "norm_eps": config.number("layer_norm_epsilon", 1e-5),
        "activation": activation(config, "activation", "gelu"),
        "gated": False,
        "feed_forward_bias": bias,
        "qkv_bias": bias,
        "output_bias": bias,
        "parallel": _falcon_parallel(config, grouped=grouped),
        **read_rope(config, head_dim=values["head_dim"], context_len=2048),
    }


def _falcon_parallel(config: Fields, *, grouped: bool) -> str:
    if not config.flag("parallel_attn", True):
        return "no"
    norms = config.integer("num_ln_in_parallel_attn", 2 if grouped else 1)
    return "two norms" if grouped and norms == 2 else "one norm"


def gpt2(config: Fields) -> Values:
    config.allow("scale_attn_weights", True)
    config.allow("scale_attn_by_inverse_layer_idx", False)
    config.allow("reorder_and_upcast_attn", False)
    config.allow("add_cross_attention", False)
    return _gpt(config) | {
        "intermediate_size": config.integer("n_inner", 4 * config.integer("n_embd")),
        "activation": activation(config, "activation_function", "gelu_new"),
    }


def openai_gpt(config: Fields) -> Values:
    config.allow("afn", "gelu")  # by which it means the approximation
    return _gpt(config) | {
        "intermediate_size": 4 * config.integer("n_embd"),
        "activation": "gelu_tanh",
        "residual": "sum",
    }


def _gpt(config: Fields) -> Values:
    config.allow("quantization_config")  # of matrices that these families store transposed
    hidden_size, num_heads = config.integer("n_embd"), config.integer("n_head")
    num_positions = config.integer("n_positions")
    return {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden_size,
        "num_layers": config.integer("n_layer"),
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_dim": max(1, hidden_size // num_heads),
        "context_len": num_positions,
        "norm_eps": config.number("layer_norm_epsilon", 1e-5),
        "rope_theta": 1.0,
        "rope_scaling": None,
        "tied_head": config.flag("tie_word_embeddings", True),
        "positions": "learned",
        "num_positions": num_positions,
        "norm": "layer",
        "norm_bias": True,
        "gated": False,
        "feed_forward_bias": True,
        "qkv_bias": True,
        "output_bias": True,
    }

"""Which tensor of a file goes where in our model: names, rows and shapes, no values.

Our model holds Q, K and V in one matrix, and gate and up in another, so that each takes one
multiplication; files hold them apart:

    blocks.3.attention.qkv.weight     Hugging Face                              GGUF
    ├ rows [0, H*D)                   model.layers.3.self_attn.q_proj.weight    blk.3.attn_q.weight
    ├ rows [H*D, (H+K)*D)             model.layers.3.self_attn.k_proj.weight    blk.3.attn_k.weight
    └ rows [(H+K)*D, (H+2K)*D)        model.layers.3.self_attn.v_proj.weight    blk.3.attn_v.weight
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from model.config import ModelConfig

FREQUENCY_DIVISORS = "rope_freqs.weight"
"""How GGUF files hold Llama 3's scaling of the rotary frequencies; other models have none."""


class Place(NamedTuple):
    """A tensor of this shape fills the rows from first_row on of our parameter."""

    parameter: str
    shape: tuple[int, ...]
    first_row: int = 0
    interleaved_heads: int = 0
    """In how many heads the tensor's rows come in GGUF's order of Q and K; see weights.load."""


class Names(NamedTuple):
    hugging_face: str
    gguf: str
    place: Place


def hugging_face_places(config: ModelConfig) -> dict[str, Place]:
    return {
        f"{names.hugging_face}.weight": names.place._replace(interleaved_heads=0)
        for names in _all_names(config)
    }


def gguf_places(config: ModelConfig) -> dict[str, Place]:
    places = {f"{names.gguf}.weight": names.place for names in _all_names(config)}
    places[FREQUENCY_DIVISORS] = Place(FREQUENCY_DIVISORS, (config.head_dim // 2,))
    return places


def num_parameters(config: ModelConfig) -> int:
    """Counted without listing them: of a damaged description there may be too many to list."""
    layer = sum(prod(names.place.shape) for names in _layer_names(config))
    return config.num_layers * layer + sum(prod(n.place.shape) for n in _outer_names(config))


def _all_names(config: ModelConfig) -> Iterator[Names]:
    yield from _outer_names(config)
    for layer in range(config.num_layers):
        for names in _layer_names(config):
            place = names.place._replace(parameter=f"blocks.{layer}.{names.place.parameter}.weight")
            yield Names(
                f"model.layers.{layer}.{names.hugging_face}", f"blk.{layer}.{names.gguf}", place
            )


def _outer_names(config: ModelConfig) -> list[Names]:
    matrix = (config.vocab_size, config.hidden_size)
    head = Names("lm_head", "output", Place("head.weight", matrix))
    return [
        Names("model.embed_tokens", "token_embd", Place("embedding.weight", matrix)),
        Names("model.norm", "output_norm", Place("norm.weight", (config.hidden_size,))),
        *([] if config.tied_head else [head]),
    ]


def _layer_names(config: ModelConfig) -> list[Names]:
    W, F, H, K = config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads
    HD, KD = H * config.head_dim, K * config.head_dim
    qkv, gate_up = "attention.qkv", "feed_forward.gate_up"
    return [
        Names("input_layernorm", "attn_norm", Place("attention_norm", (W,))),
        Names("self_attn.q_proj", "attn_q", Place(qkv, (HD, W), interleaved_heads=H)),
        Names("self_attn.k_proj", "attn_k", Place(qkv, (KD, W), first_row=HD, interleaved_heads=K)),
        Names("self_attn.v_proj", "attn_v", Place(qkv, (KD, W), first_row=HD + KD)),
        Names("self_attn.o_proj", "attn_output", Place("attention.output", (W, HD))),
        Names("post_attention_layernorm", "ffn_norm", Place("feed_forward_norm", (W,))),
        Names("mlp.gate_proj", "ffn_gate", Place(gate_up, (F, W))),
        Names("mlp.up_proj", "ffn_up", Place(gate_up, (F, W), first_row=F)),
        Names("mlp.down_proj", "ffn_down", Place("feed_forward.down", (W, F))),
    ]

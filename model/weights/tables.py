"""What each family's files call the parts of a model, and in what order they hold the rows.

    parts of the whole    embedding positions norm head
    of each layer         attention_norm q k v (or qkv) q_norm k_norm output attention_post_norm
                          feed_forward_norm gate up (or gate_up) down feed_forward_post_norm
    of routed layers      router, and expert.gate expert.up expert.down of each expert

Adding a family takes a table here and a reader in model.families. Knows no shapes and no values.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Table(NamedTuple):
    prefix: str
    """What all names but the head's begin with, in most files."""
    layer: str
    names: Mapping[str, str]
    transposed: bool = False
    """The layers' matrices are stored as inputs x outputs."""
    norms_less_one: bool = False
    """A norm multiplies by 1 + what is stored."""
    grouped: bool = False
    """qkv holds the queries that share a key, that key, its value; then the next such group."""
    interleaved: bool = False
    """The rows of Q and K come in the order of rotated pairs; see model.weights.changes."""


_LLAMA_NAMES = {
    "embedding": "embed_tokens",
    "norm": "norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "router": "mlp.gate",
    "expert.gate": "mlp.experts.{}.gate_proj",
    "expert.up": "mlp.experts.{}.up_proj",
    "expert.down": "mlp.experts.{}.down_proj",
}
_LLAMA = Table("model.", "layers.{}.", _LLAMA_NAMES)
_SANDWICH = _LLAMA_NAMES | {
    "attention_post_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_post_norm": "post_feedforward_layernorm",
}
_GEMMA = _LLAMA._replace(norms_less_one=True)
_MIXTRAL = {
    "router": "block_sparse_moe.gate",
    "expert.gate": "block_sparse_moe.experts.{}.w1",
    "expert.up": "block_sparse_moe.experts.{}.w3",
    "expert.down": "block_sparse_moe.experts.{}.w2",
}
_STARCODER = {"up": "mlp.c_fc", "down": "mlp.c_proj"}
_FUSED = {"qkv": "self_attn.qkv_proj", "gate_up": "mlp.gate_up_proj"}
_GPT = Table(
    "transformer.",
    "h.{}.",
    {
        "embedding": "wte",
        "positions": "wpe",
        "norm": "ln_f",
        "head": "lm_head",
        "attention_norm": "ln_1",
        "qkv": "attn.c_attn",
        "output": "attn.c_proj",
        "feed_forward_norm": "ln_2",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    },
    transposed=True,
)
_GPT_1 = {
    "embedding": "tokens_embed",
    "positions": "positions_embed",
    "attention_post_norm": "ln_1",
    "feed_forward_post_norm": "ln_2",
}
_NEOX_NAMES = {
    "embedding": "embed_in",
    "norm": "final_layer_norm",
    "head": "embed_out",
    "attention_norm": "input_layernorm",
    "qkv": "attention.query_key_value",
    "output": "attention.dense",
    "feed_forward_norm": "post_attention_layernorm",
    "up": "mlp.dense_h_to_4h",
    "down": "mlp.dense_4h_to_h",
}
_FALCON = {
    "embedding": "word_embeddings",
    "norm": "ln_f",
    "head": "lm_head",
    "qkv": "self_attention.query_key_value",
    "output": "self_attention.dense",
}

HUGGING_FACE = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "smollm3", "granite", "stablelm"),
        _LLAMA,
    ),
    "mixtral": _LLAMA._replace(names=_LLAMA_NAMES | _MIXTRAL),
    "gemma": _GEMMA,
    "gemma2": _GEMMA._replace(names=_SANDWICH),
    "gemma3": _GEMMA._replace(names=_SANDWICH),
    "phi3": _LLAMA._replace(names=_LLAMA_NAMES | _FUSED),
    "olmo2": _LLAMA._replace(names=_SANDWICH),
    "olmo3": _LLAMA._replace(names=_SANDWICH),
    "starcoder2": _LLAMA._replace(names=_LLAMA_NAMES | _STARCODER),
    "cohere": _LLAMA._replace(interleaved=True),
    "cohere2": _LLAMA._replace(interleaved=True),
    "gpt2": _GPT,
    "openai-gpt": _GPT._replace(names=dict(_GPT.names) | _GPT_1),
    "gpt_neox": Table("gpt_neox.", "layers.{}.", _NEOX_NAMES, grouped=True),
    "falcon": Table("transformer.", "h.{}.", _NEOX_NAMES | _FALCON, grouped=True),
}

TWO_NORMS_IN_FALCON = {"attention_norm": "ln_attn", "feed_forward_norm": "ln_mlp"}
"""What Falcon calls its norms where there are two in parallel."""

_GGUF = Table(
    "",
    "blk.{}.",
    {
        "embedding": "token_embd",
        "positions": "position_embd",
        "norm": "output_norm",
        "head": "output",
        "attention_norm": "attn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "output": "attn_output",
        "attention_post_norm": "post_attention_norm",
        "feed_forward_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
        "feed_forward_post_norm": "post_ffw_norm",
        "router": "ffn_gate_inp",
        "expert.gate": "ffn_gate_exps.{}",
        "expert.up": "ffn_up_exps.{}",
        "expert.down": "ffn_down_exps.{}",
    },
)
_GGUF_FUSED = dict(_GGUF.names) | {"qkv": "attn_qkv"}

GGUF = {
    "llama": _GGUF._replace(interleaved=True),
    **dict.fromkeys(("qwen2", "qwen3", "qwen3moe", "gemma", "gemma2", "gemma3"), _GGUF),
    "phi3": _GGUF._replace(names=_GGUF_FUSED | {"gate_up": "ffn_up"}),
    "gpt2": _GGUF._replace(names=_GGUF_FUSED),
}

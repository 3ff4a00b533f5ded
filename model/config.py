"""A model's dimensions, read from a Hugging Face folder or a GGUF file; refused if we can't run it.

Imports no torch, so that the API process can check a model before the engine loads it. Knows
nothing of tensors, and of the tokenizer only how many tokens it has.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from model.errors import ModelError
from model.fields import Fields, read_json
from model.weights.gguf import GgufHeader, read_header

DEFAULT_ROPE_THETA = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """How Llama 3.1 slows the rotary frequencies whose wavelengths are long; see model.rope."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of the Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_len: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    tied_head: bool
    """The output head is the embedding's matrix."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} attention heads can't be shared out evenly among "
                f"{self.num_kv_heads} key-value heads"
            )
        if self.head_dim % 2:
            raise ModelError(f"the head dimension is {self.head_dim}, but RoPE needs an even one")


def load_config(path: Path) -> ModelConfig:
    """Of a folder with a config.json, or of a .gguf file."""
    if path.suffix == ".gguf":
        read = partial(from_gguf, read_header(path))
    elif path.is_dir():
        read = partial(from_folder, path)
    else:
        problem = "is neither a folder nor a .gguf file" if path.exists() else "doesn't exist"
        raise ModelError(f"{path} {problem}: give a Hugging Face folder or a .gguf file")
    try:
        return read()
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def from_folder(folder: Path) -> ModelConfig:
    config = Fields(read_json(folder / "config.json"))
    _refuse_unlike_llama(config)
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    rope = config.group("rope_parameters" if config.get("rope_parameters") else "rope_scaling")
    return ModelConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=config.integer("head_dim", hidden_size // num_heads),
        context_len=config.integer("max_position_embeddings"),
        norm_eps=config.number("rms_norm_eps"),
        rope_theta=rope.number("rope_theta", config.number("rope_theta", DEFAULT_ROPE_THETA)),
        rope_scaling=_rope_scaling(rope),
        tied_head=config.flag("tie_word_embeddings"),
    )


def from_gguf(header: GgufHeader) -> ModelConfig:
    metadata, llama = Fields(header.metadata), Fields(header.metadata, prefix="llama.")
    metadata.require("general.architecture", "llama")
    hidden_size, num_heads = (
        llama.integer("embedding_length"),
        llama.integer("attention.head_count"),
    )
    head_dim = llama.integer("attention.key_length", hidden_size // num_heads)
    _refuse_unlike_llama_in_gguf(llama, head_dim)
    return ModelConfig(
        vocab_size=llama.integer("vocab_size", len(metadata.get("tokenizer.ggml.tokens") or ())),
        hidden_size=hidden_size,
        intermediate_size=llama.integer("feed_forward_length"),
        num_layers=llama.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=llama.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        context_len=llama.integer("context_length"),
        norm_eps=llama.number("attention.layer_norm_rms_epsilon"),
        rope_theta=llama.number("rope.freq_base", DEFAULT_ROPE_THETA),
        rope_scaling=None,  # GGUF files hold Llama 3's as a tensor; see model.weights.load
        tied_head="output.weight" not in header.tensors,
    )


def _refuse_unlike_llama(config: Fields) -> None:
    config.require("architectures", ["LlamaForCausalLM"])
    config.allow("hidden_act", "silu")
    config.allow("attention_bias", False)
    config.allow("mlp_bias", False)
    config.allow("quantization_config")


def _refuse_unlike_llama_in_gguf(llama: Fields, head_dim: int) -> None:
    llama.allow("attention.value_length", head_dim)
    llama.allow("rope.dimension_count", head_dim)
    llama.allow("rope.scaling.type", "none")
    llama.allow("expert_count", 0)


def _rope_scaling(rope: Fields) -> Llama3Scaling | None:
    kind = "rope_type" if rope.get("rope_type") else "type"  # the older name
    rope.allow(kind, "default", "llama3")
    if rope.get(kind) != "llama3":
        return None
    return Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_context_len=rope.integer("original_max_position_embeddings"),
    )

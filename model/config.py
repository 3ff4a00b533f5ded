"""A model's dimensions and what makes it differ from Llama; refused if we can't run it.

Imports no torch, so that the API process can check a model before the engine loads it. Knows
nothing of tensors, and of the tokenizer only how many tokens it has. How files say all this is
model.families' business.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal

from model.errors import ModelError
from model.families import gguf, hugging_face
from model.fields import read_json
from model.quantization import Quantization
from model.scaling import LongRopeScaling, RopeScaling, YarnScaling
from model.weights.gguf import GgufHeader, read_header


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder. Where a field has a default, that is how Llama is."""

    family: str = "llama"
    """By transformers' name of the model type; it decides how a folder's tensors are called."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_len: int
    """What is served: a scaling of the rotary positions may depend on it."""
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_head: bool
    """The output head is the embedding's matrix."""

    positions: Literal["rotary", "learned", "sinusoidal"] = "rotary"
    num_positions: int = 0
    """Rows of the learned ones' table."""
    rope_dim: int | None = None
    """How many of a head's first dimensions are rotated, if not all."""
    local_rope_theta: float | None = None
    """Of layers that see a window, where theirs is another, and never scaled."""
    unrotated_layers: frozenset[int] = frozenset()

    sliding_window: int | None = None
    """How many tokens a token sees in local layers, itself included."""
    local_layers: frozenset[int] = frozenset()
    attention_scale: float | None = None
    """Of the scores, if it isn't 1/√head_dim."""
    attention_softcap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "head", "width"] = "none"
    """Queries and keys are normed: each head's, or all heads' together."""

    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    residual: Literal["pre", "sandwich", "post", "sum"] = "pre"
    """Where the norms are: before each branch, around it, behind it, or behind the sum."""
    parallel: Literal["no", "two norms", "one norm"] = "no"
    """Attention and feed-forward take the same input, each by its norm or both by one."""
    residual_scale: float = 1.0

    activation: Literal["silu", "gelu", "gelu_tanh", "relu"] = "silu"
    gated: bool = True
    feed_forward_bias: bool = False
    num_experts: int = 0
    num_active_experts: int = 0
    normalize_experts: bool = False
    """The active experts' weights add up to 1."""
    dense_layers: frozenset[int] = frozenset()
    """Those that have one feed-forward network and no experts, in a model with experts."""
    expert_size: int = 0

    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None

    quantization: Quantization | None = None
    """Of a folder's matrices; those in GGUF files say it themselves."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} attention heads can't be shared out evenly among "
                f"{self.num_kv_heads} key-value heads"
            )
        if self.rotary_dim % 2:
            which = "head" if self.rope_dim is None else "rotated"
            raise ModelError(
                f"the {which} dimension is {self.rotary_dim}, but RoPE needs an even one"
            )
        if isinstance(self.rope_scaling, LongRopeScaling):
            self._check_factors(self.rope_scaling)

    def _check_factors(self, scaling: LongRopeScaling) -> None:
        lens = {len(scaling.short_factors), len(scaling.long_factors)}
        num_pairs = self.rotary_dim // 2
        if lens != {num_pairs}:
            raise ModelError(
                f"longrope has {sorted(lens)} factors instead of one for each of the {num_pairs} "
                "pairs of dimensions that are rotated"
            )

    @property
    def rotary_dim(self) -> int:
        if self.positions != "rotary":
            return 0
        return self.head_dim if self.rope_dim is None else self.rope_dim

    @property
    def rotation_scale(self) -> float:
        """Lengthens queries and keys as they are rotated."""
        scaling = self.rope_scaling
        return (
            scaling.attention_factor if isinstance(scaling, YarnScaling | LongRopeScaling) else 1.0
        )

    @property
    def is_plain_llama(self) -> bool:
        """RMSNorm, rotary positions, grouped-query attention and SwiGLU, and nothing else."""
        variants = (field for field in fields(self) if field.default is not MISSING)
        differing = {v.name for v in variants if getattr(self, v.name) != v.default}
        return not differing - {"family", "quantization"} and self.rotation_scale == 1


def load_config(path: Path) -> ModelConfig:
    """Of a folder with a config.json, or of a .gguf file."""
    read: Callable[[], ModelConfig]
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
    return ModelConfig(**hugging_face.describe(read_json(folder / "config.json")))


def from_gguf(header: GgufHeader) -> ModelConfig:
    return ModelConfig(**gguf.describe(header))

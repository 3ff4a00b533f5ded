"""Families in GGUF files: what transformers computes, of tensors named by the gguf package's map.

The files are written as llama.cpp's convert_hf_to_gguf.py writes them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from model.config import ModelConfig, load_config
from model.errors import ModelError
from model.families import gguf as gguf_families
from model.families.gguf import LONG_DIVISORS, SHORT_DIVISORS
from model.weights.gguf import GgufHeader
from tests.families import KINDS, LONG_FACTORS, SHORT_FACTORS, WINDOW
from tests.test_families import Pair, assert_same_logits, load, some_ids

Metadata = dict[str, float | int | str]
Tensors = Iterator[tuple[str, Tensor]]

THETA = 1000.0
PLAIN = {"rope_type": "default", "rope_theta": THETA}
GEMMA_3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": THETA, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
LINEAR: Metadata = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
YARN: Metadata = {
    **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
    "rope.scaling.original_context_length": 32,
}
LONGROPE: Metadata = {"rope.scaling.original_context_length": 32}
SOFTCAPS: Metadata = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
WINDOWS: Metadata = {"attention.sliding_window": WINDOW}
"""Beside what `metadata_of` says of every model."""


def as_they_are(model: PreTrainedModel) -> Tensors:
    for name, tensor in model.state_dict().items():
        if not (name.startswith("lm_head") and model.config.tie_word_embeddings):
            yield name, tensor


def permuted(model: PreTrainedModel) -> Tensors:
    """The two rows of a pair that RoPE turns come side by side."""
    for name, tensor in as_they_are(model):
        if "q_proj" in name or "k_proj" in name:
            pairs = tensor.view(-1, 2, model.config.head_dim // 2, *tensor.shape[1:])
            yield name, pairs.transpose(1, 2).reshape(tensor.shape)
        else:
            yield name, tensor


def with_one_added(model: PreTrainedModel) -> Tensors:
    for name, tensor in as_they_are(model):
        yield name, tensor + 1 if "norm" in name else tensor


def transposed(model: PreTrainedModel) -> Tensors:
    for name, tensor in as_they_are(model):
        yield name, tensor.T if ".c_" in name and tensor.dim() == 2 else tensor


def stacked(
    model: PreTrainedModel, tensors: Callable[[PreTrainedModel], Tensors] = as_they_are
) -> Tensors:
    """The experts' matrices one upon the other, each kind by itself."""
    for name, tensor in tensors(model):
        block = f"blk.{name.split('.')[2]}." if "layers" in name else ""
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            yield f"{block}ffn_gate_exps.weight", gate
            yield f"{block}ffn_up_exps.weight", up
        elif name.endswith("experts.down_proj"):
            yield f"{block}ffn_down_exps.weight", tensor
        else:
            yield name, tensor


def with_factors(model: PreTrainedModel) -> Tensors:
    yield from as_they_are(model)
    yield SHORT_DIVISORS, torch.tensor(SHORT_FACTORS)
    yield LONG_DIVISORS, torch.tensor(LONG_FACTORS)


class File:
    """What a file is made from: a kind of model, and how a converter would store it."""

    def __init__(
        self,
        architecture: str,
        kind: str,
        tensors: Callable[[PreTrainedModel], Tensors] = as_they_are,
        metadata: Metadata | None = None,
        **changes: Any,
    ) -> None:
        self.architecture, self.kind, self.tensors = architecture, kind, tensors
        self.metadata, self.changes = metadata or {}, changes


FILES = {
    "llama": File("llama", "Llama", permuted),
    "llama with biases": File("llama", "Llama with biases", permuted),
    "mistral": File("llama", "Mistral", permuted, WINDOWS),
    "mixtral": File("llama", "Mixtral", partial(stacked, tensors=permuted), head_dim=8),
    "qwen2": File("qwen2", "Qwen2"),
    "qwen2 with YaRN": File(
        "qwen2",
        "Qwen2",
        metadata=YARN,
        rope_parameters=PLAIN
        | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ),
    "qwen3": File("qwen3", "Qwen3"),
    "qwen3moe": File("qwen3moe", "Qwen3-MoE", stacked, mlp_only_layers=[]),
    "gemma": File("gemma", "Gemma", with_one_added),
    "gemma2": File(
        "gemma2", "Gemma 2", with_one_added, SOFTCAPS | WINDOWS, query_pre_attn_scalar=12
    ),
    "gemma3": File(
        "gemma3",
        "Gemma 3",
        with_one_added,
        WINDOWS | LINEAR,
        query_pre_attn_scalar=12,
        final_logit_softcapping=None,
        attn_logit_softcapping=None,
        sliding_window_pattern=6,
        num_hidden_layers=6,
        rope_parameters=GEMMA_3_ROPE,
    ),
    "phi3": File("phi3", "Phi-3", metadata=WINDOWS),
    "phi3 with longrope": File("phi3", "Phi-3, long", with_factors, LONGROPE),
    "phi3 with longrope, short": File("phi3", "Phi-3, short", with_factors, LONGROPE),
    "gpt2": File("gpt2", "GPT-2", transposed),
}


def metadata_of(model: PreTrainedModel) -> Metadata:
    config = model.config
    known = {
        "vocab_size": config.vocab_size,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "context_length": config.max_position_embeddings,
        "feed_forward_length": getattr(config, "intermediate_size", 4 * config.hidden_size),
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
        "attention.key_length": getattr(config, "head_dim", None),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "attention.layer_norm_epsilon": getattr(config, "layer_norm_epsilon", None),
        "rope.freq_base": THETA,
        "expert_count": getattr(config, "num_local_experts", None),
        "expert_used_count": getattr(config, "num_experts_per_tok", None),
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
    }
    return {key: value for key, value in known.items() if value is not None}


def write(
    path: Path, file: File, model: PreTrainedModel, tokenizer: dict[str, Any] | None = None
) -> None:
    writer = gguf.GGUFWriter(path, file.architecture)
    add: dict[type, Any] = {
        **{int: writer.add_uint32, float: writer.add_float32, str: writer.add_string},
        **{bool: writer.add_bool, list: writer.add_array},
    }
    for key, value in (metadata_of(model) | file.metadata).items():
        add[type(value)](f"{file.architecture}.{key}", value)
    for key, value in (tokenizer or {}).items():
        add[type(value)](key, value)
    architecture = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == file.architecture)
    names = gguf.get_tensor_name_map(architecture, model.config.num_hidden_layers)
    for name, tensor in file.tensors(model):
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
        writer.add_tensor(theirs, tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(file: File) -> PreTrainedModel:
    changes = dict(file.changes)
    kind = KINDS[file.kind]
    if "rope_parameters" not in changes:
        given = kind.changes.get("rope_parameters", {})
        changes["rope_parameters"] = PLAIN | given
    return kind.make(**changes)


@pytest.mark.parametrize("name", FILES)
def test_a_gguf_has_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    file, path = FILES[name], tmp_path / "model.gguf"
    kind = KINDS[file.kind]
    theirs = make(file)
    write(path, file, theirs)
    ours = load(path, served_len=kind.served_len)
    assert_same_logits(Pair(ours, theirs, some_ids(*kind.prompt_lens)), chunk_len=9)


@pytest.mark.parametrize("name", ["llama", "qwen2 with YaRN", "qwen3", "gemma2", "phi3", "gpt2"])
def test_a_folder_and_a_gguf_are_the_same_model(name: str, tmp_path: Path) -> None:
    theirs = make(FILES[name])
    theirs.save_pretrained(tmp_path)
    write(tmp_path / "model.gguf", FILES[name], theirs)
    folder, file = load_config(tmp_path), load_config(tmp_path / "model.gguf")
    assert numbers(folder) == numbers(file)


def numbers(config: ModelConfig) -> dict[str, Any]:
    """A GGUF file holds float32 numbers."""
    pairs = ((name, getattr(config, name)) for name in ModelConfig.__slots__)
    return {n: pytest.approx(v) if isinstance(v, float) else v for n, v in pairs}


def header(**metadata: Any) -> GgufHeader:
    values = {
        **{"general.architecture": "gemma2", "gemma2.vocab_size": 96},
        **{"gemma2.embedding_length": 4608, "gemma2.attention.head_count": 32},
        **{"gemma2.attention.key_length": 128, "gemma2.attention.value_length": 128},
        **{"gemma2.feed_forward_length": 64, "gemma2.context_length": 8192},
        "gemma2.attention.layer_norm_rms_epsilon": 1e-6,
    }
    return GgufHeader(values | metadata, {}, 0)


@pytest.mark.parametrize(("num_layers", "scaled_dim"), [(42, 128), (46, 144)])
def test_gemma_27b_scales_by_another_number(num_layers: int, scaled_dim: int) -> None:
    values = gguf_families.describe(header(**{"gemma2.block_count": num_layers}))
    assert values["attention_scale"] == pytest.approx(scaled_dim**-0.5)


def test_an_endless_list_of_layers_is_refused() -> None:
    absurd = {"gemma2.block_count": 1 << 40, "gemma2.attention.sliding_window": 8}
    with pytest.raises(ModelError, match=r"gemma2.block_count is 1099511627776, which is more"):
        gguf_families.describe(header(**absurd))

"""Files → parameters: what transformers saves, and what the gguf package writes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from model.batch import Row
from model.config import load_config
from model.errors import ModelError
from model.linear import PackedLinear
from model.packing import pack
from model.transformer import Transformer
from model.weights.load import load_model
from model.weights.names import FREQUENCY_DIVISORS
from tests.tiny_llama import CONFIG, empty_cache, transformers_llama

IDS = [5, 17, 80, 3, 3, 41, 95, 0, 12, 66, 7, 8, 9, 31, 32, 33, 34, 35, 36, 37]

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PLAIN = {"rope_type": "default", "rope_theta": LLAMA3["rope_theta"]}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def load(path: Path) -> Transformer:
    return load_model(path, load_config(path), report=lambda name, fraction: None)


@torch.inference_mode()
def our_logits(model: Transformer) -> Tensor:
    batch = pack([Row(IDS, 0, [1, 0], None)], page_size=16)
    return model(batch, empty_cache(model, num_pages=2), output_rows_S=torch.arange(len(IDS)))


@torch.inference_mode()
def their_logits(model: LlamaForCausalLM) -> Tensor:
    return model(torch.tensor([IDS])).logits[0]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard_size", ["1GB", "10KB"])
def test_a_saved_folder_has_its_logits(tied: bool, shard_size: str, tmp_path: Path) -> None:
    theirs = transformers_llama(tie_word_embeddings=tied)
    theirs.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard_size == "10KB")
    torch.testing.assert_close(our_logits(load(tmp_path)), their_logits(theirs))


def test_llama3_scaling_has_its_logits(tmp_path: Path) -> None:
    theirs = transformers_llama(rope_parameters=LLAMA3)
    theirs.save_pretrained(tmp_path)
    torch.testing.assert_close(our_logits(load(tmp_path)), their_logits(theirs))


def test_half_precision_becomes_float32(tmp_path: Path) -> None:
    transformers_llama().bfloat16().save_pretrained(tmp_path)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ours = load(tmp_path)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(our_logits(ours), their_logits(theirs))


def test_linear_layers_come_packed(tmp_path: Path) -> None:
    transformers_llama().save_pretrained(tmp_path)
    linears = [type(m) for m in load(tmp_path).modules() if "Linear" in type(m).__name__]
    assert linears == [PackedLinear] * (4 * CONFIG.num_layers + 1)


def test_a_tied_head_that_is_not_packed_takes_no_memory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    transformers_llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours.head.weight.data_ptr() == ours.embedding.weight.data_ptr()


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_copies_of_what_is_known_are_ignored(tmp_path: Path) -> None:
    theirs = transformers_llama(tie_word_embeddings=True)
    theirs.save_pretrained(tmp_path)
    copies = {
        "lm_head.weight": torch.zeros(1),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    change_tensors(tmp_path, lambda tensors: tensors.update(copies))
    torch.testing.assert_close(our_logits(load(tmp_path)), their_logits(theirs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"),
            "'model.layers.1.mlp.up_proj.weight' is missing",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(1)}),
            "'model.layers.0.self_attn.q_proj.bias' is none of a llama model's",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(25)}),
            r"'model.norm.weight' has the shape \(25,\) instead of \(24,\)",
        ),
    ],
)
def test_tensors_unlike_the_description_are_refused_before_any_is_read(
    change: Callable[[dict[str, Tensor]], object], message: str, tmp_path: Path
) -> None:
    transformers_llama().save_pretrained(tmp_path)
    change_tensors(tmp_path, change)
    read: list[str] = []
    with pytest.raises(ModelError, match=message) as error:
        load_model(tmp_path, load_config(tmp_path), report=lambda name, _: read.append(name))
    assert str(error.value).startswith(str(tmp_path))
    assert not read


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    transformers_llama().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    for shard in ("a", "b"):
        save_file(tensors, tmp_path / f"{shard}.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="comes twice"):
        load(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_larger_than_memory_are_refused_before_any_is_read(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = transformers_llama(tie_word_embeddings=tied)
    theirs.save_pretrained(tmp_path)
    needed = 4 * (theirs.num_parameters() + theirs.lm_head.weight.numel())
    monkeypatch.setattr("model.weights.load.available_memory", lambda: needed)
    load(tmp_path)
    monkeypatch.setattr("model.weights.load.available_memory", lambda: needed - 1)
    with pytest.raises(ModelError, match=f"take {needed} bytes of memory"):
        load(tmp_path)


def test_a_description_with_absurd_numbers_is_refused_at_once(tmp_path: Path) -> None:
    transformers_llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"num_hidden_layers": 10**30, "hidden_size": 10**30}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="bytes of memory"):
        load(tmp_path)


def test_progress_counts_the_bytes_up_to_one(tmp_path: Path) -> None:
    transformers_llama().save_pretrained(tmp_path)
    seen: list[tuple[str, float]] = []
    load_model(tmp_path, load_config(tmp_path), report=lambda *news: seen.append(news))
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(set(fractions))
    assert fractions[-1] == 1
    told = [news.split(", ") for news, _ in seen]
    assert all(rate.endswith(" MB/s") for _, rate in told)
    assert told[0][0] == "model.embed_tokens.weight"
    assert "model.norm.weight" in {name for name, _ in told}


def gguf_name(name: str) -> str:
    for theirs, in_gguf in GGUF_NAMES.items():
        name = name.replace(theirs, in_gguf)
    return name


def gguf_order(name: str, tensor: Tensor) -> Tensor:
    """The two rows of a pair that RoPE turns come side by side."""
    if "q_proj" not in name and "k_proj" not in name:
        return tensor
    first, second = tensor.view(-1, 2, CONFIG.head_dim // 2, tensor.shape[1]).unbind(1)
    return torch.stack((first, second), dim=2).reshape(tensor.shape)


def write_gguf(path: Path, model: LlamaForCausalLM, extra: dict[str, Tensor]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(CONFIG.vocab_size)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_block_count(CONFIG.num_layers)
    writer.add_head_count(CONFIG.num_heads)
    writer.add_head_count_kv(CONFIG.num_kv_heads)
    writer.add_key_length(CONFIG.head_dim)
    writer.add_value_length(CONFIG.head_dim)
    writer.add_context_length(CONFIG.context_len)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(LLAMA3["rope_theta"])
    tensors = {gguf_name(n): gguf_order(n, t) for n, t in model.state_dict().items()}
    for name, tensor in (tensors | extra).items():
        writer.add_tensor(name, np.ascontiguousarray(tensor.float().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_has_the_logits_of_the_folder(tmp_path: Path) -> None:
    theirs = transformers_llama(rope_parameters=PLAIN, tie_word_embeddings=False)
    write_gguf(tmp_path / "m.gguf", theirs, {})
    torch.testing.assert_close(our_logits(load(tmp_path / "m.gguf")), their_logits(theirs))


def test_frequency_divisors_in_a_gguf_are_llama3_scaling(tmp_path: Path) -> None:
    theirs = transformers_llama(rope_parameters=LLAMA3, tie_word_embeddings=False)
    plain = transformers_llama(rope_parameters=PLAIN)
    divisors = plain.model.rotary_emb.inv_freq / theirs.model.rotary_emb.inv_freq
    write_gguf(tmp_path / "m.gguf", theirs, {FREQUENCY_DIVISORS: divisors})
    torch.testing.assert_close(our_logits(load(tmp_path / "m.gguf")), their_logits(theirs))


def test_to_build_the_model_imports_nothing_more() -> None:
    """Drawing first weights would import torch.compile, which takes a second."""
    check = (
        "import sys; from model.config import ModelConfig; from model.weights.load import skeleton;"
        f"before = set(sys.modules); skeleton({CONFIG!r});"
        "sys.exit(sorted(sys.modules.keys() - before - {'torch.utils._device'}) or 0)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)

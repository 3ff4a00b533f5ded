"""GGUF files whose blocks the native model takes as they are, against PyTorch on the same files."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

from model.batch import Row
from model.config import ModelConfig, load_config
from model.kv_cache import KVCache
from model.native.cache import NativeCache
from model.native.library import PAGE_SIZE, builds
from model.native.transformer import NativeTransformer, load_native
from model.packing import pack
from model.torch_runner import Cache, Model
from model.weights.load import load_model, read_parameters
from model.weights.names import FREQUENCY_DIVISORS, gguf_places

W, F, V, H, K, D = 64, 160, 96, 4, 2, 16
NUM_PAGES = 4


def write_gguf(path: Path, types: dict[str, str], *, tied_head: bool = False) -> None:
    """A random model whose matrices are of the type that their name's last part has, or F32."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(V)
    writer.add_embedding_length(W)
    writer.add_feed_forward_length(F)
    writer.add_block_count(2)
    writer.add_head_count(H)
    writer.add_head_count_kv(K)
    writer.add_key_length(D)
    writer.add_value_length(D)
    writer.add_context_length(256)
    writer.add_layer_norm_rms_eps(1e-5)
    write_tensors(writer, types, tied_head=tied_head)


def write_tensors(writer: gguf.GGUFWriter, types: dict[str, str], *, tied_head: bool) -> None:
    generator = np.random.default_rng(0)
    config = ModelConfig(
        family="llama",
        vocab_size=V,
        hidden_size=W,
        intermediate_size=F,
        num_layers=2,
        num_heads=H,
        num_kv_heads=K,
        head_dim=D,
        context_len=256,
        norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        tied_head=tied_head,
    )
    for name, place in gguf_places(config).items():
        if name == FREQUENCY_DIVISORS:
            continue
        values = generator.standard_normal(place.shape).astype(np.float32)
        values *= np.float32(W**-0.5 if values.ndim == 2 else 1)
        kind = GGMLQuantizationType[types.get(name.split(".")[-2], "F32")]
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ignore(what: str, share: float) -> None:
    pass


@torch.inference_mode()
def logits(model: Model, cache: Cache) -> Tensor:
    ids = [(7 * i) % V for i in range(50)]
    batch = pack([Row(ids, 0, range(NUM_PAGES), None)], page_size=PAGE_SIZE)
    return model.logits(model.hidden(batch, cache))


ALL = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output"]


def all_of(kind: str, **others: str) -> dict[str, str]:
    return dict.fromkeys(ALL, kind) | others


@pytest.mark.parametrize(
    "types",
    [
        all_of("Q4_0"),
        all_of("Q4_1", token_embd="Q4_1"),
        all_of("Q4_1", attn_v="Q8_0", ffn_up="Q4_0"),
        all_of("Q8_0"),
        all_of("Q8_0", token_embd="Q8_0"),
        {},
    ],
    ids=["Q4_0", "Q4_1", "mixed", "Q8_0", "Q8_0, embedding as well", "F32"],
)
def test_a_file_of_any_type_has_the_logits_that_pytorch_finds_in_it(
    types: dict[str, str], tmp_path: Path
) -> None:
    """Up to the rounding of inputs and of what is attended to."""
    path = tmp_path / "m.gguf"
    write_gguf(path, types)
    config = load_config(path)
    exact = load_model(path, config, report=ignore)
    expected = logits(
        exact,
        KVCache.allocate(config, num_pages=NUM_PAGES, page_size=PAGE_SIZE, dtype=torch.float32),
    )
    native = load_native(path, config, build=builds()[0], threads=1, report=ignore)
    found = logits(native, NativeCache(config, num_pages=NUM_PAGES))
    assert (found - expected).square().mean().sqrt() < 0.1 * expected.std()


@pytest.mark.parametrize("build", builds())
@pytest.mark.parametrize("tied_head", [False, True])
def test_blocks_of_8_bits_are_the_same_model_as_their_values(
    tied_head: bool, build: str, tmp_path: Path
) -> None:
    """To the last bit: they are packed, and looked up, as the floats that they stand for."""
    path = tmp_path / "m.gguf"
    write_gguf(path, all_of("Q8_0", token_embd="Q8_0"), tied_head=tied_head)
    config = load_config(path)
    assert config.tied_head == tied_head
    of_blocks = load_native(path, config, build=build, threads=2, report=ignore)
    of_values = NativeTransformer(config, build=build, threads=2)
    read_parameters(path, config, of_values.set, report=ignore)
    found, expected = (
        logits(model, NativeCache(config, num_pages=NUM_PAGES)) for model in (of_blocks, of_values)
    )
    assert found.equal(expected)


def test_blocks_come_only_where_all_of_a_matrix_is_of_one_kept_type(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, all_of("Q4_1", attn_v="Q4_0", ffn_down="Q8_0", token_embd="Q4_1"))
    taken: dict[str, Tensor] = {}
    read_parameters(
        path,
        load_config(path),
        taken.__setitem__,
        report=ignore,
        kept_types=("Q4_0", "Q4_1"),
    )
    kinds = {name: values.dtype for name, values in taken.items() if values.dim() > 1}
    assert {name for name, kind in kinds.items() if kind == torch.uint8} == {
        "embedding.weight",
        "head.weight",
        *(f"blocks.{i}.attention.output.weight" for i in range(2)),
        *(f"blocks.{i}.feed_forward.gate_up.weight" for i in range(2)),
    }
    assert taken["blocks.0.feed_forward.gate_up.weight"].shape == (2 * F, W // 32, 20)
    assert taken["embedding.weight"].shape == (V, W // 32, 20)

"""Quantized folders have the logits of what their numbers stand for; others are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from model.errors import ModelError
from model.families.hugging_face import describe
from tests.fakes_quantized import Maker, awq, compressed, fp8, gptq, int8, packed
from tests.families import KINDS
from tests.test_families import Pair, assert_same_logits, load, some_ids
from tests.test_gguf_families import as_they_are

FP8: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
BLOCKS = FP8 | {"weight_block_size": [12, 20]}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm", "zero_point": True}
INT4 = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=8)
INT8 = compressed("int-quantized", num_bits=8, type="int", strategy="channel")
FLOAT8 = compressed("float-quantized", num_bits=8, type="float", strategy="channel")
FLOAT8_BLOCKS = compressed(
    "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[12, 20]
)

SCHEMES: dict[str, tuple[Maker, dict[str, Any]]] = {
    "fp8 in blocks": (fp8(block=(12, 20)), BLOCKS),
    "fp8, one scale": (fp8(), FP8),
    "fp8, scales of rows": (fp8(by_row=True), FLOAT8),
    "fp8, compressed-tensors' blocks": (fp8(block=(12, 20)), FLOAT8_BLOCKS),
    "int8": (int8(symmetric=True), INT8),
    "int8 with zero points": (int8(symmetric=False), INT8),
    "GPTQ": (gptq(), GPTQ),
    "GPTQ, in order": (gptq(indexed=False), GPTQ | {"desc_act": False}),
    "GPTQ, second format": (gptq(shift=0), GPTQ | {"checkpoint_format": "gptq_v2"}),
    "GPTQ of 2 bits": (gptq(bits=2), GPTQ | {"bits": 2}),
    "GPTQ of 8 bits": (gptq(bits=8), GPTQ | {"bits": 8}),
    "AWQ": (awq, AWQ),
    "packed": (packed(), INT4),
    "packed with zero points": (packed(symmetric=False), INT4),
    "packed out of order": (packed(indexed=True), INT4),
    "packed, 8 bits": (
        packed(bits=8),
        compressed("pack-quantized", num_bits=8, type="int", strategy="group"),
    ),
}


def quantize(model: PreTrainedModel, folder: Path, scheme: str) -> None:
    """Gives the model the values that are stored in its stead; its head stays as it is."""
    maker, config = SCHEMES[scheme]
    tensors: dict[str, Tensor] = {}
    weights = dict(as_they_are(model))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            parts, module.weight.data = maker(*module.weight.shape)
            del weights[f"{name}.weight"]
            tensors |= {f"{name}.{kind}": part for kind, part in parts.items()}
    save_file(weights | tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config_json = model.config.to_dict() | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(config_json))


@pytest.fixture
def random_numbers() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.usefixtures("random_numbers")
def test_a_quantized_folder_has_the_logits_of_its_values(scheme: str, tmp_path: Path) -> None:
    theirs = KINDS["Llama"].make()
    quantize(theirs, tmp_path, scheme)
    ours = load(tmp_path)
    assert ours.config.is_plain_llama
    assert_same_logits(Pair(ours, theirs, some_ids(20, 7)))


@pytest.mark.parametrize("kind", ["Qwen2", "Gemma 2"])
@pytest.mark.usefixtures("random_numbers")
def test_other_families_are_quantized_alike(kind: str, tmp_path: Path) -> None:
    """With biases, and with widths that leave the last block of fp8 a part of one."""
    theirs = KINDS[kind].make()
    quantize(theirs, tmp_path, "fp8 in blocks")
    assert_same_logits(Pair(load(tmp_path), theirs, some_ids(20, 7)))


def damage(folder: Path, name: str, tensor: Tensor | None) -> None:
    """Of the first layer's last matrix, one tensor is another, or is missing."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors[f"model.layers.0.mlp.down_proj.{name}"]
    if tensor is not None:
        tensors[f"model.layers.0.mlp.down_proj.{name}"] = tensor
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("scheme", "name", "tensor", "message"),
    [
        ("fp8, one scale", "weight_scale", None, "type torch.float8_e4m3fn need a scale"),
        ("fp8, one scale", "weight_scale", torch.ones(31), r"'\[32, -1\]' is invalid"),
        ("fp8, one scale", "weight_scale", torch.ones(32, 5), "48 columns don't make 5 even"),
        ("fp8, one scale", "weight", torch.ones(32, 48), "type F32 instead of F8_E4M3"),
        ("fp8, one scale", "weight", None, "down_proj.weight_scale' is none of a llama model's"),
        ("fp8 in blocks", "weight_scale_inv", torch.ones(2, 3), "2 blocks of 12 rows for 32 rows"),
        ("fp8 in blocks", "weight_scale_inv", torch.ones(3, 2), "index 2 is out of bounds"),
        ("GPTQ", "qweight", torch.ones(6, dtype=torch.int32), "not enough values to unpack"),
        ("GPTQ", "qzeros", None, "don't fit each other .*'qzeros'"),
        ("GPTQ", "scales", torch.ones(6, 30), "30 rows of scales for 32 of codes"),
        ("GPTQ", "g_idx", torch.full((48,), -1), "g_idx doesn't tell the groups of 48 columns"),
        ("GPTQ", "g_idx", torch.full((48,), 6), "index 6 is out of bounds"),
        ("GPTQ", "bias", torch.ones(32), "down_proj.bias' is none of a llama model's"),
        ("packed", "weight_shape", torch.tensor([32, 40]), r"the shape \(32, 40\) instead of"),
    ],
)
@pytest.mark.usefixtures("random_numbers")
def test_tensors_that_do_not_fit_each_other_are_refused(
    scheme: str, name: str, tensor: Tensor | None, message: str, tmp_path: Path
) -> None:
    quantize(KINDS["Llama"].make(), tmp_path, scheme)
    damage(tmp_path, name, tensor)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


SPARSE = {"sparsity_config": {"format": "sparse-24-bitmask"}}
TWO_WAYS = {
    "config_groups": {str(bits): {"weights": {"num_bits": bits, "type": "int"}} for bits in (4, 8)}
}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes', but must be 'fp8' or"),
        ({}, "quant_method is None, but must be .* octavo runs checkpoints quantized by fp8"),
        (FP8 | {"fmt": "e5m2"}, "fmt is 'e5m2'"),
        (FP8 | {"weight_block_size": [128]}, r"weight_block_size is \[128\], but must be numbers"),
        (GPTQ | {"bits": 3}, "bits is 3, but must be 2 or 4 or 8"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        (GPTQ | {"dynamic": {"-:.*": {}}}, "dynamic is "),
        (AWQ | {"version": "gemv"}, "version is 'gemv', but must be 'gemm'"),
        (INT4 | {"format": "nvfp4-pack-quantized"}, "format is 'nvfp4-pack-quantized'"),
        (INT4 | {"transform_config": {"u": 1}}, "transform_config is "),
        (INT4 | SPARSE, "format is 'sparse-24-bitmask', but must be 'dense'"),
        (INT4 | TWO_WAYS, "config_groups holds 2 ways to quantize, but must hold one"),
        (INT4 | {"config_groups": {}}, "config_groups holds 0 ways"),
        (compressed("pack-quantized", num_bits=4, type="float"), "type is 'float'"),
        (compressed("int-quantized", num_bits=4, type="int"), "num_bits is 4, but must be 8"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    content = KINDS["Llama"].describe().to_dict() | {"quantization_config": config}
    with pytest.raises(ModelError, match=message):
        describe(content)

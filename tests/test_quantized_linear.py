"""Weights of few bits: how near they come, what they take, and in whole models."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from model import few_bits, float8
from model.batch import Row
from model.config import load_config
from model.few_bits import Products
from model.kernels import PLAIN
from model.packing import pack
from model.quantized_linear import KINDS, QuantizedLinear
from model.transformer import Transformer
from model.weights import load as loading
from model.weights.load import load_model, weight_bytes
from tests import families
from tests.tiny_llama import empty_cache

IDS = [5, 17, 80, 3, 3, 41, 95, 0, 12, 66, 7, 8, 9, 31, 32, 33, 34, 35, 36, 37]
METHODS = pytest.mark.parametrize("method", [*KINDS])


class RoundedInputs(nn.Linear):
    def forward(self, x_TI: Tensor) -> Tensor:
        return super().forward(float8.decoded(*float8.encoded(x_TI)))


def load(
    folder: Path,
    method: str,
    dtype: torch.dtype = torch.float32,
    products: Products = few_bits,
) -> Transformer:
    kernels = PLAIN._replace(quantization=method, products=products)
    return load_model(
        folder, load_config(folder), report=lambda *_: None, kernels=kernels, dtype=dtype
    )


def logits(model: Transformer) -> Tensor:
    batch = pack([Row(IDS, 0, [1, 0], None)], page_size=16)
    cache = empty_cache(model, num_pages=2)
    with torch.inference_mode():
        return model(batch, cache, output_rows_S=torch.arange(len(IDS)))


def rounded(model: Transformer) -> dict[str, QuantizedLinear]:
    return {n: layer for n, layer in model.named_modules() if isinstance(layer, QuantizedLinear)}


def test_int8_is_off_by_half_a_step_at_most() -> None:
    weight_OI = torch.randn(7, 150)
    weight_OI[3] = 0
    matrix = few_bits.to_int8(weight_OI)
    weight_OJ = few_bits.of_int8(matrix)
    assert weight_OJ.shape == (7, 256)
    error_OI = (weight_OJ[:, :150] - weight_OI).abs()
    assert (error_OI <= 0.5001 * matrix.scales_O[:, None]).all()
    assert weight_OJ[:, 150:].count_nonzero() == weight_OJ[3].count_nonzero() == 0
    assert (matrix.codes_OJ.abs().amax(1) == torch.tensor([127] * 3 + [0] + [127] * 3)).all()


def test_int4_is_off_by_little_more_than_half_a_step() -> None:
    """Where the zero or the scale were rounded up, the last code is short of the last weight."""
    weight_OI = torch.randn(7, 150)
    weight_OI[3] = 0
    weight_OI[4] = weight_OI[4].abs() + 1
    weight_OI[5] = -weight_OI[4]
    matrix = few_bits.to_int4(weight_OI)
    weight_OJ = few_bits.of_int4(matrix)
    assert weight_OJ.shape == (7, 256)
    steps_OI = matrix.scales_GO.float().T.repeat_interleave(few_bits.GROUP, 1)[:, :150]
    error_OI = (weight_OJ[:, :150] - weight_OI).abs() / steps_OI
    assert error_OI.max() <= 1.05
    assert error_OI.mean() < 0.27
    assert weight_OJ[:, 150:].count_nonzero() == weight_OJ[3].count_nonzero() == 0
    assert (matrix.zeros_GO[:3, 4] == 0).all()
    assert (matrix.zeros_GO[:3, 5] == 15).all()


def test_where_the_codes_of_int4_lie() -> None:
    codes_I = torch.arange(200) % 16
    matrix = few_bits.to_int4((codes_I[None] - 5).float())
    bytes_B = matrix.codes_OB[0].long()
    assert torch.equal(bytes_B[:64], codes_I[:64] | codes_I[64:128] << 4)
    assert torch.equal(bytes_B[64:72] & 15, codes_I[128:136])
    assert matrix.zeros_GO[:3, 0].tolist() == [5, 5, 5]
    assert matrix.scales_GO[:3, 0].tolist() == [1, 1, 1]


@METHODS
@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Mixtral", "GPT-2"])
def test_a_model_is_that_of_the_rounded_weights(method: str, kind: str, tmp_path: Path) -> None:
    families.KINDS[kind].make().save_pretrained(tmp_path)
    model = load(tmp_path, method)
    layers = rounded(model)
    assert {name.rpartition(".")[2] for name in layers} <= {
        *("qkv", "output", "gate_up", "up", "down")
    }
    linear = {n for n, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    assert all(name.endswith("router") for name in linear)
    ours = logits(model)
    for name, layer in layers.items():
        plain = (RoundedInputs if method == "fp8" else nn.Linear)(1, 1, bias=False)
        plain.weight = nn.Parameter(layer.weight, requires_grad=False)
        plain.register_parameter("bias", layer.bias)
        model.set_submodule(name, plain)
    tolerance = 0.02 if method == "fp8" else 1e-4  # what lies halfway may be rounded either way
    torch.testing.assert_close(ours, logits(model), rtol=tolerance, atol=tolerance)


def num_bytes(model: Transformer) -> int:
    """Of what is there, a tied head once."""
    tensors = {t.data_ptr(): t for t in [*model.parameters(), *model.buffers()] if not t.is_meta}
    return sum(t.nbytes for t in tensors.values()) - model.frequency.nbytes


@METHODS
@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3-MoE", "Falcon 40B"])
def test_memory_is_what_was_counted(method: str, kind: str, tmp_path: Path) -> None:
    families.KINDS[kind].make().save_pretrained(tmp_path)
    model, config = load(tmp_path, method, torch.bfloat16), load_config(tmp_path)
    taken = num_bytes(model)
    head = config.vocab_size * config.hidden_size * 2  # which packing would have twice
    counted = weight_bytes(config, quantization=method, dtype=torch.bfloat16)
    assert taken == counted - head


def test_matrices_are_rounded_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no time does the model hold more than it will in the end."""
    families.KINDS["Llama"].make().save_pretrained(tmp_path)
    held: list[int] = []

    def set_and_count(model: Transformer, parameter: str, values: Tensor) -> None:
        set_parameter(model, parameter, values)
        held.append(num_bytes(model))

    set_parameter = loading._set
    monkeypatch.setattr(loading, "_set", set_and_count)
    model = load(tmp_path, "int4", torch.bfloat16)
    assert len(held) > 20
    assert max(held) == num_bytes(model)

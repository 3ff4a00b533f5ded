"""Triton's products with weights of few bits, against PyTorch's, and in a whole model."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from model import float8, linear_self_test
from model.attention.backend import Place, UnfitError
from model.quantized_linear import KINDS
from model.triton import few_bits as triton
from tests import families
from tests.test_quantized_linear import load, logits
from tests.tiny_llama import CONFIG
from tests.triton_device import DEVICE

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
dtypes = st.sampled_from([*TOLERANCES])
methods = st.sampled_from([*KINDS])
METHODS = pytest.mark.parametrize("method", [*KINDS])
OURS = pytest.mark.parametrize("method", ["int8", "int4"])


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills what torch.empty gives with NaN
    yield
    torch.use_deterministic_algorithms(False)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)


@pytest.mark.no_cover
@settings(max_examples=40, deadline=None)
@given(
    num_tokens=st.integers(1, 70),
    num_inputs=st.integers(1, 400),
    num_outputs=st.integers(1, 100),
    dtype=dtypes,
    method=methods,
    biased=st.booleans(),
    is_part=st.booleans(),
)
def test_it_is_pytorchs_product(
    num_tokens: int,
    num_inputs: int,
    num_outputs: int,
    dtype: torch.dtype,
    method: str,
    biased: bool,
    is_part: bool,
) -> None:
    """is_part: of a tensor that has more in each row."""
    weight_OI = random(num_outputs, num_inputs) / num_inputs**0.5
    bias_O = nn.Parameter(random(num_outputs).to(dtype), requires_grad=False) if biased else None
    layer = KINDS[method](weight_OI, bias_O, products=triton)
    x_TI = random(num_tokens, num_inputs + 3 * is_part).to(dtype)[:, :num_inputs]
    y_TO = layer(x_TI)
    assert y_TO.dtype == dtype
    bound = TOLERANCES[dtype]
    assert_close(y_TO, layer.reference(x_TI), rtol=bound, atol=bound)


@pytest.mark.no_cover
@OURS
@pytest.mark.parametrize("dtype", [*TOLERANCES], ids=str)
def test_a_token_has_the_same_bits_in_any_batch(method: str, dtype: torch.dtype) -> None:
    layer = KINDS[method](random(50, 700), products=triton)
    x_TI = random(100, 700).to(dtype)
    whole_TO = layer(x_TI)
    for first, stop in [(0, 1), (7, 8), (3, 20), (31, 65), (99, 100)]:
        assert torch.equal(layer(x_TI[first:stop].clone()), whole_TO[first:stop])


def test_few_and_many_outputs_are_the_same_products(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x_TI = KINDS["int8"](random(70, 200), products=triton), random(3, 200).half()
    few_TO = layer(x_TI)
    monkeypatch.setattr(triton, "FEW_OUTPUTS", 64)
    assert_close(layer(x_TI), few_TO)


@pytest.mark.no_cover
@settings(max_examples=30, deadline=None)
@given(num_tokens=st.integers(1, 4), num_inputs=st.integers(1, 300), dtype=dtypes)
def test_inputs_are_rounded_as_pytorch_rounds_them(
    num_tokens: int, num_inputs: int, dtype: torch.dtype
) -> None:
    """To the bit, in rows of several blocks."""
    x_TI = random(num_tokens, num_inputs + 3).to(dtype)[:, :num_inputs]
    x_TI[0] *= 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "ENCODED_AT_ONCE", 64)
        (codes_TI, scales_T), wanted = triton.encoded(x_TI), float8.encoded(x_TI)
    assert torch.equal(scales_T, wanted[1])
    assert torch.equal(codes_TI.float(), wanted[0].float())


@METHODS
def test_they_pass_the_self_test(method: str) -> None:
    linear_self_test.check(method, triton, CONFIG, Place(DEVICE, torch.bfloat16, torch.bfloat16))


@pytest.mark.no_cover
@METHODS
def test_what_is_wrong_is_found_out(method: str) -> None:
    place = Place(DEVICE, torch.float32, torch.float32)
    name = "by_float8" if method == "fp8" else f"by_{method}"

    def check(change: float, change_alone: float) -> None:
        def by(x_TI: Tensor, *what: object) -> Tensor:
            y_TO = getattr(triton, name)(x_TI, *what)
            return y_TO + change + (change_alone if len(x_TI) == 1 else 0)

        products = SimpleNamespace(**{name: by})
        linear_self_test.check(method, products, CONFIG, place)

    check(0, 0)
    with pytest.raises(UnfitError, match=r"^a product of 24 inputs and 80 outputs is 1 off PyT"):
        check(1, 0)
    if not KINDS[method].has_own_bits:
        check(0, 1)
        return
    with pytest.raises(UnfitError, match=r"^a token's bits depend on what is beside it in a prod"):
        check(0, 1)


@pytest.mark.no_cover
@METHODS
@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Mixtral"])
def test_a_model_has_the_logits_that_it_has_by_pytorch(
    method: str, kind: str, tmp_path: Path
) -> None:
    families.KINDS[kind].make().save_pretrained(tmp_path)
    ours = logits(load(tmp_path, method, products=triton))
    assert_close(ours, logits(load(tmp_path, method)), rtol=1e-4, atol=1e-4)

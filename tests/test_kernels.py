"""Which kernels are chosen: the best that are there, take the model and pass their test."""

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model import few_bits, kernels, linear_self_test
from model.attention import reference, self_test
from model.attention.backend import Place, UnfitError
from model.errors import ModelError
from model.kernels import PLAIN, Kernels, choose
from model.kv_cache import CPU
from tests.tiny_llama import CONFIG

BY = ("by_int8", "by_int4", "by_float8")
CUDA = Place(torch.device("cuda"), torch.bfloat16, torch.bfloat16)
PRODUCTS = SimpleNamespace(**{name: getattr(few_bits, name) for name in BY})
STEPS = SimpleNamespace(check=lambda *args: None, fused="fused", TritonSampler="sampler")


def backend(refusal: str = "", flaw: str = "") -> SimpleNamespace:
    return SimpleNamespace(refusal=lambda *args: refusal, flaw=flaw)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What can be imported. No GPU is needed, as what would run there does nothing."""

    def check(backend: SimpleNamespace, *args: object) -> None:
        if backend.flaw:
            raise UnfitError(backend.flaw)

    def import_module(name: str) -> Any:
        if name not in found:
            raise ImportError(f"no {name}")
        return found[name]

    found = {
        "model.triton.self_test": STEPS,
        "model.attention.triton_paged": backend(),
        "model.attention.varlen": backend(),
        "model.triton.few_bits": PRODUCTS,
    }

    def check_products(quantization: str, products: Any, config: object, place: Place) -> None:
        assert place == CUDA
        linear_self_test.check(quantization, products, CONFIG, Place(CPU, *CUDA[1:]))

    monkeypatch.setattr(kernels, "import_module", import_module)
    monkeypatch.setattr(self_test, "check", check)
    monkeypatch.setattr(kernels, "check_float8", lambda place: None)
    monkeypatch.setattr(kernels, "linear_self_test", SimpleNamespace(check=check_products))
    return found


def test_a_cpu_has_pytorchs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert choose(CONFIG, Place(CPU, torch.float32, torch.float32)) == PLAIN
    assert caplog.messages == ["attention: reference, on cpu"]


def test_a_gpu_has_tritons(modules: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ours = modules["model.attention.triton_paged"]
    wanted = Kernels("triton_paged", ours, STEPS.fused, STEPS.TritonSampler)
    assert choose(CONFIG, CUDA) == wanted
    assert caplog.messages == ["attention: triton_paged, on cuda"]


def test_what_fails_is_passed_over_and_told(
    modules: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    modules["model.attention.triton_paged"] = backend(flaw="it is 3 off")
    chosen = choose(CONFIG, CUDA)
    assert chosen.attention_name == "varlen"
    assert chosen.attention is modules["model.attention.varlen"]
    assert caplog.messages == ["triton_paged isn't used: it is 3 off"]


def test_pytorch_is_left_where_nothing_else_does(
    modules: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    modules["model.attention.varlen"] = backend(refusal="it has no softcap")
    del modules["model.attention.triton_paged"], modules["model.triton.self_test"]
    assert choose(CONFIG, CUDA) == PLAIN
    assert caplog.messages == [
        "model.triton isn't used: no model.triton.self_test",
        "triton_paged isn't used: no model.attention.triton_paged",
        "varlen isn't used: it has no softcap",
    ]


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_products_are_tried_with_the_weights_that_are_asked_for(
    quantization: str, modules: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    chosen = choose(CONFIG, CUDA, quantization)
    assert (chosen.quantization, chosen.products) == (quantization, PRODUCTS)
    assert caplog.messages == [f"weights: {quantization}", "attention: triton_paged, on cuda"]


def test_a_gpu_without_float8_is_told_before_anything_is_tried(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(place: Place) -> None:
        raise ModelError(f"{place.device} is too old: take int8")

    monkeypatch.setattr(kernels, "check_float8", check)
    with pytest.raises(ModelError, match=r"^cuda is too old: take int8$"):
        choose(CONFIG, CUDA, "fp8")


@pytest.mark.parametrize("quantization", ["auto", "none"])
def test_weights_are_as_they_are_unless_others_are_asked_for(
    quantization: str, modules: dict[str, Any]
) -> None:
    chosen = choose(CONFIG, CUDA, quantization)
    assert (chosen.quantization, chosen.products) == ("none", few_bits)


@pytest.mark.parametrize(
    ("products", "problem"),
    [
        (None, "no model.triton.few_bits"),
        (SimpleNamespace(by_int8=lambda x_TI, *_: x_TI.new_zeros(len(x_TI), 80)), "a product of"),
    ],
)
def test_weights_that_cannot_be_had_are_an_error(
    products: Any, problem: str, modules: dict[str, Any]
) -> None:
    """And nothing else is taken instead, as it was asked for."""
    del modules["model.triton.few_bits"]
    if products:
        modules["model.triton.few_bits"] = products
    with pytest.raises(
        ModelError, match=rf"^quantization is int8, but this GPU.*\({problem}.*take"
    ):
        choose(CONFIG, CUDA, "int8")


def test_the_reference_takes_every_model() -> None:
    wide = replace(CONFIG, head_dim=1000, attention_softcap=1.0)
    assert reference.refusal(wide, Place(CPU, torch.float64, torch.float8_e4m3fn)) == ""

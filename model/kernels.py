"""Which kernels compute a model on a device: chosen once, when it is loaded.

Each candidate is tried on the device before it is taken, and the log says why others weren't. Those
in Triton are imported only where they are wanted, since PyTorch for CPUs comes without it.
"""

import logging
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import NamedTuple, TypeVar, cast

from model import few_bits, fused, linear_self_test
from model.attention import reference, self_test
from model.attention.backend import Backend, Place, UnfitError
from model.config import ModelConfig
from model.errors import ModelError
from model.few_bits import Products
from model.fused import Fused
from model.place import check_float8
from model.quantized_linear import KINDS
from model.sampling import Sampler

CUDA_ATTENTION = ("triton_paged", "varlen")
"""Modules of model.attention, the best first."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class Kernels(NamedTuple):
    """What computes all but plain matrix products."""

    attention_name: str
    attention: Backend
    fused: Fused
    sampler: Callable[..., Sampler]
    """Takes the size of the vocabulary, and the device."""
    quantization: str = "none"
    """Of the weights, by a name in model.quantized_linear.KINDS; none: they aren't rounded."""
    products: Products = few_bits
    """With weights that are."""


PLAIN = Kernels("reference", reference, fused, Sampler)
"""PyTorch's own, for any device and any model."""


def choose(config: ModelConfig, place: Place, quantization: str = "auto") -> Kernels:
    """Raises ModelError if weights can't be quantized as asked, instead of passing that over."""
    kernels = PLAIN
    if place.device.type == "cuda":
        if steps := _tried("model.triton", partial(_triton_steps, config, place)):
            kernels = kernels._replace(fused=steps[0], sampler=steps[1])
        for name in CUDA_ATTENTION:
            if backend := _tried(name, partial(_attention, name, config, place)):
                kernels = kernels._replace(attention_name=name, attention=backend)
                break
        if quantization in KINDS:
            products = _products(quantization, config, place)
            kernels = kernels._replace(quantization=quantization, products=products)
    log.info("attention: %s, on %s", kernels.attention_name, place.device)
    return kernels


def _attention(name: str, config: ModelConfig, place: Place) -> Backend:
    backend = cast(Backend, import_module(f"model.attention.{name}"))
    if refusal := backend.refusal(config, place):
        raise UnfitError(refusal)
    self_test.check(backend, config, place)
    return backend


def _products(quantization: str, config: ModelConfig, place: Place) -> Products:
    if quantization == "fp8":
        check_float8(place)
    try:
        products = cast(Products, import_module("model.triton.few_bits"))
        linear_self_test.check(quantization, products, config, place)
    except Exception as error:
        raise ModelError(
            f"quantization is {quantization}, but this GPU can't compute with such weights "
            f"({error}): take {'' if quantization == 'int8' else 'int8 or '}none"
        ) from error
    log.info("weights: %s", quantization)
    return products


def _triton_steps(config: ModelConfig, place: Place) -> tuple[Fused, type[Sampler]]:
    module = import_module("model.triton.self_test")
    module.check(config, place)
    return module.fused, module.TritonSampler


def _tried(name: str, make: Callable[[], T]) -> T | None:
    """None, with the reason in the log, if it isn't there, refuses or fails: whatever a compiler or
    a driver raises, there is another way to compute."""
    try:
        return make()
    except Exception as error:
        log.warning("%s isn't used: %s", name, error)
        return None

"""A model's file or folder → a Transformer with its weights; as float32, its linear layers packed.

Of a tensor that is missing, unknown or of the wrong shape, the error says which one it is.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from model.config import ModelConfig
from model.errors import ModelError
from model.footprint import FLOAT32_BYTES, float32_weight_bytes
from model.host import available_memory
from model.kernels import PLAIN, Kernels
from model.kv_cache import CPU
from model.linear import packed
from model.parallel import ALONE, Ranks, share
from model.place import check_gpu_memory
from model.quantized_linear import KINDS, QuantizedLinear, is_rounded
from model.transformer import Transformer
from model.weights import gguf_tensors, safetensors
from model.weights.changes import changed
from model.weights.memory import returned_when_freed
from model.weights.meter import Meter
from model.weights.names import (
    FREQUENCY_DIVISORS,
    OPTIONAL,
    Place,
    gguf_places,
    hugging_face_places,
    is_redundant,
    matrices,
)
from model.weights.quantized import dequantized, has_no_effect
from model.weights.shards import shard
from model.weights.stored import StoredTensor, read_all

Report = Callable[[str, float], None]
"""Takes what was just read and how fast it goes, and the share of all bytes that is read."""

Take = Callable[[str, Tensor], None]
"""Is given a parameter of ours by its name, and its values as float32 or its blocks as bytes."""

DRAWS = (init.normal_, init.kaiming_uniform_)


class _Undrawn(TorchFunctionMode):
    """Skips the random first values of weights. Drawing them takes a second, and on the meta device
    as well, where it imports most of torch.compile."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func in DRAWS else func(*args, **kwargs)


def load_model(
    path: Path,
    config: ModelConfig,
    *,
    report: Report,
    kernels: Kernels = PLAIN,
    ranks: Ranks = ALONE,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> Transformer:
    """config: of the whole model, of which the Transformer is this rank's share."""
    needed = weight_bytes(config, ranks, quantization=kernels.quantization, dtype=dtype)
    if device.type == "cpu":
        check_memory(path, needed)
    else:
        check_gpu_memory(needed)
    model = skeleton(config, kernels, ranks)

    def take(parameter: str, values: Tensor) -> None:
        kind = _quantized_kind(parameter.removesuffix(".weight"), kernels)
        _set(model, parameter, values.to(device, torch.float32 if kind else dtype))

    read_parameters(path, config, take, report=report, ranks=ranks)
    if config.tied_head:
        _set(model, "head.weight", model.embedding.weight)
    return model.to(device)


def read_parameters(
    path: Path,
    config: ModelConfig,
    take: Take,
    *,
    report: Report,
    kept_types: Collection[str] = (),
    ranks: Ranks = ALONE,
) -> None:
    """Each parameter that the file holds; a tied head, which is the embedding, comes but once.

    Parameters that are wholly of one of the kept types come as blocks of it.
    """
    try:
        places, tensors = _source(path, config)
        tensors = _largest_first(_kept(tensors, places, kept_types), places)
        if ranks.size > 1:
            tensors = [shard(each, places[each.name], config, ranks) for each in tensors]
            places = {name: place._replace(change=None) for name, place in places.items()}
        with returned_when_freed():
            for parameter, values in _parameters(places, tensors, report=report):
                take(parameter, values)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def check_memory(path: Path, needed: int) -> None:
    free = available_memory()
    if needed > free:
        raise ModelError(
            f"{path}: the weights take {needed} bytes of memory, but only {free} are free: take a "
            "smaller model, or free some memory"
        )


def weight_bytes(
    config: ModelConfig, ranks: Ranks = ALONE, *, quantization: str, dtype: torch.dtype
) -> int:
    """Of this rank's share, as they are in memory; as float32, with what packing takes besides."""
    part = ranks.part(config.vocab_size)
    config = replace(share(config, ranks), vocab_size=part.stop - part.start)
    num_plain = float32_weight_bytes(config) // FLOAT32_BYTES
    num_bytes = 0
    if kind := KINDS.get(quantization):
        for shape, count in matrices(config).items():
            num_plain -= count * prod(shape)
            num_bytes += count * kind.num_bytes(*shape)
    return num_bytes + num_plain * dtype.itemsize


def skeleton(config: ModelConfig, kernels: Kernels = PLAIN, ranks: Ranks = ALONE) -> Transformer:
    """The shapes alone; only what is computed from the config has values."""
    with torch.device("meta"), _Undrawn():
        return Transformer(config, kernels, ranks)


def _set(model: Transformer, parameter: str, values: Tensor) -> None:
    """Linear layers are packed or quantized at once, so that no second copy of all weights ever
    exists."""
    if parameter == FREQUENCY_DIVISORS:
        model.frequency /= values.to(CPU, torch.float32)
        return
    name, _, kind = parameter.rpartition(".")
    module = model.get_submodule(name)
    setattr(module, kind, nn.Parameter(values, requires_grad=False))
    if isinstance(module, nn.Linear) and kind == "weight":
        model.set_submodule(name, _ready(name, module, model.kernels))


def _ready(name: str, linear: nn.Linear, kernels: Kernels) -> nn.Module:
    if kind := _quantized_kind(name, kernels):
        return kind(linear.weight.detach(), linear.bias, products=kernels.products)
    return packed(linear)


def _quantized_kind(name: str, kernels: Kernels) -> type[QuantizedLinear] | None:
    """What a layer of this name becomes; None: it stays as it is."""
    return KINDS.get(kernels.quantization) if is_rounded(name) else None


def _source(path: Path, config: ModelConfig) -> tuple[dict[str, Place], list[StoredTensor]]:
    if path.suffix == ".gguf":
        places, tensors = gguf_places(config), gguf_tensors.stored_tensors(path)
    else:
        tensors = safetensors.stored_tensors(path)
        if config.quantization:
            tensors = list(dequantized(tensors, config.quantization))
        places = hugging_face_places(config, {tensor.name for tensor in tensors})
    tensors = [tensor for tensor in tensors if not is_redundant(tensor.name, places)]
    if config.quantization:
        tensors = [t for t in tensors if t.name in places or not has_no_effect(t)]
    _check(tensors, places, config)
    return places, tensors


def _kept(
    tensors: list[StoredTensor], places: dict[str, Place], kept_types: Collection[str]
) -> list[StoredTensor]:
    """Reads blocks instead of values where they are of a kept type, as are those beside them."""
    types: defaultdict[str, set[str]] = defaultdict(set)
    for tensor in tensors:
        types[places[tensor.name].parameter].add(tensor.type)
    kept = {name for name, found in types.items() if len(found) == 1 and found <= {*kept_types}}
    return [
        replace(tensor, read=tensor.read_raw) if places[tensor.name].parameter in kept else tensor
        for tensor in tensors
    ]


def _largest_first(tensors: list[StoredTensor], places: dict[str, Place]) -> list[StoredTensor]:
    """Parameters in the order of their sizes. While one is put together and packed it is in memory
    twice; thus what is there besides is never more than a part of what is still to come."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[places[tensor.name].parameter] += prod(tensor.shape)

    def order(tensor: StoredTensor) -> tuple[int, str]:
        parameter = places[tensor.name].parameter
        return -sizes[parameter], parameter

    return sorted(tensors, key=order)


def _check(tensors: list[StoredTensor], places: dict[str, Place], config: ModelConfig) -> None:
    missing = dict(places)
    for name, shape in ((tensor.name, tensor.shape) for tensor in tensors):
        if name not in missing:
            raise ModelError(
                f"tensor {name!r} is none of a {config.family} model's, or comes twice: octavo "
                "can't run this model, take another"
            )
        place = missing.pop(name)
        if shape != place.shape:
            raise ModelError(
                f"tensor {name!r} has the shape {shape} instead of {place.shape}: "
                "the file doesn't fit its own description, download it again"
            )
    missing = {name: place for name, place in missing.items() if name not in OPTIONAL}
    if missing:
        raise ModelError(f"tensor {min(missing)!r} is missing: download the file again")


def _parameters(
    places: dict[str, Place], tensors: list[StoredTensor], *, report: Report
) -> Iterator[tuple[str, Tensor]]:
    """Each parameter of ours by its name, as soon as all tensors that make it up are read."""
    num_parts = Counter(place.parameter for place in places.values())
    parts: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
    all_values = read_all(tensors, threads=torch.get_num_threads())
    meter = Meter(tensors, report)
    for tensor, values in zip(tensors, all_values, strict=True):
        parameter, _, first_row, change = places[tensor.name]
        parts[parameter][first_row] = changed(values, change)
        if len(parts[parameter]) == num_parts[parameter]:
            yield parameter, _joined(parts.pop(parameter))
        meter.take(tensor)


def _joined(parts: dict[int, Tensor]) -> Tensor:
    """The rows in their order; one part alone is not copied."""
    in_order = [values for _, values in sorted(parts.items())]
    return in_order[0] if len(in_order) == 1 else torch.cat(in_order)

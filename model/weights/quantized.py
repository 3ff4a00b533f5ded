"""A folder's quantized matrices: the tensors that make one up become one, X.weight, of float32.

What they hold is the business of each scheme; what X is, of nobody here.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from model.errors import ModelError
from model.quantization import Quantization
from model.weights import awq, gptq, packed, scaled
from model.weights.codes import Parts, Scheme
from model.weights.stored import StoredTensor

SCHEMES = {
    "fp8": scaled.SCHEME,
    "int8": scaled.SCHEME,
    "packed": packed.SCHEME,
    "gptq": gptq.SCHEME,
    "awq": awq.SCHEME,
}
UNUSED = frozenset({"input_scale", "input_zero_point", "output_scale", "k_scale", "v_scale"})
"""Of activations and of the cache, which nothing is rounded to here."""


def dequantized(tensors: list[StoredTensor], quantization: Quantization) -> Iterator[StoredTensor]:
    """In the order of the codes; what isn't quantized comes as it is."""
    scheme = SCHEMES[quantization.scheme]
    parts: defaultdict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for tensor in tensors:
        stem, _, kind = tensor.name.rpartition(".")
        parts[stem][kind] = tensor
    for tensor in tensors:
        stem, _, kind = tensor.name.rpartition(".")
        of_matrix = _matrix(parts[stem], scheme)
        if kind == scheme.codes and of_matrix:
            yield _whole(f"{stem}.weight", of_matrix, scheme, quantization)
        elif kind not in of_matrix and kind not in UNUSED:
            yield tensor


def has_no_effect(tensor: StoredTensor) -> bool:
    """A bias of zeros, which GPTQ's tools write where the model has none."""
    return tensor.name.endswith(".bias") and not tensor.read_raw().count_nonzero()


def _matrix(parts: Parts, scheme: Scheme) -> Parts:
    """None of them, if the layer isn't quantized."""
    others = {kind: part for kind, part in parts.items() if kind in scheme.others}
    whole = others and scheme.codes in parts
    return others | {scheme.codes: parts[scheme.codes]} if whole else {}


def _whole(name: str, parts: Parts, scheme: Scheme, quantization: Quantization) -> StoredTensor:
    shape = _explained(name, scheme.shape, parts, quantization)
    read = partial(_explained, name, scheme.read, parts, quantization)
    return StoredTensor(
        name,
        shape,
        read,
        type=quantization.scheme,
        read_raw=parts[scheme.codes].read_raw,
        num_bytes=sum(part.num_bytes for part in parts.values()),
    )


def _explained(name: str, read: Callable[[Parts, Quantization], Any], *what: Any) -> Any:
    try:
        return read(*what)
    except (ModelError, KeyError, ValueError, IndexError, RuntimeError) as error:
        raise ModelError(
            f"the tensors that make up {name!r} don't fit each other ({error}): download the "
            "folder again"
        ) from error

"""What all schemes of quantization share: codes of few bits, and from codes to values.

Knows no names but those that a scheme gives.

Shapes: O outputs (rows), I inputs (columns), G groups of columns that share a scale.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from model.errors import ModelError
from model.quantization import Quantization
from model.weights.stored import StoredTensor

ROWS_AT_ONCE = 256

Parts = Mapping[str, StoredTensor]
"""The tensors that make up a matrix, by the last part of their names."""


class Scheme(NamedTuple):
    codes: str
    """The last part of the name of the tensor that holds the codes."""
    others: tuple[str, ...]
    """Those of what may come with it."""
    shape: Callable[[Parts, Quantization], tuple[int, int]]
    """[O, I], before anything large is read."""
    read: Callable[[Parts, Quantization], Tensor]
    """The values as float32 [O, I]. May raise ModelError, IndexError and RuntimeError."""


def unpacked(words: Tensor, bits: int) -> Tensor:
    """The codes in words of 32 bits, as bytes; a word's lowest bits come first.

    [..., n] becomes [..., n * 32 / bits]
    """
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    parts = words.contiguous().view(torch.uint8)[..., None] >> shifts
    return parts.bitwise_and_((1 << bits) - 1).flatten(-2)


def groups_of(index: StoredTensor | None, *, num_columns: int, num_groups: int) -> Tensor:
    """The group of each column; without an index all are of one size and in order."""
    if index is not None:
        groups_I = index.read_raw().long()
        if len(groups_I) != num_columns or groups_I.min() < 0:
            raise ModelError(f"{index.name} doesn't tell the groups of {num_columns} columns")
        return groups_I
    if num_columns % num_groups:
        raise ModelError(f"{num_columns} columns don't make {num_groups} even groups")
    return torch.arange(num_columns) // (num_columns // num_groups)


def values_of(
    codes_OI: Tensor, *, scales_OG: Tensor, groups_I: Tensor, zeros_OG: Tensor | None = None
) -> Tensor:
    """(codes - zeros) * scales, a few rows at a time, to need little memory on the way."""
    if len(scales_OG) != len(codes_OI):
        raise ModelError(f"there are {len(scales_OG)} rows of scales for {len(codes_OI)} of codes")
    values_OI = codes_OI.float()
    for first in range(0, len(values_OI), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        if zeros_OG is not None:
            values_OI[rows] -= zeros_OG[rows][:, groups_I]
        values_OI[rows] *= scales_OG[rows][:, groups_I]
    return values_OI

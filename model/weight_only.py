"""Matrices of few bits that are multiplied with numbers of a model's own type, and how by PyTorch.

    int8   weight = code · scale, one scale for each output

Nothing is calibrated: scales follow from the largest weights. Inputs are filled up with weights of
0, so that no kernel has to look where they end:

    int8   codes_OJ, scales_O

PyTorch's products are the reference for model.triton.weight_only, which has the same functions.

Shapes: T packed tokens, O outputs, I inputs, J inputs filled up.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

FILLED = 128
"""Inputs are filled up to a multiple of this."""
MOST_INT8 = 127
LEAST_SCALE = 1e-12
"""Of zeros alone, lest they be divided by zero."""


class Int8Matrix(NamedTuple):
    codes_OJ: Tensor
    scales_O: Tensor


class Products(Protocol):
    """A module with these functions, which give y_TO in the numbers of x_TI. Sums are float32."""

    def by_int8(self, x_TI: Tensor, matrix: Int8Matrix, bias_O: Tensor | None) -> Tensor: ...


def by_int8(x_TI: Tensor, matrix: Int8Matrix, bias_O: Tensor | None) -> Tensor:
    return _product(x_TI, of_int8(matrix), bias_O)


def to_int8(weight_OI: Tensor) -> Int8Matrix:
    """weight_OI: float32."""
    scales_O = weight_OI.abs().amax(1).clamp(min=LEAST_SCALE) / MOST_INT8
    codes_OI = (weight_OI / scales_O[:, None]).round_().to(torch.int8)
    return Int8Matrix(_filled(codes_OI), scales_O)


def of_int8(matrix: Int8Matrix) -> Tensor:
    """weight_OJ, as float32."""
    return matrix.codes_OJ.float() * matrix.scales_O[:, None]


def filled_len(num_inputs: int) -> int:
    return -(-num_inputs // FILLED) * FILLED


def _filled(values_OI: Tensor) -> Tensor:
    return pad(values_OI, (0, filled_len(values_OI.shape[1]) - values_OI.shape[1]))


def _product(x_TI: Tensor, weight_OJ: Tensor, bias_O: Tensor | None) -> Tensor:
    bias_O = None if bias_O is None else bias_O.float()
    return linear(x_TI.float(), weight_OJ[:, : x_TI.shape[1]], bias_O).to(x_TI.dtype)

"""Matrices of few bits, and their products with numbers of a model's own type, by PyTorch.

    int8   weight = code · scale             one scale for each output
    int4   weight = (code - zero) · scale    scale and zero for each GROUP inputs of an output
    fp8    weight = code · scale             one scale for each output; codes are e4m3

Nothing is calibrated: scales follow from the largest and the least weights. Those of int4 are
bfloat16, and its codes are rounded to what these became. A weight of 0 stays 0. Inputs are filled
up with such, so that no kernel has to look where they end:

    int8   codes_OJ, scales_O
    int4   codes_OB    of each two groups, the first one's codes are the low halves of the bytes
           scales_GO, zeros_GO
    fp8    codes_OI, scales_O

Of these, fp8 alone rounds what comes in as well: each token's numbers to e4m3, with a scale of its
own. PyTorch's products are the reference for model.triton.few_bits, which has the same functions.

Shapes: T packed tokens, O outputs, I inputs, J inputs filled up, B = J/2 bytes,
G groups, M inputs of a group.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, linear, pad, scaled_mm

from model import float8

GROUP = 64
FILLED = 128
"""Inputs are filled up to a multiple of this: two groups."""
MOST_INT8, MOST_INT4 = 127, 15
LEAST_SCALE = 1e-12
"""Of zeros alone, lest they be divided by zero."""


class Int8Matrix(NamedTuple):
    codes_OJ: Tensor
    scales_O: Tensor


class Int4Matrix(NamedTuple):
    codes_OB: Tensor
    scales_GO: Tensor
    zeros_GO: Tensor


class Float8Matrix(NamedTuple):
    codes_OI: Tensor
    scales_O: Tensor


class Products(Protocol):
    """A module with these functions, which give y_TO in the numbers of x_TI. Sums are float32."""

    def by_int8(self, x_TI: Tensor, matrix: Int8Matrix, bias_O: Tensor | None) -> Tensor: ...

    def by_int4(self, x_TI: Tensor, matrix: Int4Matrix, bias_O: Tensor | None) -> Tensor: ...

    def by_float8(self, x_TI: Tensor, matrix: Float8Matrix, bias_O: Tensor | None) -> Tensor: ...


def by_int8(x_TI: Tensor, matrix: Int8Matrix, bias_O: Tensor | None) -> Tensor:
    return _product(x_TI, of_int8(matrix), bias_O)


def by_int4(x_TI: Tensor, matrix: Int4Matrix, bias_O: Tensor | None) -> Tensor:
    return _product(x_TI, of_int4(matrix), bias_O)


def by_float8(x_TI: Tensor, matrix: Float8Matrix, bias_O: Tensor | None) -> Tensor:
    return scaled_product(*float8.encoded(x_TI), matrix, bias_O, dtype=x_TI.dtype)


def scaled_product(
    codes_TI: Tensor,
    scales_T: Tensor,
    matrix: Float8Matrix,
    bias_O: Tensor | None,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """By the library that PyTorch takes. On GPUs it wants inputs and outputs in sixteens."""
    y_TO = scaled_mm(
        codes_TI,
        matrix.codes_OI.T,
        scales_T[:, None],
        ScalingType.RowWise,
        matrix.scales_O[None],
        ScalingType.RowWise,
        output_dtype=dtype,
    )
    return y_TO if bias_O is None else y_TO.add_(bias_O)


def to_int8(weight_OI: Tensor) -> Int8Matrix:
    """weight_OI: float32."""
    scales_O = weight_OI.abs().amax(1).clamp(min=LEAST_SCALE) / MOST_INT8
    codes_OI = (weight_OI / scales_O[:, None]).round_().to(torch.int8)
    return Int8Matrix(_filled(codes_OI), scales_O)


def of_int8(matrix: Int8Matrix) -> Tensor:
    """weight_OJ, as float32."""
    return matrix.codes_OJ.float() * matrix.scales_O[:, None]


def to_int4(weight_OI: Tensor) -> Int4Matrix:
    """weight_OI: float32."""
    weight_OGM = _filled(weight_OI).view(len(weight_OI), -1, GROUP)
    least_OG, most_OG = weight_OGM.amin(2).clamp(max=0), weight_OGM.amax(2).clamp(min=0)
    scales_OG = ((most_OG - least_OG) / MOST_INT4).clamp(min=LEAST_SCALE).bfloat16()
    steps_OG1 = scales_OG.float()[..., None]
    zeros_OG1 = (-least_OG[..., None] / steps_OG1).round_().clamp_(max=MOST_INT4)
    codes_OGM = (weight_OGM / steps_OG1).round_().add_(zeros_OG1).clamp_(0, MOST_INT4).byte()
    codes_OB = (codes_OGM[:, ::2] | codes_OGM[:, 1::2] << 4).flatten(1)
    zeros_GO = zeros_OG1[..., 0].T.contiguous().byte()
    return Int4Matrix(codes_OB, scales_OG.T.contiguous(), zeros_GO)


def of_int4(matrix: Int4Matrix) -> Tensor:
    """weight_OJ, as float32."""
    bytes_OGM = matrix.codes_OB.view(len(matrix.codes_OB), -1, GROUP)
    codes_OGM = torch.stack([bytes_OGM & 0xF, bytes_OGM >> 4], 2).flatten(1, 2)
    zeros_OG1, scales_OG1 = (part.T.float()[..., None] for part in matrix[:0:-1])
    return ((codes_OGM.float() - zeros_OG1) * scales_OG1).flatten(1)


def filled_len(num_inputs: int) -> int:
    return -(-num_inputs // FILLED) * FILLED


def _filled(values_OI: Tensor) -> Tensor:
    return pad(values_OI, (0, filled_len(values_OI.shape[1]) - values_OI.shape[1]))


def _product(x_TI: Tensor, weight_OJ: Tensor, bias_O: Tensor | None) -> Tensor:
    bias_O = None if bias_O is None else bias_O.float()
    return linear(x_TI.float(), weight_OJ[:, : x_TI.shape[1]], bias_O).to(x_TI.dtype)

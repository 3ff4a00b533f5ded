"""Matrices of fp8 or int8 numbers beside their scales, as DeepSeek, vLLM and compressed-tensors
store them: a scale for the whole, for each row, for groups of a row, or for blocks.

    weight                           [O, I]
    weight_scale, weight_scale_inv   1, [O], [O, 1], [O, G], or one for each block
    weight_zero_point                alike; only with integers

Either name of the scale means what a number is multiplied by.
"""

import torch
from torch import Tensor

from model.errors import ModelError
from model.quantization import Quantization
from model.weights.codes import Parts, Scheme, groups_of, values_of

TYPES = {"fp8": "F8_E4M3", "int8": "I8"}


def _shape(parts: Parts, quantization: Quantization) -> tuple[int, int]:
    num_rows, num_columns = parts["weight"].shape
    return num_rows, num_columns


def _read(parts: Parts, quantization: Quantization) -> Tensor:
    codes, wanted = parts["weight"], TYPES[quantization.scheme]
    if codes.type != wanted:
        raise ModelError(f"its numbers are of type {codes.type} instead of {wanted}")
    name = "weight_scale" if "weight_scale" in parts else "weight_scale_inv"
    scales = parts[name].read_raw().float()
    num_rows, num_columns = codes.shape
    if quantization.block and scales.numel() > 1:
        rows, columns = quantization.block
        scales_OG = _spread(scales, num_rows, rows)
        groups_I = torch.arange(num_columns) // columns
    else:
        scales_OG = _by_row(scales, num_rows)
        groups_I = groups_of(None, num_columns=num_columns, num_groups=scales_OG.shape[1])
    zeros = parts.get("weight_zero_point")
    zeros_OG = None if zeros is None else _by_row(zeros.read_raw().float(), num_rows)
    return values_of(codes.read_raw(), scales_OG=scales_OG, groups_I=groups_I, zeros_OG=zeros_OG)


def _spread(scales: Tensor, num_rows: int, rows: int) -> Tensor:
    """The last block of rows may be a part of one."""
    if len(scales) != -(-num_rows // rows):
        raise ModelError(f"there are {len(scales)} blocks of {rows} rows for {num_rows} rows")
    return scales.repeat_interleave(rows, 0)[:num_rows]


def _by_row(scales: Tensor, num_rows: int) -> Tensor:
    return scales.expand(num_rows, 1) if scales.numel() == 1 else scales.view(num_rows, -1)


SCHEME = Scheme("weight", ("weight_scale", "weight_scale_inv", "weight_zero_point"), _shape, _read)

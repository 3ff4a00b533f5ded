"""Matrices as each scheme of quantization stores them, number by number from its definition.

Each maker draws codes, scales and zero points for a matrix of a shape [O, I], and gives the tensors
that a file would hold, by the last part of their names, and the values that they stand for.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Stored = tuple[dict[str, Tensor], Tensor]
Maker = Callable[[int, int], Stored]

GROUP_LEN = 8
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of 8 outputs comes at each place of a word, from its lowest bits on."""


def some_integers(*shape: int, below: int) -> Tensor:
    return torch.randint(below, shape, dtype=torch.int64)


def some_scales(*shape: int) -> Tensor:
    return (torch.rand(shape) * 0.1 + 0.01).half()


def word(codes: Sequence[int], bits: int) -> int:
    """As a signed number of 32 bits."""
    value = sum(code << (bits * place) for place, code in enumerate(codes))
    return value - (1 << 32) if value >= 1 << 31 else value


def packed_rows(codes: Tensor, bits: int, order: Sequence[int] | None = None) -> Tensor:
    """Along the last dimension, filled up with zeros to whole words."""
    num = 32 // bits
    rows = []
    for row in codes.tolist():
        filled = row + [0] * (-len(row) % num)
        words = [filled[first : first + num] for first in range(0, len(filled), num)]
        rows.append([word([codes[i] for i in order or range(num)], bits) for codes in words])
    return torch.tensor(rows, dtype=torch.int32)


def values(codes: Tensor, zeros: Tensor, scales: Tensor, groups: Sequence[int]) -> Tensor:
    """Of codes [O, I], by zeros and scales [O, G], and each column's group."""
    rows = zip(codes.tolist(), zeros.tolist(), scales.tolist(), strict=True)
    return torch.tensor(
        [
            [(code - zero[group]) * scale[group] for code, group in zip(row, groups, strict=True)]
            for row, zero, scale in rows
        ]
    )


def in_order(num_columns: int) -> list[int]:
    return [column // GROUP_LEN for column in range(num_columns)]


def shuffled(num_columns: int) -> list[int]:
    groups = in_order(num_columns)
    return [groups[column] for column in torch.randperm(num_columns).tolist()]


def gptq(*, bits: int = 4, shift: int = 1, indexed: bool = True) -> Maker:
    def make(num_rows: int, num_columns: int) -> Stored:
        groups = shuffled(num_columns) if indexed else in_order(num_columns)
        codes = some_integers(num_rows, num_columns, below=1 << bits)
        zeros = some_integers(num_rows, max(groups) + 1, below=1 << bits)
        scales = some_scales(num_rows, max(groups) + 1)
        tensors = {
            "qweight": packed_rows(codes, bits).T.contiguous(),
            "qzeros": packed_rows((zeros.T - shift) % (1 << bits), bits),
            "scales": scales.T.contiguous(),
            "bias": torch.zeros(num_rows),
        }
        if indexed:
            tensors["g_idx"] = torch.tensor(groups, dtype=torch.int32)
        return tensors, values(codes, zeros, scales, groups)

    return make


def awq(num_rows: int, num_columns: int) -> Stored:
    groups = in_order(num_columns)
    codes = some_integers(num_rows, num_columns, below=16)
    zeros = some_integers(num_rows, max(groups) + 1, below=16)
    scales = some_scales(num_rows, max(groups) + 1)
    tensors = {
        "qweight": packed_rows(codes.T, 4, AWQ_ORDER),
        "qzeros": packed_rows(zeros.T, 4, AWQ_ORDER),
        "scales": scales.T.contiguous(),
    }
    return tensors, values(codes, zeros, scales, groups)


def packed(*, bits: int = 4, symmetric: bool = True, indexed: bool = False) -> Maker:
    def make(num_rows: int, num_columns: int) -> Stored:
        groups = shuffled(num_columns) if indexed else in_order(num_columns)
        codes = some_integers(num_rows, num_columns, below=1 << bits)
        zeros = some_integers(num_rows, max(groups) + 1, below=1 << bits)
        scales = some_scales(num_rows, max(groups) + 1)
        tensors = {
            "weight_packed": packed_rows(codes, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor([num_rows, num_columns]),
        }
        if symmetric:
            zeros = torch.full_like(zeros, 1 << (bits - 1))
        else:
            tensors["weight_zero_point"] = packed_rows(zeros.T, bits).T.contiguous()
        if indexed:
            tensors["weight_g_idx"] = torch.tensor(groups, dtype=torch.int32)
        return tensors, values(codes, zeros, scales, groups)

    return make


def int8(*, symmetric: bool) -> Maker:
    """A scale for each row, or for each group of a row."""

    def make(num_rows: int, num_columns: int) -> Stored:
        groups = [0] * num_columns if symmetric else in_order(num_columns)
        codes = some_integers(num_rows, num_columns, below=256) - 128
        zeros = some_integers(num_rows, max(groups) + 1, below=20) * (not symmetric)
        scales = some_scales(num_rows, max(groups) + 1)
        tensors = {"weight": codes.to(torch.int8), "weight_scale": scales}
        if not symmetric:
            tensors["weight_zero_point"] = zeros.to(torch.int8)
        return tensors, values(codes, zeros, scales, groups)

    return make


def fp8(*, block: tuple[int, int] | None = None, by_row: bool = False) -> Maker:
    """A scale for each block, for each row, or one."""

    def make(num_rows: int, num_columns: int) -> Stored:
        weight = (torch.randn(num_rows, num_columns) * 20).to(torch.float8_e4m3fn)
        rows, columns = block or (1 if by_row else num_rows, num_columns)
        scales = some_scales(-(-num_rows // rows), -(-num_columns // columns)).float()
        listed = scales.tolist()
        meant = torch.tensor(
            [
                [number * listed[i // rows][j // columns] for j, number in enumerate(row)]
                for i, row in enumerate(weight.tolist())
            ]
        )
        if block:
            return {"weight": weight, "weight_scale_inv": scales}, meant
        stored = scales if by_row else scales[0, 0]
        return {"weight": weight, "weight_scale": stored, "input_scale": torch.ones(1)}, meant

    return make


def compressed(format: str, **weights: Any) -> dict[str, Any]:
    """A quantization_config as compressed-tensors writes it."""
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }

"""Matrices of integers as compressed-tensors packs them, along the inputs.

    weight_packed       words [O, I / n]   the codes of n inputs in a word
    weight_scale              [O, G]
    weight_zero_point   words [O / n, G]   absent where 0 is in the middle
    weight_g_idx              [I]          the group of each input; absent where they come in order
    weight_shape              O, I

Codes are stored with half their range added, so that none is negative.
"""

import torch
from torch import Tensor

from model.quantization import Quantization
from model.weights.codes import Parts, Scheme, groups_of, unpacked, values_of


def _shape(parts: Parts, quantization: Quantization) -> tuple[int, int]:
    num_rows, num_columns = parts["weight_shape"].read_raw().tolist()
    return num_rows, num_columns


def _read(parts: Parts, quantization: Quantization) -> Tensor:
    num_rows, num_columns = _shape(parts, quantization)
    codes_OI = unpacked(parts["weight_packed"].read_raw(), quantization.bits)[:, :num_columns]
    scales_OG = parts["weight_scale"].read()
    if "weight_zero_point" in parts:
        words_GO = parts["weight_zero_point"].read_raw().T
        zeros_OG = unpacked(words_GO, quantization.bits)[:, :num_rows].T.float()
    else:
        zeros_OG = torch.full_like(scales_OG, 1 << (quantization.bits - 1))
    groups_I = groups_of(
        parts.get("weight_g_idx"), num_columns=num_columns, num_groups=scales_OG.shape[1]
    )
    return values_of(codes_OI, scales_OG=scales_OG, groups_I=groups_I, zeros_OG=zeros_OG)


OTHERS = ("weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape")
SCHEME = Scheme("weight_packed", OTHERS, _shape, _read)

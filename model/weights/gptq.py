"""Matrices as GPTQ's tools store them (arXiv:2210.17323): integers packed along the inputs.

qweight   words [I / n, O]   the codes of n inputs in a word
qzeros    words [G, O / n]   the zero points of n outputs in a word
scales          [G, O]
g_idx           [I]          the group of each input; absent where they come in order
"""

from torch import Tensor

from model.quantization import Quantization
from model.weights.codes import Parts, Scheme, groups_of, unpacked, values_of


def _shape(parts: Parts, quantization: Quantization) -> tuple[int, int]:
    num_words, num_outputs = parts["qweight"].shape
    return num_outputs, num_words * (32 // quantization.bits)


def _read(parts: Parts, quantization: Quantization) -> Tensor:
    bits = quantization.bits
    codes_OI = unpacked(parts["qweight"].read_raw().T, bits)
    scales_GO = parts["scales"].read()
    zeros_GO = unpacked(parts["qzeros"].read_raw(), bits) + quantization.zero_shift
    zeros_GO &= (1 << bits) - 1  # a zero point of 0, less one, is stored as the greatest number
    groups_I = groups_of(
        parts.get("g_idx"), num_columns=codes_OI.shape[1], num_groups=len(scales_GO)
    )
    return values_of(
        codes_OI, scales_OG=scales_GO.T, groups_I=groups_I, zeros_OG=zeros_GO.T.float()
    )


SCHEME = Scheme("qweight", ("qzeros", "scales", "g_idx"), _shape, _read)

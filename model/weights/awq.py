"""Matrices as AutoAWQ stores them (arXiv:2306.00978): integers of 4 bits packed along the outputs.

    qweight   words [I, O / 8]
    qzeros    words [G, O / 8]
    scales          [G, O]

A word holds 8 outputs, from its lowest bits on in the order 0 2 4 6 1 3 5 7.
"""

from torch import Tensor

from model.quantization import Quantization
from model.weights.codes import Parts, Scheme, groups_of, unpacked, values_of

PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where in its word each output is."""


def _shape(parts: Parts, quantization: Quantization) -> tuple[int, int]:
    num_inputs, num_words = parts["qweight"].shape
    return num_words * len(PLACES), num_inputs


def _read(parts: Parts, quantization: Quantization) -> Tensor:
    codes_IO = _in_order(parts["qweight"].read_raw())
    zeros_GO = _in_order(parts["qzeros"].read_raw())
    scales_GO = parts["scales"].read()
    groups_I = groups_of(None, num_columns=len(codes_IO), num_groups=len(scales_GO))
    return values_of(
        codes_IO.T, scales_OG=scales_GO.T, groups_I=groups_I, zeros_OG=zeros_GO.T.float()
    )


def _in_order(words: Tensor) -> Tensor:
    codes = unpacked(words, bits=4)
    return codes.view(len(codes), -1, len(PLACES))[..., PLACES].flatten(1)


SCHEME = Scheme("qweight", ("qzeros", "scales"), _shape, _read)

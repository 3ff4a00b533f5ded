"""Vectors in eight bits: numbers of e4m3 (arXiv:2209.05433), and one scale for each vector.

The scale makes a vector's largest number e4m3's largest. So a vector's bits depend on it alone, and
nothing has to be calibrated.

Shapes: D dimension.
"""

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
MOST = 448.0
LEAST_AMPLITUDE = 1e-12
"""What vectors of zeros are scaled by, lest they be divided by zero."""


def encoded(x_D: Tensor) -> tuple[Tensor, Tensor]:
    """Of any leading shape: codes_D, and scales in float32 of that shape."""
    x_D = x_D.float()
    scale = x_D.abs().amax(-1).clamp(min=LEAST_AMPLITUDE) / MOST
    return (x_D / scale[..., None]).to(FLOAT8), scale


def decoded(codes_D: Tensor, scale: Tensor) -> Tensor:
    return codes_D.float() * scale[..., None]

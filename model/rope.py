"""Rotary position embedding: turns pairs of dimensions by angles that grow with the position.

A query at position m and a key at n then meet as if turned by m - n alone (RoFormer,
arXiv:2104.09864). The pairs are dimensions i and i + D/2, Hugging Face's order; that GGUF files for
llama put a pair side by side is undone as the weights are loaded.

Shapes: T packed tokens, H heads, D head dimension, F = D/2 frequencies.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from model.config import Llama3Scaling, ModelConfig


class Rotation(NamedTuple):
    """One step's angles, computed once for all layers."""

    cos_T1D: Tensor
    sin_T1D: Tensor
    """Negative in the first half, so that one addition serves both halves."""


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """Radians per position of each pair, from 1 down to almost 1/theta."""
    exponent_F = torch.arange(0, config.head_dim, 2, device="cpu").float() / config.head_dim
    frequency_F = 1.0 / config.rope_theta**exponent_F
    if config.rope_scaling is None:
        return frequency_F
    return _scaled_llama3(frequency_F, config.rope_scaling)


def _scaled_llama3(frequency_F: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slows the turns that the original context saw too few of, and blends into those it saw well.

    Llama 3.1's reference: github.com/meta-llama/llama-models, models/llama3/model.py.
    """
    turns_F = scaling.original_context_len * frequency_F / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_F = ((turns_F - low) / (high - low)).clamp(0, 1)
    return frequency_F * (kept_F + (1 - kept_F) / scaling.factor)


def rotation_at(positions_T: Tensor, frequency_F: Tensor, *, dtype: torch.dtype) -> Rotation:
    """The angles are float32 in any model: a half can't tell late positions apart."""
    angle_T1F = (positions_T.float()[:, None] * frequency_F.float())[:, None]
    cos_T1F, sin_T1F = angle_T1F.cos().to(dtype), angle_T1F.sin().to(dtype)
    return Rotation(torch.cat((cos_T1F, cos_T1F), -1), torch.cat((-sin_T1F, sin_T1F), -1))


def rotate_(x_THD: Tensor, rotation: Rotation) -> Tensor:
    """In place, as the underscore says: (a, b) becomes (a cos - b sin, b cos + a sin)."""
    swapped_THD = x_THD.roll(x_THD.shape[-1] // 2, -1)
    return x_THD.mul_(rotation.cos_T1D).addcmul_(swapped_THD, rotation.sin_T1D)

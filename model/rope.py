"""Rotary position embedding: turns pairs of dimensions by angles that grow with the position.

A query at position m and a key at n then meet as if turned by m - n alone (RoFormer,
arXiv:2104.09864). The pairs are dimensions i and i + D/2, Hugging Face's order; that GGUF files for
llama put a pair side by side is undone as the weights are loaded.

Shapes: T packed tokens, H heads, D rotated dimensions of a head, F = D/2 frequencies.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from model.config import ModelConfig
from model.scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    YarnScaling,
)


class Rotation(NamedTuple):
    """One step's angles, computed once for all layers."""

    cos_T1D: Tensor
    sin_T1D: Tensor
    """Negative in the first half, so that one addition serves both halves."""


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """Radians per position of each pair, from 1 down to almost 1/theta."""
    dim, theta = config.rotary_dim, config.rope_theta
    match config.rope_scaling:
        case None:
            return plain_frequencies(dim, theta)
        case LinearScaling(factor=factor):
            return plain_frequencies(dim, theta) / factor
        case DynamicScaling() as scaling:
            return plain_frequencies(dim, _dynamic_theta(config, scaling))
        case Llama3Scaling() as scaling:
            return _scaled_llama3(plain_frequencies(dim, theta), scaling)
        case YarnScaling() as scaling:
            return _scaled_yarn(plain_frequencies(dim, theta), theta, scaling)
        case LongRopeScaling() as scaling:
            return plain_frequencies(dim, theta) / _divisors(config, scaling)


def plain_frequencies(dim: int, theta: float) -> Tensor:
    exponent_F = torch.arange(0, dim, 2, device="cpu").float() / dim
    return 1.0 / theta**exponent_F


def _dynamic_theta(config: ModelConfig, scaling: DynamicScaling) -> float:
    """Of the longest sequence that is served, so that a sequence keeps its angles as it grows."""
    longest = max(config.context_len, scaling.original_context_len)
    stretch = scaling.factor * longest / scaling.original_context_len - (scaling.factor - 1)
    dim = config.rotary_dim
    return config.rope_theta * stretch ** (dim / (dim - 2))


def _scaled_llama3(frequency_F: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slows the turns that the original context saw too few of, and blends into those it saw well.

    Llama 3.1's reference: github.com/meta-llama/llama-models, models/llama3/model.py.
    """
    turns_F = scaling.original_context_len * frequency_F / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_F = ((turns_F - low) / (high - low)).clamp(0, 1)
    return frequency_F * (kept_F + (1 - kept_F) / scaling.factor)


def _scaled_yarn(frequency_F: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    """Blends linearly from the pair that turns beta_fast times in the original context, which
    stays, to the one that turns beta_slow times, which is slowed (arXiv:2309.00071, section 3.2).
    """
    dim = 2 * len(frequency_F)

    def pair_that_turns(times: float) -> float:
        longest = scaling.original_context_len / (times * 2 * math.pi)
        return dim * math.log(longest) / (2 * math.log(theta))

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    pairs_F = torch.arange(len(frequency_F), device="cpu").float()
    slowed_F = ((pairs_F - first) / max(last - first, 0.001)).clamp(0, 1)
    return frequency_F * (1 - slowed_F + slowed_F / scaling.factor)


def _divisors(config: ModelConfig, scaling: LongRopeScaling) -> Tensor:
    """By the context that is served, so that a sequence keeps its angles as it grows."""
    is_long = config.context_len > scaling.original_context_len
    factors = scaling.long_factors if is_long else scaling.short_factors
    return torch.tensor(factors, device="cpu")


def rotation_at(
    positions_T: Tensor, frequency_F: Tensor, *, dtype: torch.dtype, scale: float = 1.0
) -> Rotation:
    """The angles are float32 in any model: a half can't tell late positions apart."""
    angle_T1F = (positions_T.float()[:, None] * frequency_F.float())[:, None]
    cos_T1F, sin_T1F = angle_T1F.cos() * scale, angle_T1F.sin() * scale
    cos_T1F, sin_T1F = cos_T1F.to(dtype), sin_T1F.to(dtype)
    return Rotation(torch.cat((cos_T1F, cos_T1F), -1), torch.cat((-sin_T1F, sin_T1F), -1))


def rotate_(x_THD: Tensor, rotation: Rotation) -> Tensor:
    """In place, as the underscore says: (a, b) becomes (a cos - b sin, b cos + a sin)."""
    swapped_THD = x_THD.roll(x_THD.shape[-1] // 2, -1)
    return x_THD.mul_(rotation.cos_T1D).addcmul_(swapped_THD, rotation.sin_T1D)


def sinusoids(positions_T: Tensor, width: int, *, dtype: torch.dtype) -> Tensor:
    """The fixed positions of 2017 (arXiv:1706.03762, section 3.5), which are added to embeddings:
    dimension 2i is the sine, 2i + 1 the cosine of an angle."""
    frequency_F = plain_frequencies(width, 10_000.0).to(positions_T.device)
    angle_TF = positions_T.float()[:, None] * frequency_F
    return torch.stack((angle_TF.sin(), angle_TF.cos()), dim=-1).flatten(1).to(dtype)

"""What lies between the matrix products and attention, as few and large steps.

On a GPU each of them is one kernel, since there they take as long as their memory is read and
written: `model.triton.fused` has the same three functions. These are the reference for it.

Shapes: T packed tokens, W model width, H query heads, K key-value heads, J = 2K, D head dimension,
F feed-forward width.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from model.kv_cache import LayerCache
from model.rope import Rotation, rotate_

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "relu": relu,
}


class Fused(Protocol):
    """A module with these functions."""

    def add_norm(self, x_TW: Tensor, branch_TW: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """The sum, and its norm."""

    def rotate_and_cache(
        self,
        qkv: Tensor,
        rotation: Rotation | None,
        cache: LayerCache,
        *,
        num_heads: int,
        page_ids_T: Tensor,
        offsets_T: Tensor,
    ) -> Tensor:
        """Of [T, H + 2K, D]: keys, turned, and values go to the cache; the queries, q_THD, turned,
        come back. May write over qkv. A rotation may be of a head's first dimensions only."""

    def gate(self, gate_up_TF: Tensor, activation: str) -> Tensor:
        """activation(gate) · up, of both side by side: [T, 2F] to [T, F]."""


def add_norm(x_TW: Tensor, branch_TW: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    x_TW = x_TW + branch_TW
    return x_TW, norm(x_TW)


def rotate_and_cache(
    qkv: Tensor,
    rotation: Rotation | None,
    cache: LayerCache,
    *,
    num_heads: int,
    page_ids_T: Tensor,
    offsets_T: Tensor,
) -> Tensor:
    #   qkv: │ queries: H │ keys: K │ values: K │ heads
    #        └─── are rotated ──────┘
    #                     └─── are cached ───────┘
    num_kv_heads = (qkv.shape[1] - num_heads) // 2
    if rotation is not None:
        dim = rotation.cos_T1D.shape[-1]
        rotate_(qkv[:, : num_heads + num_kv_heads, :dim], rotation)
    q_THD, kv_TJD = torch.split(qkv, [num_heads, 2 * num_kv_heads], dim=1)
    cache.write(kv_TJD, page_ids_T=page_ids_T, offsets_T=offsets_T)
    return q_THD


def gate(gate_up_TF: Tensor, activation: str) -> Tensor:
    gate_TF, up_TF = gate_up_TF.chunk(2, dim=1)
    return ACTIVATIONS[activation](gate_TF) * up_TF

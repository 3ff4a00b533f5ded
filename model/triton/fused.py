"""model.fused's functions, each a kernel that computes in float32 and rounds once.

Shapes: T packed tokens, W model width, H query heads, K key-value heads, J = 2K, D head dimension,
R dimensions of a head that are rotated, F feed-forward width, P tokens in a page.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from model import fused
from model.float8 import LEAST_AMPLITUDE, MOST
from model.kv_cache import LayerCache
from model.rope import Rotation
from model.triton.numbers import tanh, to_float8

GATE_BLOCK = 1024
BLOCK_H = 8
"""Heads to a program."""

_MOST, _LEAST_AMPLITUDE = tl.constexpr(MOST), tl.constexpr(LEAST_AMPLITUDE)
_ROOT_OF_2, _ROOT_OF_2_OVER_PI = tl.constexpr(2**0.5), tl.constexpr((2 / torch.pi) ** 0.5)


def add_norm(x_TW: Tensor, branch_TW: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Other norms than RMSNorm are PyTorch's."""
    if not isinstance(norm, nn.RMSNorm):
        return fused.add_norm(x_TW, branch_TW, norm)
    T, W = x_TW.shape
    sum_TW, normed_TW = torch.empty_like(x_TW), torch.empty_like(x_TW)
    block = triton.next_power_of_2(W)
    add_rms_norm[T,](
        x_TW, branch_TW, norm.weight, sum_TW, normed_TW, x_TW.stride(0), branch_TW.stride(0),
        norm.eps, W, BLOCK=block, num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return sum_TW, normed_TW


def rotate_and_cache(
    qkv: Tensor,
    rotation: Rotation | None,
    cache: LayerCache,
    *,
    num_heads: int,
    page_ids_T: Tensor,
    offsets_T: Tensor,
) -> Tensor:
    T, _, D = qkv.shape
    _, J, P, _ = cache.pool_NJPD.shape
    cos_T1R, sin_T1R = rotation or (None, None)
    q_THD = torch.empty(T, num_heads, D, dtype=qkv.dtype, device=qkv.device)
    rotate_and_store[T, triton.cdiv(num_heads + J, BLOCK_H)](
        qkv, q_THD, cos_T1R, sin_T1R, cache.pool_NJPD, cache.scales_NJP, page_ids_T, offsets_T,
        qkv.stride(0), H=num_heads, K=J // 2, D=D, R=0 if cos_T1R is None else cos_T1R.shape[-1],
        P=P, BLOCK_H=BLOCK_H, BLOCK_D=triton.next_power_of_2(D),
        FLOAT8=cache.scales_NJP is not None,
    )  # fmt: skip
    return q_THD


def gate(gate_up_TF: Tensor, activation: str) -> Tensor:
    T, F = len(gate_up_TF), gate_up_TF.shape[1] // 2
    out_TF = torch.empty(T, F, dtype=gate_up_TF.dtype, device=gate_up_TF.device)
    activate_and_gate[T, triton.cdiv(F, GATE_BLOCK)](
        gate_up_TF, out_TF, gate_up_TF.stride(0), F, ACTIVATION=activation, BLOCK=GATE_BLOCK
    )
    return out_TF


@triton.jit
def add_rms_norm(
    x, branch, weight, sums, normed, x_stride, branch_stride, eps, W, BLOCK: tl.constexpr
):
    """Grid (T,). What is normed is the sum as it is stored (RMSNorm, arXiv:1910.07467)."""
    token = tl.program_id(0).to(tl.int64)
    dims_W = tl.arange(0, BLOCK)
    mask_W = dims_W < W
    x_W = tl.load(x + token * x_stride + dims_W, mask=mask_W, other=0.0).to(tl.float32)
    branch_W = tl.load(branch + token * branch_stride + dims_W, mask=mask_W, other=0.0)
    sum_W = (x_W + branch_W.to(tl.float32)).to(sums.dtype.element_ty)
    tl.store(sums + token * W + dims_W, sum_W, mask=mask_W)
    sum_W = sum_W.to(tl.float32)
    scale = 1 / tl.sqrt_rn(tl.sum(sum_W * sum_W, 0) / W + eps)
    weight_W = tl.load(weight + dims_W, mask=mask_W, other=0.0).to(tl.float32)
    normed_W = (sum_W * scale * weight_W).to(normed.dtype.element_ty)
    tl.store(normed + token * W + dims_W, normed_W, mask=mask_W)


@triton.jit
def rotate_and_store(
    qkv, queries, cos, sin, pool, scales, page_ids, offsets, stride,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, FLOAT8: tl.constexpr,
):  # fmt: skip
    """Some heads of a token: grid (T, any). Not in place, as two threads share a pair."""
    token = tl.program_id(0).to(tl.int64)
    heads_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dims_D = tl.arange(0, BLOCK_D)
    mask_HD = (heads_H < H + 2 * K)[:, None] & (dims_D < D)[None, :]
    from_H = qkv + token * stride + heads_H * D
    x_HD = tl.load(from_H[:, None] + dims_D[None, :], mask=mask_HD, other=0.0).to(tl.float32)
    if R > 0:
        is_turned_HD = (heads_H < H + K)[:, None] & (dims_D < R)[None, :]
        partners_D = tl.where(dims_D < R // 2, dims_D + R // 2, dims_D - R // 2)
        partner_HD = tl.load(from_H[:, None] + partners_D[None, :], mask=is_turned_HD, other=0.0)
        cos_D = tl.load(cos + token * R + dims_D, mask=dims_D < R, other=1.0).to(tl.float32)
        sin_D = tl.load(sin + token * R + dims_D, mask=dims_D < R, other=0.0).to(tl.float32)
        turned_HD = x_HD * cos_D[None, :] + partner_HD.to(tl.float32) * sin_D[None, :]
        x_HD = tl.where(is_turned_HD, turned_HD, x_HD)
    x_HD = x_HD.to(queries.dtype.element_ty)
    to_HD = (token * H + heads_H)[:, None] * D + dims_D[None, :]
    tl.store(queries + to_HD, x_HD, mask=mask_HD & (heads_H < H)[:, None])
    slots_H = (tl.load(page_ids + token).to(tl.int64) * (2 * K) + heads_H - H) * P
    slots_H += tl.load(offsets + token)
    is_cached_H = (heads_H >= H) & (heads_H < H + 2 * K)
    if FLOAT8:
        x_HD = x_HD.to(tl.float32)
        scales_H = tl.maximum(tl.max(tl.abs(x_HD), 1), _LEAST_AMPLITUDE) / _MOST
        tl.store(scales + slots_H, scales_H, mask=is_cached_H)
        x_HD = to_float8(tl.div_rn(x_HD, tl.broadcast_to(scales_H[:, None], x_HD.shape)))
    to_HD = slots_H[:, None] * D + dims_D[None, :]
    tl.store(pool + to_HD, x_HD, mask=is_cached_H[:, None] & (dims_D < D)[None, :])


@triton.jit
def activate_and_gate(gate_up, out, stride, F, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (T, any)."""
    token = tl.program_id(0).to(tl.int64)
    dims_F = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask_F = dims_F < F
    gate_F = tl.load(gate_up + token * stride + dims_F, mask=mask_F, other=0.0).to(tl.float32)
    up_F = tl.load(gate_up + token * stride + F + dims_F, mask=mask_F, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        gate_F *= tl.sigmoid(gate_F)
    elif ACTIVATION == "gelu":
        gate_F *= 0.5 * (1 + tl.erf(gate_F / _ROOT_OF_2))
    elif ACTIVATION == "gelu_tanh":
        inner_F = _ROOT_OF_2_OVER_PI * (gate_F + 0.044715 * gate_F * gate_F * gate_F)
        gate_F *= 0.5 * (1 + tanh(inner_F))
    else:
        tl.static_assert(ACTIVATION == "relu")
        gate_F = tl.maximum(gate_F, 0)
    tl.store(out + token * F + dims_F, (gate_F * up_F).to(out.dtype.element_ty), mask=mask_F)

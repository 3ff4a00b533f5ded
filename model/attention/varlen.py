"""Attention by the FlashAttention that PyTorch brings along, over pages: for CUDA, and for models
without a softcap, in halves.

It wants pages of a multiple of 256 tokens. Its keys aren't split, which it would do by the longest
context of the batch: so a row has the same bits in any batch, and a long context is read by few of
the GPU's processors.

Shapes: T packed tokens, S sequences, N pages of the longest sequence, P tokens in a page, H query
heads, K key-value heads, J = 2K, D head dimension.
"""

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn_out
from torch.nn.functional import pad

from model.attention.backend import Place
from model.config import ModelConfig
from model.kv_cache import LayerCache
from model.packing import RaggedBatch

PAGE_SIZE = 256
MOST_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class Plan:
    page_table_SN: Tensor
    context_lens_S: Tensor
    query_ends_S1: Tensor
    """0, and where each row's queries end in the batch."""
    key_ends_S1: Tensor
    """The same of what they see, if it lay end to end."""
    most_queries: int
    window: tuple[int, int]
    """How many tokens are seen before, and behind; -1: all."""


def refusal(config: ModelConfig, place: Place) -> str:
    if "block_table" not in inspect.signature(varlen_attn_out).parameters:
        return f"PyTorch {torch.__version__} has it without pages"
    if place.dtype not in (torch.bfloat16, torch.float16):
        return f"it doesn't compute in {place.dtype}"
    if place.cache_dtype != place.dtype:
        return f"it doesn't read a cache in {place.cache_dtype}"
    if config.attention_softcap is not None:
        return "it has no softcap"
    if config.head_dim > MOST_HEAD_DIM or config.head_dim % 8:
        return f"it has no heads of {config.head_dim} dimensions"
    return ""


def prepare(
    batch: RaggedBatch,
    *,
    num_heads: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    window: int | None = None,
) -> Plan:
    T, S = len(batch.token_ids_T), len(batch.query_lens_S)
    return Plan(
        page_table_SN=batch.page_table_SN.int(),
        context_lens_S=batch.context_lens_S.int(),
        query_ends_S1=_ends(batch.query_lens_S),
        key_ends_S1=_ends(batch.context_lens_S),
        # The most that a row can have beside the others, as asking would wait for the device.
        most_queries=T - S + 1,
        window=(-1 if window is None else window - 1, 0),
    )


def attend(
    q_THD: Tensor,
    cache: LayerCache,
    plan: Plan,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    assert softcap is None
    k_NPKD, v_NPKD = cache.pool_NJPD.transpose(1, 2).chunk(2, dim=2)
    out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
    varlen_attn_out(
        out_THD,
        q_THD,
        k_NPKD,
        v_NPKD,
        plan.query_ends_S1,
        plan.key_ends_S1,
        plan.most_queries,
        plan.page_table_SN.shape[1] * k_NPKD.shape[1],
        scale=scale,
        window_size=plan.window,
        enable_gqa=True,
        seqused_k=plan.context_lens_S,
        block_table=plan.page_table_SN,
        num_splits=1,
    )
    return out_THD


def _ends(lens_S: Tensor) -> Tensor:
    return pad(lens_S.cumsum(0), (1, 0)).int()

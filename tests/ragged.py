"""Ragged batches over a paged cache that is poisoned wherever no row has tokens, and the attention
that they want, one query at a time.

Shapes: T packed tokens, H query heads, K key-value heads, J = 2K, D head dimension, C keys.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from model.attention.backend import Backend
from model.batch import Row
from model.kv_cache import CPU, KVCache, LayerCache
from model.packing import pack
from tests.tiny_llama import CONFIG

Sizes = Sequence[tuple[int, int]]
"""Queries and cached tokens of each row."""


def plain_attention(
    q_THD: Tensor,
    layer: LayerCache,
    rows: Sequence[Row],
    *,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    outputs = []
    queries = iter(q_THD)
    H, D = q_THD.shape[1:]
    J = layer.pool_NJPD.shape[1]
    for row in rows:
        chunks = torch.tensor(row.page_ids) * J + torch.arange(J)[:, None]
        kv_JCD = layer.gather(chunks[None])[0].to(q_THD.dtype)
        for position in range(row.start, row.start + len(row.token_ids)):
            q_HD = next(queries)
            first = 0 if window is None else max(0, position + 1 - window)
            k_HCD, v_HCD = kv_JCD[:, first : position + 1].repeat_interleave(2 * H // J, 0).chunk(2)
            scores_HC = (k_HCD @ q_HD[:, :, None])[..., 0] * (scale or D**-0.5)
            if softcap is not None:
                scores_HC = softcap * torch.tanh(scores_HC / softcap)
            outputs.append((scores_HC.softmax(-1)[:, None] @ v_HCD)[:, 0])
    return torch.stack(outputs)


class Case:
    """Rows, their queries, and a layer of the cache that has what they see and is NaN elsewhere."""

    def __init__(
        self,
        sizes: Sizes,
        *,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        head_dim: int = 64,
        page_size: int = 16,
        dtype: torch.dtype = torch.float32,
        cache_dtype: torch.dtype | None = None,
        device: torch.device = CPU,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        num_pages = [-(-sum(size) // page_size) for size in sizes]
        pages = iter(torch.randperm(sum(num_pages) + 3, generator=generator).tolist())
        tables = [[next(pages) for _ in range(num)] for num in num_pages]
        self.num_heads, self.num_kv_heads, self.page_size = num_heads, num_kv_heads, page_size
        self.layer = _poisoned(
            num_kv_heads, head_dim, sum(num_pages) + 3, page_size, cache_dtype or dtype, device
        )
        whole = [Row([0] * sum(s), 0, table, None) for s, table in zip(sizes, tables, strict=True)]
        batch = pack(whole, page_size=page_size).to(device)
        kv_TJD = torch.randn(
            len(batch.token_ids_T), 2 * num_kv_heads, head_dim, generator=generator
        )
        self.layer.write(
            kv_TJD.to(device, dtype), page_ids_T=batch.page_ids_T, offsets_T=batch.offsets_T
        )
        self.rows = [
            Row([0] * num_queries, start, table, None)
            for (num_queries, start), table in zip(sizes, tables, strict=True)
        ]
        num_queries = sum(num for num, _ in sizes)
        q_THD = torch.randn(num_queries, num_heads, head_dim, generator=generator)
        self.q_THD = q_THD.to(device, dtype)

    def attended(
        self, backend: Backend, order: Sequence[int] = (), *, window: int | None = None, **how: Any
    ) -> Tensor:
        """By the rows of those numbers; by all, if none are given."""
        numbers = order or range(len(self.rows))
        parts = torch.split(self.q_THD, [len(row.token_ids) for row in self.rows])
        batch = pack([self.rows[number] for number in numbers], page_size=self.page_size)
        plan = backend.prepare(
            batch.to(self.q_THD.device),
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            dtype=self.q_THD.dtype,
            window=window,
        )
        q_THD = torch.cat([parts[number] for number in numbers])
        return backend.attend(q_THD, self.layer, plan, **how)

    def wanted(self, **how: Any) -> Tensor:
        return plain_attention(self.q_THD.double().cpu(), self._on_cpu(), self.rows, **how)

    def _on_cpu(self) -> LayerCache:
        scales_NJP = self.layer.scales_NJP
        pool_NJPD = self.layer.pool_NJPD.cpu()
        if scales_NJP is None:
            return LayerCache(pool_NJPD)
        return LayerCache(pool_NJPD.view(torch.float8_e4m3fn), scales_NJP.cpu())


def _poisoned(
    num_kv_heads: int,
    head_dim: int,
    num_pages: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> LayerCache:
    config = replace(
        CONFIG, num_layers=1, num_heads=num_kv_heads, num_kv_heads=num_kv_heads, head_dim=head_dim
    )
    cache = KVCache.allocate(
        config, num_pages=num_pages, page_size=page_size, dtype=dtype, device=device
    )
    layer = cache.layers[0]
    layer.pool_NJPD.fill_(0x7F if layer.scales_NJP is not None else torch.nan)
    if layer.scales_NJP is not None:
        layer.scales_NJP.fill_(torch.nan)
    return layer

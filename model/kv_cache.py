"""Paged storage of keys and values: one pool of fixed-size pages per layer, addressed by page id.

Which page belongs to which sequence is the scheduler's business; page tables come with each step.
A page id means the same page in every layer.

Shapes: T packed tokens, S sequences, N pages, P tokens in a page, C = N * P, K key-value heads,
J = 2K (the keys' heads, then the values'), D head dimension. Each head's part of a page is one
chunk of memory, so that attention reads it in one go:

    pool_NJPD     page 0:  K head 0 │ K head 1 │ … │ V head 0 │ V head 1 │ …     page 1: …
                           └ P x D ┘
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.config import ModelConfig
from model.errors import ModelError
from model.float8 import FLOAT8, decoded, encoded
from model.host import FREE_MEMORY_SHARE, available_memory

CPU = torch.device("cpu")


class LayerCache:
    """One layer's pool, and the scales of its slots where they hold e4m3 (model.float8)."""

    def __init__(self, pool_NJPD: Tensor, scales_NJP: Tensor | None = None) -> None:
        assert (pool_NJPD.dtype == FLOAT8) == (scales_NJP is not None)
        self.scales_NJP = scales_NJP
        self.pool_NJPD = pool_NJPD if scales_NJP is None else pool_NJPD.view(torch.uint8)
        """Bytes, where there are scales."""

    def write(self, kv_TJD: Tensor, *, page_ids_T: Tensor, offsets_T: Tensor) -> None:
        """A token's slot is an offset in a page."""
        if self.scales_NJP is not None:
            codes_TJD, scales_TJ = encoded(kv_TJD)
            self.scales_NJP[page_ids_T, :, offsets_T] = scales_TJ
            kv_TJD = codes_TJD.view(torch.uint8)
        self.pool_NJPD[page_ids_T, :, offsets_T] = kv_TJD

    def copy(self, *, sources_N: Tensor, targets_N: Tensor) -> None:
        """Whole pages; all are read before any is written."""
        self.pool_NJPD[targets_N] = self.pool_NJPD[sources_N]
        if self.scales_NJP is not None:
            self.scales_NJP[targets_N] = self.scales_NJP[sources_N]

    def gather(self, chunk_ids_SJN: Tensor) -> Tensor:
        """A copy of the pages, each head's end to end: kv_SJCD; in float32 of e4m3."""
        S, J, _ = chunk_ids_SJN.shape
        D = self.pool_NJPD.shape[-1]
        chunks = self.pool_NJPD.flatten(2).flatten(0, 1)
        kv_SJCD = chunks.index_select(0, chunk_ids_SJN.flatten()).view(S, J, -1, D)
        if self.scales_NJP is None:
            return kv_SJCD
        scales = self.scales_NJP.flatten(0, 1).index_select(0, chunk_ids_SJN.flatten())
        return decoded(kv_SJCD.view(FLOAT8), scales.view(S, J, -1))


def chunk_ids(page_table_SN: Tensor, *, num_kv_heads: int) -> Tensor:
    """What `gather` takes: the same for all layers, so that a step computes it once."""
    J = 2 * num_kv_heads
    heads_J1 = torch.arange(J, device=page_table_SN.device)[:, None]
    return page_table_SN[:, None] * J + heads_J1


@dataclass(frozen=True, slots=True)
class KVCache:
    layers: list[LayerCache]
    num_pages: int
    page_size: int

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> "KVCache":
        slots = (num_pages, 2 * config.num_kv_heads, page_size)
        layers = [
            LayerCache(
                _zeros((*slots, config.head_dim), dtype, device),
                _zeros(slots, torch.float32, device) if dtype == FLOAT8 else None,
            )
            for _ in range(config.num_layers)
        ]
        return cls(layers, num_pages, page_size)

    def copy(self, pages_N2: Tensor) -> None:
        """Pages as (from, to), in every layer; all are read before any is written. Their numbers
        are on the cache's device, which would be waited for if they were the host's."""
        sources_N, targets_N = pages_N2.T
        for layer in self.layers:
            layer.copy(sources_N=sources_N, targets_N=targets_N)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU, memory that the system hands out as pages are first written, unlike torch.zeros'.

    Zeros they must be: a masked slot weighs 0, but 0 times a stray NaN would be NaN.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    flat = torch.from_numpy(np.zeros(np.prod(shape) * dtype.itemsize, dtype=np.uint8))
    return flat.view(dtype).view(shape)


def affordable_pages(page_bytes: int, *, memory: int, most: int) -> int:
    """How many pages fit `memory` bytes; if that is 0, a share of what is free, `most` at most."""
    free = available_memory()
    if memory > free:
        raise ModelError(
            f"kv_cache_memory is {memory} bytes, but only {free} are free: take less, or 0 for "
            "a share of what is free"
        )
    num_pages = (memory or int(free * FREE_MEMORY_SHARE)) // page_bytes
    if num_pages == 0:
        raise ModelError(
            f"kv_cache_memory has no room for a single page, which takes {page_bytes} bytes: take "
            "more, or a smaller model"
        )
    return num_pages if memory else min(num_pages, most)

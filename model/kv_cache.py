"""Paged storage of keys and values: one pool of fixed-size pages per layer, addressed by page id.

Which page belongs to which sequence is the scheduler's business; page tables come with each step.
A page id means the same page in every layer.

Shapes: T packed tokens, S sequences, N pages, P tokens in a page, C = N * P, K key-value heads,
J = 2K (the keys' heads, then the values'), D head dimension. Each head's part of a page is one
chunk of memory, so that attention reads it in one go:

    pool_NJPD     page 0:  K head 0 │ K head 1 │ … │ V head 0 │ V head 1 │ …     page 1: …
                           └ P x D ┘
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.config import ModelConfig
from model.errors import ModelError
from model.host import FREE_MEMORY_SHARE, available_memory


class LayerCache:
    """One layer's pool."""

    def __init__(self, pool_NJPD: Tensor) -> None:
        self._pool_NJPD = pool_NJPD
        self._chunks = pool_NJPD.flatten(2).flatten(0, 1)

    def write(self, kv_TJD: Tensor, *, page_ids_T: Tensor, offsets_T: Tensor) -> None:
        """A token's slot is an offset in a page."""
        self._pool_NJPD[page_ids_T, :, offsets_T] = kv_TJD

    def copy(self, *, sources_N: Tensor, targets_N: Tensor) -> None:
        """Whole pages; all are read before any is written."""
        self._pool_NJPD[targets_N] = self._pool_NJPD[sources_N]

    def gather(self, chunk_ids_SJN: Tensor) -> Tensor:
        """A copy of the pages, each head's end to end: kv_SJCD."""
        S, J, _ = chunk_ids_SJN.shape
        D = self._pool_NJPD.shape[-1]
        return self._chunks.index_select(0, chunk_ids_SJN.flatten()).view(S, J, -1, D)


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
        cls, config: ModelConfig, *, num_pages: int, page_size: int, dtype: torch.dtype
    ) -> "KVCache":
        shape = (num_pages, 2 * config.num_kv_heads, page_size, config.head_dim)
        pools = [_lazy_zeros(shape, dtype) for _ in range(config.num_layers)]
        return cls([LayerCache(pool) for pool in pools], num_pages, page_size)

    def copy(self, pages: Sequence[tuple[int, int]]) -> None:
        """Pages as (from, to), in every layer; all are read before any is written."""
        if pages:
            sources_N, targets_N = torch.tensor(pages).T
            for layer in self.layers:
                layer.copy(sources_N=sources_N, targets_N=targets_N)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory that the system hands out as pages are first written, unlike that of torch.zeros.

    Zeros they must be: a masked slot weighs 0, but 0 times a stray NaN would be NaN.
    """
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

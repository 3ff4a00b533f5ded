"""Whether a backend of attention computes what the reference does, on the device at hand.

A chunk, prompts and decodes together, one of them of a context that is longer than a page and than
a window; then each of them alone, which must have the same bits.

Shapes: T packed tokens, H query heads, K key-value heads, D head dimension.
"""

from dataclasses import replace

import torch
from torch import Tensor

from model.attention import reference
from model.attention.backend import Backend, Place, UnfitError
from model.batch import Row
from model.config import ModelConfig
from model.kv_cache import KVCache
from model.packing import pack

SIZES = ((1, 0), (1, 700), (5, 30), (90, 0))
"""Queries and cached tokens of each row."""
TOLERANCES = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def check(backend: Backend, config: ModelConfig, place: Place) -> None:
    """Raises UnfitError, or whatever the device raises."""
    generator = torch.Generator().manual_seed(0)
    num_cached, num_queries = sum(map(sum, SIZES)), [num for num, _ in SIZES]
    kv_TJD = torch.randn(num_cached, 2 * config.num_kv_heads, config.head_dim, generator=generator)
    q_THD = torch.randn(sum(num_queries), config.num_heads, config.head_dim, generator=generator)
    kv_TJD, q_THD = kv_TJD.to(place.dtype), q_THD.to(place.dtype)
    ours = _Context(config, backend, kv_TJD.to(place.device), place.cache_dtype)
    oracle = _Context(config, reference, kv_TJD, place.cache_dtype)
    queries = q_THD.to(place.device)
    for window in {None, config.sliding_window}:
        out_THD = ours.attended(queries, ours.rows, window)
        wanted_THD = oracle.attended(q_THD.float(), oracle.rows, window)
        error = (out_THD.cpu().float() - wanted_THD).abs().max().item()
        if not error <= TOLERANCES[place.dtype]:
            raise UnfitError(f"it is {error:.2g} off the reference, with a window of {window}")
        parts = zip(torch.split(queries, num_queries), ours.rows, strict=True)
        alone = [ours.attended(part, [row], window) for part, row in parts]
        if not torch.equal(torch.cat(alone), out_THD):
            raise UnfitError("a row's bits depend on what is beside it")


class _Context:
    """Rows of those sizes, and a layer of the cache that has what they see."""

    def __init__(
        self, config: ModelConfig, backend: Backend, kv_TJD: Tensor, cache_dtype: torch.dtype
    ) -> None:
        self._config, self._backend = config, backend
        pages = iter(range(len(kv_TJD)))
        num_pages = [-(-sum(size) // backend.PAGE_SIZE) for size in SIZES]
        tables = [[next(pages) for _ in range(num)] for num in num_pages]
        cache = KVCache.allocate(
            replace(config, num_layers=1),
            num_pages=sum(num_pages),
            page_size=backend.PAGE_SIZE,
            dtype=cache_dtype,
            device=kv_TJD.device,
        )
        self._layer = cache.layers[0]
        whole = [Row([0] * sum(s), 0, table, None) for s, table in zip(SIZES, tables, strict=True)]
        batch = pack(whole, page_size=backend.PAGE_SIZE).to(kv_TJD.device)
        self._layer.write(kv_TJD, page_ids_T=batch.page_ids_T, offsets_T=batch.offsets_T)
        self.rows = [
            Row([0] * num_queries, start, table, None)
            for (num_queries, start), table in zip(SIZES, tables, strict=True)
        ]

    def attended(self, q_THD: Tensor, rows: list[Row], window: int | None) -> Tensor:
        config, backend = self._config, self._backend
        plan = backend.prepare(
            pack(rows, page_size=backend.PAGE_SIZE).to(q_THD.device),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            dtype=q_THD.dtype,
            window=window,
        )
        scale, softcap = config.attention_scale, config.attention_softcap
        return backend.attend(q_THD, self._layer, plan, scale=scale, softcap=softcap)

"""Paged storage of keys and values in bfloat16, laid out as attention.h says.

Which page belongs to which sequence is the scheduler's business, as with model.kv_cache.
"""

import torch
from torch import Tensor

from model.config import ModelConfig
from model.footprint import native_page_bytes
from model.native.library import PAGE_SIZE
from model.native.memory import zeros


class NativeCache:
    page_size = PAGE_SIZE

    def __init__(self, config: ModelConfig, *, num_pages: int) -> None:
        self.num_pages = num_pages
        # It must be zeros: a masked slot weighs 0, but 0 times a stray NaN would be NaN.
        pool = zeros(num_pages * native_page_bytes(config)).view(torch.int16)
        # A page's layers lie together, so that the system is asked for new memory now and then, a
        # little at a time; side by side, all layers would ask in the same step: 60 MB at once.
        self.pool = pool.view(num_pages, config.num_layers, -1)

    def copy(self, pages_N2: Tensor) -> None:
        """Pages as (from, to), in every layer; all are read before any is written."""
        sources_N, targets_N = pages_N2.T
        self.pool[targets_N] = self.pool[sources_N]

"""Memory for what steps read from end to end, again and again: in large pages, where there are any.

The processor looks up each 4 KiB page that it reads of; of 2 MiB pages, it does so rarely.
"""

import mmap

import torch
from torch import Tensor


def zeros(num_bytes: int) -> Tensor:
    """Bytes that take up room only as they are first written, by the 2 MiB."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)

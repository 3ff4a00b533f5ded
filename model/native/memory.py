"""Memory for what steps read from end to end, again and again: in large pages, where there are any.

The processor looks up each 4 KiB page that it reads of; of 2 MiB pages, it does so rarely.
"""

import mmap

import torch
from torch import Tensor

BLOCK_BYTES = 64 << 20
ALIGNMENT = 64


def zeros(num_bytes: int) -> Tensor:
    """Bytes that take up room only as they are first written, by the 2 MiB."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


class Room:
    """Gives out memory that is there for as long as a part of it is kept."""

    def __init__(self) -> None:
        self._rest = zeros(BLOCK_BYTES)

    def take(self, num_bytes: int) -> Tensor:
        """Begins where a vector may."""
        size = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        if size > len(self._rest):
            self._rest = zeros(max(size, BLOCK_BYTES))
        taken, self._rest = self._rest[:num_bytes], self._rest[size:]
        return taken

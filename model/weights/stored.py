"""A tensor in a file, before it is read; and many of them, read on all cores.

Knows no file format and no names.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StoredTensor:
    name: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    """Its values as float32, in memory of their own."""
    type: str
    """Of its numbers, or of the blocks that a GGUF file holds it in."""
    read_raw: Callable[[], Tensor]
    """Those as they are; a block's bytes are in the last dimension."""
    num_bytes: int
    """In the file."""
    view: Callable[[], Tensor] | None = None
    """Its numbers as they lie in the file, mapped and not copied; None where they are coded."""


def read_all(tensors: Sequence[StoredTensor], *, threads: int) -> Iterator[Tensor]:
    """In order. No more than `threads` are read before they are asked for, so as to bound memory.

    Threads do, since what takes time is done outside of the interpreter, by numpy and PyTorch.
    """
    ahead: deque[Future[Tensor]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for tensor in tensors:
            ahead.append(pool.submit(tensor.read))
            if len(ahead) > threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

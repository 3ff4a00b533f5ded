"""Has what is freed while weights are read go back to the system, instead of being kept for later.

glibc keeps freed blocks of up to 32 MiB, by a threshold that grows with what is freed (mallopt(3)).
Of a model whose matrices are that large it keeps a fifth of the weights' size in holes, for good.
Other C libraries are left as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LOADING = {M_MMAP_THRESHOLD: 1 << 20}
SERVING = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 64 << 20}
"""Where glibc's own thresholds end up: to set one ends their growth."""


@contextmanager
def returned_when_freed() -> Iterator[None]:
    libc = CDLL(None)
    _set(libc, LOADING)
    try:
        yield
    finally:
        _set(libc, SERVING)


def _set(libc: CDLL, thresholds: dict[int, int]) -> None:
    if hasattr(libc, "gnu_get_libc_version"):
        for name, num_bytes in thresholds.items():
            libc.mallopt(name, num_bytes)

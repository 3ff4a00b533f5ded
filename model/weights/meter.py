"""How far reading a model's tensors is, and how fast it goes. Knows no tensor but by its size."""

import time
from collections.abc import Callable, Sequence

from model.weights.stored import StoredTensor


class Meter:
    """report: takes what was just read and how fast it goes, and the share of all bytes."""

    def __init__(
        self,
        tensors: Sequence[StoredTensor],
        report: Callable[[str, float], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_bytes = sum(tensor.num_bytes for tensor in tensors)
        self._num_read = 0
        self._report = report
        self._clock = clock
        self._started = clock()

    def take(self, tensor: StoredTensor) -> None:
        self._num_read += tensor.num_bytes
        rate = self._num_read / max(self._clock() - self._started, 1e-9)
        self._report(f"{tensor.name}, {rate / 1e6:,.0f} MB/s", self._num_read / self._num_bytes)

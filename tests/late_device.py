"""A device that does its work as late as a test wants, and at the latest when it is awaited."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from model.device import Wait
from model.kv_cache import CPU


class LateDevice:
    """Fulfils model.device.Device."""

    place: torch.device = CPU

    def __init__(self, delays: Iterator[int]) -> None:
        """delays: how much of the queue is left undone each time that work is submitted."""
        self.num_captured = 0
        self._delays = delays
        self._queue: list[tuple[Callable[[], Tensor], list[Tensor]]] = []
        self._is_working = False

    def submit(self, work: Callable[[], Tensor]) -> Wait:
        result: list[Tensor] = []
        self._queue.append((work, result))
        self._work_until(next(self._delays))

        def wait() -> Tensor:
            while not result:
                self._work_until(len(self._queue) - 1)
            return result[0]

        return wait

    def upload(self, values: Tensor) -> Tensor:
        assert self._is_working
        return values.clone()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        assert self._is_working
        self.num_captured += 1
        work()
        return work

    def _work_until(self, num_left: int) -> None:
        while len(self._queue) > num_left:
            work, result = self._queue.pop(0)
            self._is_working = True
            result.append(work().clone())
            self._is_working = False

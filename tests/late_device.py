"""Devices that do their work late: one when a test wants, and at the latest when it is awaited; one
beside the host."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue

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

    def close(self) -> None:
        self._work_until(0)

    def _work_until(self, num_left: int) -> None:
        while len(self._queue) > num_left:
            work, result = self._queue.pop(0)
            self._is_working = True
            result.append(work().clone())
            self._is_working = False


class Piece:
    def __init__(self, work: Callable[[], Tensor], delay: float) -> None:
        self.work, self.delay = work, delay
        self.is_awaited = threading.Event()
        self.result: Future[Tensor] = Future()


class SlowDevice:
    """Fulfils model.device.Device. As a GPU it works by itself, here on a thread, so that others
    who exchange tensors with it needn't wait for its host; but each piece takes a while to begin,
    unless somebody waits."""

    place: torch.device = CPU

    def __init__(
        self, delays: Iterator[float], *, begin: Callable[[], None] = lambda: None
    ) -> None:
        """delays: seconds. begin: to be called on the thread."""
        self.num_captured = 0
        self._delays = delays
        self._queue: SimpleQueue[Piece | None] = SimpleQueue()
        self._pending: list[Piece] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, args=[begin], daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Tensor]) -> Wait:
        self._check()
        piece = Piece(work, next(self._delays))
        self._pending.append(piece)
        self._queue.put(piece)

        def wait() -> Tensor:
            self._hurry()
            return piece.result.result()

        return wait

    def upload(self, values: Tensor) -> Tensor:
        assert threading.current_thread() is self._thread
        return values.clone()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        assert threading.current_thread() is self._thread
        self.num_captured += 1
        work()
        return work

    def close(self) -> None:
        self._queue.put(None)
        self._hurry()
        self._thread.join()
        self._check()

    def _hurry(self) -> None:
        for piece in self._pending[:]:
            piece.is_awaited.set()

    def _check(self) -> None:
        if self._error:
            raise self._error

    def _work(self, begin: Callable[[], None]) -> None:
        begin()
        while piece := self._queue.get():
            piece.is_awaited.wait(piece.delay)
            try:
                piece.result.set_result(piece.work().clone())
            except BaseException as error:
                self._error = self._error or error
                piece.result.set_exception(error)
            self._pending.remove(piece)

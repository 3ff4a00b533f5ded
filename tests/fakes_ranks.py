"""Ranks that are threads of this process, and exchange tensors without a network."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, local
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from model.parallel import Ranks

SECONDS = 60.0

T = TypeVar("T")


class FakeDistributed:
    """As much of torch.distributed as model.parallel calls."""

    ReduceOp = ReduceOp

    def __init__(self, size: int) -> None:
        self.size = size
        self.here = local()
        self.barrier = Barrier(size, timeout=SECONDS)
        self.given: list[Any] = [None] * size

    def all_reduce(self, x: Tensor, op: Any = ReduceOp.SUM) -> None:
        given = torch.stack(self._exchanged(x))
        x.copy_(given.sum(0) if op == ReduceOp.SUM else given.amin(0))

    def all_gather_single(self, whole: Tensor, x: Tensor) -> None:
        assert x.is_contiguous()
        whole.copy_(torch.cat(self._exchanged(x)))

    all_gather_into_tensor = all_gather_single

    def _exchanged(self, x: Tensor) -> list[Tensor]:
        self.given[self.here.rank] = x.clone()
        self.barrier.wait()
        given = list(self.given)
        self.barrier.wait()
        return given

    def on_each(self, work: Callable[[Ranks], T]) -> list[T]:
        """What the ranks' threads return, in order; one's error ends the others' waiting."""

        def on_one(rank: int) -> T:
            self.here.rank = rank
            try:
                return work(Ranks(rank, self.size, self.size))
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(on_one, range(self.size)))

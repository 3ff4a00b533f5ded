"""What a runner asks of the device that computes its steps: a queue of work, worked off in order.

All that differs between CUDA and a CPU is here. On CUDA work is a stream's, which the host only
launches; on a CPU it is done at once. Tests have a third device, which does it as late as it can.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from model.kv_cache import CPU

Wait = Callable[[], Tensor]


class Device(Protocol):
    place: torch.device

    def submit(self, work: Callable[[], Tensor]) -> Wait:
        """Queue work; whoever waits gets a copy of its tensor on the host, as it was then."""

    def upload(self, values: Tensor) -> Tensor:
        """A copy on the device of what is on the host, which may be changed afterwards. Only within
        work."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Work once, and make of that what does the same again, with the same tensors, at less cost
        to the host. Only within work; it mustn't ask the device for values."""


class CpuDevice:
    """Fulfils Device."""

    place = CPU

    def submit(self, work: Callable[[], Tensor]) -> Wait:
        values = work().clone()
        return lambda: values

    def upload(self, values: Tensor) -> Tensor:
        return values.clone()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return work


class CudaDevice:
    """Fulfils Device, with one stream, and one pool of memory for all graphs (a graph's memory is
    free for the next one, since they never run side by side)."""

    def __init__(self) -> None:
        self.place = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def submit(self, work: Callable[[], Tensor]) -> Wait:
        self._stream.wait_stream(torch.cuda.default_stream())  # where what comes before was made
        with torch.cuda.stream(self._stream):
            values = work()
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()

        def wait() -> Tensor:
            done.synchronize()
            return host

        return wait

    def upload(self, values: Tensor) -> Tensor:
        """PyTorch keeps pinned memory until the copy is done, and then for the next one."""
        return values.pin_memory().to(self.place, non_blocking=True)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()  # compiles kernels and allocates workspaces, which a graph can't hold
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay

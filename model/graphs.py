"""A step of decodes, captured once for each of some numbers of rows, and then replayed.

A GPU takes a few milliseconds for a small step, and a host about as long to launch its hundreds of
kernels; a graph (https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs) is launched as
one. Where a size isn't captured yet, the step is computed all the same.
"""

from collections.abc import Callable

from model.device import Device

SMALL_SIZES = (1, 2, 4)
SMALL_STEP, LARGE_STEP, LARGE_FROM = 8, 32, 64


class Graphs:
    def __init__(self, step: Callable[[int], None], device: Device, *, most: int) -> None:
        """step: takes the number of rows, and computes the first ones of what is on the device."""
        self.sizes = graph_sizes(most)
        self._step, self._device = step, device
        self._replays: dict[int, Callable[[], None]] = {}
        self._missing = list(self.sizes)

    def size_for(self, num_rows: int) -> int:
        return next(size for size in self.sizes if size >= num_rows)

    def run(self, size: int) -> None:
        if replay := self._replays.get(size):
            replay()
        else:
            self._step(size)

    def take_missing(self) -> int | None:
        """A size to capture next: the largest first, so that its memory does for the others."""
        return self._missing.pop() if self._missing else None

    def capture(self, size: int) -> None:
        """Within a device's work."""
        self._replays[size] = self._device.capture(lambda: self._step(size))


def graph_sizes(most: int) -> list[int]:
    """Rising; the last one is the most."""
    small = range(SMALL_STEP, LARGE_FROM + 1, SMALL_STEP)
    large = range(LARGE_FROM + LARGE_STEP, most + 1, LARGE_STEP)
    return sorted({size for size in (*SMALL_SIZES, *small, *large) if size < most} | {most})

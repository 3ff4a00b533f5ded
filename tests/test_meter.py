"""Progress is told in bytes, whatever the tensors' sizes, with the speed since the start."""

import torch

from model.weights.meter import Meter
from model.weights.stored import StoredTensor


def stored(name: str, num_bytes: int) -> StoredTensor:
    return StoredTensor(
        name, (1,), lambda: torch.zeros(1), "F32", lambda: torch.zeros(1), num_bytes
    )


def test_shares_and_speeds() -> None:
    tensors = [stored("large", 3_000_000_000), stored("small", 1_000_000_000)]
    seconds = iter([10.0, 11.5, 14.0])
    seen: list[tuple[str, float]] = []
    meter = Meter(tensors, lambda *news: seen.append(news), clock=lambda: next(seconds))
    for tensor in tensors:
        meter.take(tensor)
    assert seen == [("large, 2,000 MB/s", 0.75), ("small, 1,000 MB/s", 1.0)]


def test_no_time_at_all_is_no_error() -> None:
    seen: list[tuple[str, float]] = []
    tensor = stored("only", 1000)
    Meter([tensor], lambda *news: seen.append(news), clock=lambda: 0.0).take(tensor)
    assert seen == [("only, 1,000,000 MB/s", 1.0)]

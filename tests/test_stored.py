"""Reading many tensors on several threads: in order, never far ahead, errors where they belong."""

import threading

import pytest
import torch
from torch import Tensor

from model.errors import ModelError
from model.weights.stored import StoredTensor, read_all


def stored(index: int, begun: list[int]) -> StoredTensor:
    def read() -> Tensor:
        begun.append(index)
        if index == 13:
            raise ModelError("tensor 13 can't be read")
        return torch.full((2,), float(index))

    return StoredTensor(str(index), (2,), read, "F32", read, num_bytes=8)


def test_tensors_come_in_order() -> None:
    tensors = [stored(index, []) for index in range(10)]
    assert [int(values[0]) for values in read_all(tensors, threads=3)] == list(range(10))


def test_no_more_is_read_ahead_than_there_are_threads() -> None:
    begun: list[int] = []
    tensors = [stored(index, begun) for index in range(10)]
    for index, _ in enumerate(read_all(tensors, threads=2)):
        assert set(begun) <= set(range(index + 3))


def test_an_error_comes_in_its_tensors_turn() -> None:
    begun: list[int] = []
    reading = read_all([stored(index, begun) for index in range(10, 40)], threads=2)
    assert [int(next(reading)[0]) for _ in range(3)] == [10, 11, 12]
    with pytest.raises(ModelError, match="tensor 13"):
        next(reading)
    assert set(begun) <= set(range(10, 16))


def test_to_stop_early_leaves_no_thread() -> None:
    before = threading.active_count()
    reading = read_all([stored(index, []) for index in range(10)], threads=2)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.errors import ModelError
from model.float8 import FLOAT8
from model.kv_cache import KVCache
from model.place import (
    check_float8,
    check_gpu_memory,
    choose_place,
    gpu_pages,
    left_memory,
    page_bytes,
    profiled_memory,
)
from tests.tiny_llama import CONFIG

GIB = 1 << 30


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """PyTorch's word on a GPU that isn't there."""
    facts: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "set_device": lambda index: None,
        "is_bf16_supported": lambda: True,
        "mem_get_info": lambda: (10 * GIB, 80 * GIB),
        "capability": (8, 9),
        "get_device_capability": lambda place: facts["capability"],
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda: None,
        "synchronize": lambda: None,
        "max_memory_allocated": lambda: 60 * GIB,
        "memory_reserved": lambda: 65 * GIB,
        "OutOfMemoryError": torch.cuda.OutOfMemoryError,
    }
    monkeypatch.setattr("model.place.torch.cuda", SimpleNamespace(**facts))
    return facts


def test_numbers_follow_the_device(monkeypatch: pytest.MonkeyPatch, gpu: dict[str, Any]) -> None:
    def chosen(dtype: str, kv_cache_dtype: str = "auto") -> tuple[object, ...]:
        return tuple(choose_place(dtype=dtype, kv_cache_dtype=kv_cache_dtype, local_rank=1))

    assert chosen("auto") == (torch.device("cuda:1"), torch.bfloat16, torch.bfloat16)
    assert chosen("float16", "fp8") == (torch.device("cuda:1"), torch.float16, FLOAT8)
    monkeypatch.setattr("model.place.torch.cuda.is_bf16_supported", lambda: False)
    assert chosen("auto")[1] == torch.float16
    monkeypatch.setattr("model.place.torch.cuda.is_available", lambda: False)
    assert chosen("auto") == (torch.device("cpu"), torch.float32, torch.float32)


def test_products_in_eight_bits_want_a_new_gpu(gpu: dict[str, Any]) -> None:
    place = choose_place(dtype="auto", kv_cache_dtype="auto")
    check_float8(place)
    gpu["capability"] = (8, 6)
    with pytest.raises(ModelError, match=r"fp8, which wants .* 8.9 .*has 8.6: take int8$"):
        check_float8(place)


def test_each_process_of_a_host_has_a_gpu_to_itself(gpu: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="a GPU for each process, but this host has only 2"):
        choose_place(dtype="auto", kv_cache_dtype="auto", local_rank=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FLOAT8])
def test_a_page_takes_what_it_is_said_to(dtype: torch.dtype) -> None:
    cache = KVCache.allocate(CONFIG, num_pages=3, page_size=16, dtype=dtype)
    tensors = [t for layer in cache.layers for t in (layer.pool_NJPD, layer.scales_NJP)]
    taken = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    assert 3 * page_bytes(CONFIG, page_size=16, cache_dtype=dtype) == taken


def test_the_cache_gets_what_the_largest_step_and_others_leave(gpu: dict[str, Any]) -> None:
    ran = []
    left = profiled_memory(lambda: ran.append(1), cache_bytes=2 * GIB, utilization=0.9)
    # 72 GiB for us; 58 for weights and the step; 5 that PyTorch didn't take
    assert (left, ran) == (72 * GIB - 58 * GIB - 5 * GIB, [1])


def test_a_step_that_finds_no_memory_says_so(gpu: dict[str, Any]) -> None:
    def run() -> None:
        raise torch.cuda.OutOfMemoryError("tried to allocate 3 GiB")

    with pytest.raises(ModelError, match=r"weights and one step: tried to .*lower max_batch_to"):
        profiled_memory(run, cache_bytes=0, utilization=0.9)


def test_what_does_not_fit_is_refused_with_the_numbers(gpu: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"of 0.5 gives 50 of the GPU's 100 bytes.*take 40.* 10:"):
        left_memory(total=100, utilization=0.5, peak=40, others=10)
    with pytest.raises(ModelError, match=rf"take {11 * GIB} bytes.*{80 * GIB} only {10 * GIB}"):
        check_gpu_memory(11 * GIB)
    check_gpu_memory(9 * GIB)
    with pytest.raises(ModelError, match="has 199 bytes, which is no room for two pages of 100"):
        gpu_pages(100, memory=199, most=5)
    assert gpu_pages(100, memory=499, most=5) == 4
    assert gpu_pages(100, memory=999, most=5) == 5

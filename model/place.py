"""On which device a model is computed, in what numbers, and how large its cache is there."""

from collections.abc import Callable

import torch

from model.attention.backend import Place
from model.config import ModelConfig
from model.errors import ModelError
from model.float8 import FLOAT8
from model.footprint import FLOAT32_BYTES, float32_page_bytes
from model.kv_cache import CPU

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FLOAT8_CAPABILITY = (8, 9)
GPU_MEMORY_UTILIZATION = 0.9
"""What of a GPU's memory is taken unless another share is asked for."""


def choose_place(*, dtype: str, kv_cache_dtype: str, local_rank: int = 0) -> Place:
    """auto: on a GPU bfloat16, or float16 where that is all it has; on a CPU float32.
    local_rank: among the processes of this host, each of which has a GPU to itself."""
    device = _take_gpu(local_rank) if has_gpu() else CPU
    numbers = _default_dtype() if dtype == "auto" else DTYPES[dtype]
    return Place(device, numbers, FLOAT8 if kv_cache_dtype == "fp8" else numbers)


def has_gpu() -> bool:
    return torch.cuda.is_available()


def check_float8(place: Place) -> None:
    """Of products; a cache wants nothing."""
    if not multiplies_float8(place.device):
        major, minor = torch.cuda.get_device_capability(place.device)
        raise ModelError(
            f"quantization is fp8, which wants a GPU of compute capability 8.9 or more, but this "
            f"one has {major}.{minor}: take int8"
        )


def multiplies_float8(device: torch.device) -> bool:
    """A CPU does, slowly."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= FLOAT8_CAPABILITY


def _take_gpu(index: int) -> torch.device:
    if index >= torch.cuda.device_count():
        raise ModelError(
            f"tensor_parallel_size wants a GPU for each process, but this host has only "
            f"{torch.cuda.device_count()}: take that or less, or more hosts"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _default_dtype() -> torch.dtype:
    if not has_gpu():
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def page_bytes(config: ModelConfig, *, page_size: int, cache_dtype: torch.dtype) -> int:
    """Of a page in all layers together, with the scales of e4m3."""
    size = float32_page_bytes(config, page_size=page_size) * cache_dtype.itemsize // FLOAT32_BYTES
    num_scales = page_size * config.num_layers * 2 * config.num_kv_heads
    return size + (num_scales * FLOAT32_BYTES if cache_dtype == FLOAT8 else 0)


def gpu_pages(page_bytes: int, *, memory: int, most: int) -> int:
    """How many pages fit `memory` bytes."""
    if memory < 2 * page_bytes:
        raise ModelError(
            f"the KV cache has {memory} bytes, which is no room for two pages of {page_bytes}: "
            "raise kv_cache_memory, or take a smaller model"
        )
    return min(memory // page_bytes, most)


def profiled_memory(run: Callable[[], object], *, cache_bytes: int, utilization: float) -> int:
    """What a GPU has left for the cache beside the largest step, by running one with a cache of so
    many bytes."""
    torch.cuda.reset_peak_memory_stats()
    try:
        run()
    except torch.cuda.OutOfMemoryError as error:
        raise ModelError(
            f"the GPU's memory doesn't hold the weights and one step: {error}: take a smaller "
            "model, or lower max_batch_tokens"
        ) from error
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return left_memory(
        total=total,
        utilization=utilization,
        peak=torch.cuda.max_memory_allocated() - cache_bytes,
        others=total - free - torch.cuda.memory_reserved(),
    )


def left_memory(*, total: int, utilization: float, peak: int, others: int) -> int:
    """peak: of weights and a step; others: what isn't PyTorch's, other programs' as well."""
    left = int(total * utilization) - peak - others
    if left <= 0:
        raise ModelError(
            f"gpu_memory_utilization of {utilization} gives {int(total * utilization)} of the "
            f"GPU's {total} bytes, but weights and the largest step take {peak}, and others "
            f"{others}: take a larger share, a smaller model, or lower max_batch_tokens"
        )
    return left


def check_gpu_memory(needed: int) -> None:
    torch.cuda.empty_cache()  # of what kernels were tried with
    free, total = torch.cuda.mem_get_info()
    if needed > free:
        raise ModelError(
            f"the weights take {needed} bytes of the GPU's memory, but of its {total} only {free} "
            "are free: take a smaller model, or a GPU with more"
        )

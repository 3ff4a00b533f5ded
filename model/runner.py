"""How a runner comes to be: on which device, of which weights, with how large a cache.

All that the engine sees of the model. Knows no requests, text or clock.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from model.attention.backend import Place
from model.batch import Batch, Row, SamplingParams
from model.config import ModelConfig, load_config
from model.device import CudaDevice
from model.device_runner import DeviceRunner
from model.errors import ModelError
from model.footprint import native_page_bytes
from model.host import usable_cores
from model.kernels import PLAIN, Kernels, choose
from model.kv_cache import CPU, KVCache, affordable_pages
from model.native.cache import NativeCache
from model.native.library import builds
from model.native.sampling import NativeSampler
from model.native.transformer import NativeTransformer, is_native, load_native
from model.parallel import ALONE, Ranks, share
from model.place import (
    GPU_MEMORY_UTILIZATION,
    choose_place,
    gpu_pages,
    page_bytes,
    profiled_memory,
)
from model.sampling import Sampler
from model.torch_runner import Cache, Model, TorchRunner
from model.vocabulary import num_tokens
from model.weights.load import Report, load_model

log = logging.getLogger(__name__)

ON_GPUS_ALONE = {
    "int4": "runs on GPUs only; a CPU keeps the 4 bits of a GGUF file that has them (Q4_0 or Q4_1)",
    "fp8": "runs on GPUs of compute capability 8.9 or more only",
}

Progress = Callable[[str, str, float], None]
"""Takes the phase of loading, what of it was just done, and the share of the phase that is done."""


class Loaded(NamedTuple):
    model: Model
    kernels: Kernels
    device: torch.device
    page_size: int
    page_bytes: int
    """What a page of its cache takes."""
    allocate: Callable[..., Cache]


def load_runner(
    path: Path,
    *,
    max_batch_tokens: int,
    max_sequences: int,
    max_model_len: int,
    kv_cache_memory: int,
    threads: int,
    progress: Progress,
    quantization: str = "auto",
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    gpu_memory_utilization: float = 0,
    graphs: bool = True,
    ranks: Ranks = ALONE,
) -> TorchRunner:
    """From a folder or a .gguf file. 0 means automatic for limits, threads and shares.

    Of several ranks, each has a runner of its share of the model, and all must run the same.
    """
    torch.set_num_threads(_num_threads(threads, ranks.num_local))
    config = load_config(path)
    place = choose_place(dtype=dtype, kv_cache_dtype=kv_cache_dtype, local_rank=ranks.local_rank)
    _check_utilization(gpu_memory_utilization, place)
    is_on_gpu = place.device.type == "cuda"
    plain = _plain_reason(dtype=dtype, kv_cache_dtype=kv_cache_dtype, ranks=ranks)
    build = "" if is_on_gpu else _native_build(quantization, config, plain)
    config = _of_context(config, max_model_len)
    report = partial(progress, "weights")
    if build:
        loaded = _load_native(path, config, build=build, report=report)
    else:
        kernels = choose(share(config, ranks), place, quantization)
        loaded = _load_torch(place, path, config, kernels=kernels, report=report, ranks=ranks)
    progress("cache", "", 0.0)
    most = max_sequences * -(-config.context_len // loaded.page_size)
    if is_on_gpu:
        limits = max_batch_tokens, max_sequences
        memory = kv_cache_memory or _gpu_memory(loaded, *limits, utilization=gpu_memory_utilization)
        num_pages = gpu_pages(loaded.page_bytes, memory=memory, most=most + 1)
    else:
        of_all = loaded.page_bytes * ranks.num_local
        num_pages = affordable_pages(of_all, memory=kv_cache_memory, most=most)
    cache = loaded.allocate(loaded.model.config, num_pages=ranks.least(num_pages))
    max_model_len = _affordable_len(config, max_model_len, cache, num_spare=int(is_on_gpu))
    make = partial(_device_runner, ranks, max_sequences, graphs) if is_on_gpu else _cpu_runner
    runner = make(loaded, cache, max_model_len=max_model_len, num_tokens=num_tokens(path))
    progress("warm-up", "", 0.0)
    runner.warm_up()
    return runner


def _of_context(config: ModelConfig, max_model_len: int) -> ModelConfig:
    """Of that length, or its own where that is 0."""
    if max_model_len > config.context_len:
        raise ModelError(
            f"max_model_len is {max_model_len}, but the model's context is {config.context_len} "
            "tokens: take that or less"
        )
    return replace(config, context_len=max_model_len or config.context_len)


def _check_utilization(asked: float, place: Place) -> None:
    if asked and place.device.type != "cuda":
        raise ModelError(
            f"gpu_memory_utilization is {asked}, but there is no GPU that PyTorch can use: take 0, "
            "and kv_cache_memory for a CPU's cache"
        )


def _check_page_size(page_size: int, ranks: Ranks) -> None:
    """Page tables are rank 0's."""
    least, most = ranks.least(page_size), -ranks.least(-page_size)
    if least < most:
        raise ModelError(
            f"tensor_parallel_size is {ranks.size}, but attention takes pages of {least} tokens on "
            f"one of the GPUs and of {most} on another: take GPUs of one kind, and the same "
            "PyTorch everywhere"
        )


def _cpu_runner(loaded: Loaded, cache: Cache, **limits: Any) -> TorchRunner:
    return TorchRunner(loaded.model, cache, kernels=loaded.kernels, **limits)


def _device_runner(
    ranks: Ranks, max_sequences: int, graphs: bool, loaded: Loaded, cache: Cache, **limits: Any
) -> TorchRunner:
    """Ranks capture the same sizes in the same steps, since they launch the same; or none does."""
    return DeviceRunner(
        loaded.model,
        cache,
        CudaDevice(),
        max_sequences=max_sequences,
        captures=bool(ranks.least(graphs and _asks_nothing(loaded))),
        kernels=loaded.kernels,
        **limits,
    )


def _asks_nothing(loaded: Loaded) -> bool:
    """Whether a step of decodes never waits for the device, so that a graph can hold it."""
    is_triton = loaded.kernels.attention_name == "triton_paged"
    draws_there = loaded.kernels.sampler is not Sampler
    return is_triton and draws_there and loaded.model.config.num_experts == 0


def _gpu_memory(
    loaded: Loaded, max_batch_tokens: int, max_sequences: int, *, utilization: float
) -> int:
    """For the cache, by the largest step: as many sequences as may be, each with its share of as
    many tokens as may be."""
    length = max(1, min(max_batch_tokens // max_sequences, loaded.model.config.context_len))
    pages_each = -(-length // loaded.page_size)
    cache = loaded.allocate(loaded.model.config, num_pages=max_sequences * pages_each)
    runner = TorchRunner(
        loaded.model, cache, max_model_len=length, kernels=loaded.kernels, place=loaded.device
    )
    rows = [
        Row([0] * length, 0, range(i * pages_each, (i + 1) * pages_each), SamplingParams(top_p=0.9))
        for i in range(max_sequences)
    ]
    return profiled_memory(
        lambda: runner.run(Batch(rows)),
        cache_bytes=cache.num_pages * loaded.page_bytes,
        utilization=utilization or GPU_MEMORY_UTILIZATION,
    )


def _num_threads(asked: int, num_sharing: int) -> int:
    if asked > usable_cores():
        raise ModelError(
            f"threads is {asked}, but only {usable_cores()} cores can be used: take that or less, "
            "or 0 for all of them"
        )
    return asked or max(1, usable_cores() // num_sharing)


def _plain_reason(*, dtype: str, kv_cache_dtype: str, ranks: Ranks) -> str:
    """Why the C kernels can't be taken, whatever the model; empty if they can."""
    if ranks.size > 1:
        return "runs in one process only on a CPU"
    if dtype != "auto":
        return f"has numbers of its own, and dtype is {dtype}"
    return "" if kv_cache_dtype == "auto" else f"has no cache of kv_cache_dtype {kv_cache_dtype}"


def _native_build(quantization: str, config: ModelConfig, plain_reason: str) -> str:
    """The library that is to compute with weights of 8 bits; empty: PyTorch. On CPUs."""
    if remark := ON_GPUS_ALONE.get(quantization):
        raise ModelError(f"quantization is {quantization}, which {remark}: take int8, auto or none")
    if quantization == "int8" and plain_reason:
        raise ModelError(f"quantization is int8, which {plain_reason}: take auto or none")
    if quantization == "int8" and not is_native(config):
        raise ModelError(
            f"quantization is int8, which runs plain Llama models only, and this {config.family} "
            "model isn't one: take auto or none"
        )
    if quantization == "none" or plain_reason or not is_native(config):
        return ""
    if built := builds():
        return built[0]
    problem = "no native library is there that this processor can run"
    remedy = "install octavo again where there is a C compiler"
    if quantization == "int8":
        raise ModelError(f"quantization is int8, but {problem}: {remedy}, or take auto or none")
    log.warning("%s, so the model runs in float32, several times slower: %s", problem, remedy)
    return ""


def _load_native(path: Path, config: ModelConfig, *, build: str, report: Report) -> Loaded:
    threads = torch.get_num_threads()
    model = load_native(path, config, build=build, threads=threads, report=report)
    return Loaded(
        model,
        native_kernels(model),
        CPU,
        NativeCache.page_size,
        native_page_bytes(config),
        NativeCache,
    )


def native_kernels(model: NativeTransformer) -> Kernels:
    return PLAIN._replace(attention_name="native", sampler=partial(NativeSampler, model))


def _load_torch(
    place: Place,
    path: Path,
    config: ModelConfig,
    *,
    kernels: Kernels,
    report: Report,
    ranks: Ranks,
) -> Loaded:
    page_size = kernels.attention.PAGE_SIZE
    _check_page_size(page_size, ranks)
    device, dtype, cache_dtype = place
    model = load_model(
        path, config, report=report, kernels=kernels, ranks=ranks, device=device, dtype=dtype
    )
    allocate = partial(KVCache.allocate, page_size=page_size, dtype=cache_dtype, device=device)
    size = page_bytes(model.config, page_size=page_size, cache_dtype=cache_dtype)
    return Loaded(model, kernels, device, page_size, size, allocate)


def _affordable_len(
    config: ModelConfig, max_model_len: int, cache: Cache, *, num_spare: int
) -> int:
    """What was asked for or is an error; else the model's context, as far as the cache holds it."""
    held = (cache.num_pages - num_spare) * cache.page_size
    if max_model_len > held:
        raise ModelError(
            f"max_model_len is {max_model_len}, but the KV cache holds {held} tokens: take that or "
            "less, or raise kv_cache_memory"
        )
    return max_model_len or min(config.context_len, held)

"""A load through the engine in this process, as it goes there in the server, but without HTTP."""

from time import perf_counter

import torch

from model.attention import triton_paged
from model.attention.backend import Place
from model.device import Device
from model.device_runner import DeviceRunner
from model.kernels import Kernels
from model.kv_cache import KVCache
from model.rope import inverse_frequencies
from model.transformer import Transformer
from model.triton import self_test
from scripts.gpu.loads import Load, Scale, Shape, Way
from scripts.gpu.report import Measured
from service.engine.engine import Engine
from service.engine.messages import Request

KERNELS = Kernels("triton_paged", triton_paged, self_test.fused, self_test.TritonSampler)
PAGE_SIZE = 16


def random_model(shape: Shape, place: Place) -> Transformer:
    torch.manual_seed(0)
    with torch.device(place.device):
        model = Transformer(shape.config, KERNELS).to(place.dtype)
    model.frequency = inverse_frequencies(shape.config).to(place.device)  # in float32
    return model.requires_grad_(requires_grad=False)


def measure(
    model: Transformer, place: Place, device: Device, load: Load, way: Way, scale: Scale
) -> Measured:
    runner = _runner(model, place, device, load, captures=way.graphs)
    engine = Engine(
        runner,
        max_batch_tokens=scale.max_batch_tokens,
        max_sequences=len(load.requests),
        overlap=way.overlap,
    )
    _served(engine, load.warming)  # compiles kernels, and captures graphs
    measured = _served(engine, load.requests)
    engine.check_integrity()
    assert measured.num_tokens == load.num_tokens
    return measured


def _runner(
    model: Transformer, place: Place, device: Device, load: Load, *, captures: bool
) -> DeviceRunner:
    """With room for all requests at once."""
    lens = [len(request.prompt_ids) + request.max_tokens for request in load.requests]
    cache = KVCache.allocate(
        model.config,
        num_pages=sum(-(-length // PAGE_SIZE) for length in lens) + 1,
        page_size=PAGE_SIZE,
        dtype=place.cache_dtype,
        device=place.device,
    )
    return DeviceRunner(
        model,
        cache,
        device,
        max_model_len=load.longest,
        max_sequences=len(load.requests),
        captures=captures,
        kernels=KERNELS,
    )


def _served(engine: Engine, requests: list[Request]) -> Measured:
    for request in requests:
        engine.add(request)
    num_tokens, num_steps, waited = 0, 0, 0.0
    started = perf_counter()
    while engine.has_work:
        num_tokens += sum(len(event.token_ids) for event in engine.step())
        if engine.record:
            num_steps += 1
            waited += engine.record.phase_seconds["wait"]
    seconds = perf_counter() - started
    return Measured(num_tokens, seconds, num_steps, host_seconds=seconds - waited)

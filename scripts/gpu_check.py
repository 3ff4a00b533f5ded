"""Whether octavo computes right on this machine's GPU, and how fast: one command, a Markdown table.

    .venv/bin/python scripts/gpu_check.py [--dry-run] >gpu.md

Downloads nothing: models are of random weights in the shapes of known ones. First each kernel is
held against its reference; then requests go through the engine as they do in the server, but
without HTTP, with graphs and overlap on and off:

    protocol   nano-vllm's: 256 requests, 100 to 1,024 tokens in and out each, seed 0
    decode     as many sequences as said, 512 tokens each after a prompt of 16
    prefill    prompts as long as said, one token each

"roofline" is the share of the time in which the device could have read what the steps must read at
the least: the weights once a step, and the keys and values of each sequence's context. The device's
bandwidth is measured by copying. "host" is what a step takes of the host beside waiting.

--dry-run goes the same way on a CPU with tiny sizes, kernels interpreted; its figures mean nothing.
"""

import argparse
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import torch

from model.attention import self_test as attention_test, triton_paged
from model.attention.backend import Place
from model.batch import Batch, Collect, SamplingParams, StepOutput
from model.config import ModelConfig
from model.device import CpuDevice, CudaDevice, Device
from model.device_runner import DeviceRunner
from model.graphs import graph_sizes
from model.kernels import Kernels
from model.kv_cache import KVCache
from model.place import page_bytes
from model.rope import inverse_frequencies
from model.transformer import Transformer
from model.triton import self_test as steps_test
from model.weights.names import num_parameters
from service.engine.engine import Engine
from service.engine.messages import Request

PAGE_SIZE = 16
QWEN3 = ModelConfig(
    vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_layers=28, num_heads=16,
    num_kv_heads=8, head_dim=128, context_len=4096, norm_eps=1e-6, rope_theta=1e6,
    rope_scaling=None, tied_head=True, qk_norm="head",
)  # fmt: skip
SMOLLM2 = ModelConfig(
    vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9,
    num_kv_heads=3, head_dim=64, context_len=4096, norm_eps=1e-5, rope_theta=1e5,
    rope_scaling=None, tied_head=True,
)  # fmt: skip
TINY = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_layers": 1}
TINY |= {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16}


class Scale(NamedTuple):
    num_requests: int
    lengths: tuple[int, int]
    num_decodes: tuple[int, ...]
    decode_len: int
    prompt_lens: tuple[int, ...]
    max_batch_tokens: int


FULL = Scale(256, (100, 1024), (1, 8, 64, 256), 512, (128, 1024, 4000), 16_384)
DRY = Scale(2, (2, 3), (1,), 3, (3,), 32)


class Load(NamedTuple):
    name: str
    requests: list[Request]


class Timed:
    """A runner that counts what its steps must read, and how long it was waited for."""

    def __init__(self, runner: DeviceRunner, config: ModelConfig, place: Place) -> None:
        self.page_size, self.num_pages = runner.page_size, runner.num_pages
        self.vocab_size, self.max_model_len = runner.vocab_size, runner.max_model_len
        self.device, self.attention = runner.device, runner.attention
        self.num_steps, self.num_bytes, self.waited = 0, 0, 0.0
        self._runner = runner
        self._weight_bytes = num_parameters(config) * place.dtype.itemsize
        self._token_bytes = page_bytes(config, page_size=1, cache_dtype=place.cache_dtype)

    def run(self, batch: Batch) -> StepOutput:
        return self._launched(batch)()

    def _launched(self, batch: Batch) -> Collect:
        self.num_steps += 1
        context_len = sum(row.start + row.num_tokens for row in batch.rows)
        self.num_bytes += self._weight_bytes + context_len * self._token_bytes
        collect = self._runner.launch(batch)

        def timed() -> StepOutput:
            started = perf_counter()
            output = collect()
            self.waited += perf_counter() - started
            return output

        return timed


class Overlapping(Timed):
    def launch(self, batch: Batch) -> Collect:
        return self._launched(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, on a CPU")
    is_dry = parser.parse_args().dry_run
    if not is_dry and not torch.cuda.is_available():
        sys.exit("gpu_check: PyTorch finds no GPU that it can use; --dry-run needs none")
    scale = DRY if is_dry else FULL
    device: Device = CpuDevice() if is_dry else CudaDevice()
    dtype = torch.float32 if is_dry else torch.bfloat16
    place = Place(device.place, dtype, dtype)
    name = (
        "a CPU, interpreted: no figure means anything" if is_dry else torch.cuda.get_device_name()
    )
    bandwidth = measured_bandwidth(device.place, num_bytes=1 << (20 if is_dry else 32))
    print(f"## octavo on {name}\n\nPyTorch {torch.__version__}, {dtype}, ", end="")
    print(f"{bandwidth / 1e9:.0f} GB/s by copying\n")
    models = {"Qwen3-0.6B": QWEN3, "SmolLM2-135M": SMOLLM2}
    if is_dry:
        models = {f"{model}, tiny": replace(QWEN3, **TINY) for model in list(models)[:1]}
    num_wrong = sum(check_kernels(*model, place) for model in models.items())
    print("\n| model | load | graphs | overlap | tokens/s | roofline | host µs a step |")
    print("|---|---|---|---|---|---|---|")
    for model_name, config in models.items():
        measure(model_name, config, place, device, scale, bandwidth)
    sys.exit(1 if num_wrong else 0)


def check_kernels(name: str, config: ModelConfig, place: Place) -> int:
    """How many of them are wrong."""
    checks: dict[str, Callable[[], None]] = {
        "attention": lambda: attention_test.check(triton_paged, config, place),
        "norms, rotation, cache, gates, draws": lambda: steps_test.check(config, place),
    }
    num_wrong = 0
    for kernels, check in checks.items():
        try:
            check()
            print(f"- {name}, {kernels}: as the reference")
        except Exception as error:
            num_wrong += 1
            print(f"- {name}, {kernels}: **WRONG**: {error}")
    return num_wrong


def measure(
    name: str, config: ModelConfig, place: Place, device: Device, scale: Scale, bandwidth: float
) -> None:
    kernels = Kernels("triton_paged", triton_paged, steps_test.fused, steps_test.TritonSampler)
    torch.manual_seed(0)
    with torch.device(place.device):
        model = Transformer(config, kernels).to(place.dtype).requires_grad_(requires_grad=False)
    model.frequency = inverse_frequencies(config).to(place.device)  # in float32
    for load in loads(config, scale):
        for graphs, overlap in ((True, True), (True, False), (False, True), (False, False)):
            runner = make_runner(model, kernels, place, device, load.requests, captures=graphs)
            timed = (Overlapping if overlap else Timed)(runner, config, place)
            for _ in graph_sizes(len(load.requests)):
                runner.warm_up()  # compiles kernels, and captures a size
            seconds = time_to_serve(timed, load.requests, scale)
            num_tokens = sum(request.max_tokens for request in load.requests)
            share = timed.num_bytes / bandwidth / seconds
            host = 1e6 * (seconds - timed.waited) / timed.num_steps
            ways = f"{'on' if graphs else 'off'} | {'on' if overlap else 'off'}"
            print(
                f"| {name} | {load.name} | {ways} | {num_tokens / seconds:,.0f} | {share:.0%} "
                f"| {host:,.0f} |",
                flush=True,
            )


def loads(config: ModelConfig, scale: Scale) -> Iterator[Load]:
    draw = random.Random(0)

    def request(number: int, prompt_len: int, max_tokens: int) -> Request:
        ids = [draw.randrange(config.vocab_size) for _ in range(prompt_len)]
        sampling = SamplingParams(temperature=0.6, seed=number)
        return Request(id=str(number), prompt_ids=ids, max_tokens=max_tokens, sampling=sampling)

    lengths = [
        (draw.randint(*scale.lengths), draw.randint(*scale.lengths)) for _ in range(scale[0])
    ]
    yield Load(f"protocol, {scale[0]}", [request(i, *each) for i, each in enumerate(lengths)])
    for num in scale.num_decodes:
        yield Load(f"decode, {num}", [request(i, 16, scale.decode_len) for i in range(num)])
    for length in scale.prompt_lens:
        yield Load(f"prefill, {length}", [request(i, length, 1) for i in range(4)])


def make_runner(
    model: Transformer,
    kernels: Kernels,
    place: Place,
    device: Device,
    requests: list[Request],
    *,
    captures: bool,
) -> DeviceRunner:
    """With room for all requests at once."""
    lens = [len(request.prompt_ids) + request.max_tokens for request in requests]
    num_pages = sum(-(-length // PAGE_SIZE) for length in lens) + 1
    cache = KVCache.allocate(
        model.config,
        num_pages=num_pages,
        page_size=PAGE_SIZE,
        dtype=place.cache_dtype,
        device=place.device,
    )
    return DeviceRunner(
        model,
        cache,
        device,
        max_model_len=max(lens),
        max_sequences=len(requests),
        captures=captures,
        kernels=kernels,
    )


def time_to_serve(runner: Timed, requests: list[Request], scale: Scale) -> float:
    engine = Engine(runner, max_batch_tokens=scale.max_batch_tokens, max_sequences=len(requests))
    for request in requests:
        engine.add(request)
    started = perf_counter()
    num_tokens = 0
    while engine.has_work:
        num_tokens += sum(len(event.token_ids) for event in engine.step())
    seconds = perf_counter() - started
    assert num_tokens == sum(request.max_tokens for request in requests)
    engine.check_integrity()
    return seconds


def measured_bandwidth(device: torch.device, *, num_bytes: int) -> float:
    """Bytes a second, read and written."""
    source = torch.zeros(num_bytes // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(5):
        started = perf_counter()
        target.copy_(source)
        target[-1].item()  # waits for it
        seconds.append(perf_counter() - started)
    return num_bytes / min(seconds)


if __name__ == "__main__":
    main()

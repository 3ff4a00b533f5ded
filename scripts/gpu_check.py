"""Whether octavo computes right on this machine's GPU, and how fast: one command, a Markdown table.

    .venv/bin/python scripts/gpu_check.py [--dry-run] >gpu.md

Downloads nothing: models are of random weights in the shapes of known ones. First each kernel is
held against its reference; then requests are served, with graphs and overlap on and off:

    protocol            nano-vllm's: 256 requests, 100 to 1,024 tokens in and out each, seed 0
    protocol over HTTP  the same, streamed by an `octavo serve` that has these weights in a folder
    decode              as many sequences as said, 512 tokens each after a prompt of 16
    prefill             prompts as long as said, one token each

What doesn't go over HTTP goes through the engine in this process. "roofline" is the share of the
time in which the device could have read what the steps must read at the least: the weights once a
step, and the keys and values of each token's context. The device's bandwidth is measured by
copying. "host" is what a step takes of the engine's process beside waiting for the device.

In the end, what was reached is held against the project's targets for an H200. Ends with 1 if a
kernel is wrong, or a row failed; a target that is missed changes nothing.

--dry-run goes the same way on a CPU with tiny sizes, kernels interpreted; its figures mean nothing.
"""

import argparse
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

if "--dry-run" in sys.argv:  # before triton is imported, and for the server as well
    os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch

from model import linear_self_test
from model.attention import self_test as attention_test, triton_paged
from model.attention.backend import Place
from model.device import CpuDevice, CudaDevice, Device
from model.place import multiplies_float8
from model.quantized_linear import KINDS
from model.transformer import Transformer
from model.triton import few_bits, self_test as steps_test
from scripts.gpu import offline, report, server
from scripts.gpu.folder import write_folder
from scripts.gpu.loads import DRY, FULL, WAYS, Load, Scale, Shape, Way, other_loads, protocol
from scripts.gpu.report import HTTP, Measured, Row, head


class Bench(NamedTuple):
    scale: Scale
    device: Device
    place: Place
    bandwidth: float
    """Bytes a second."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, on a CPU")
    is_dry = parser.parse_args().dry_run
    if not is_dry and not torch.cuda.is_available():
        sys.exit("gpu_check: PyTorch finds no GPU that it can use; --dry-run needs none")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    bench = make_bench(is_dry=is_dry)
    num_wrong = sum(check_kernels(shape, bench.place) for shape in bench.scale.shapes)
    print(f"\n{head(report.COLUMNS)}")
    rows = []
    for row in measure_all(bench):
        print(row, flush=True)
        rows.append(row)
    over_http = [row for row in rows if row.load.endswith(HTTP) and row.measured]
    print(f"\n{head(report.HTTP_COLUMNS)}", *map(report.http_line, over_http), sep="\n")
    targets = report.targets([shape.name for shape in bench.scale.shapes], rows[0].load)
    lines = (target.line(rows, is_dry=is_dry) for target in targets)
    print(f"\n{head(report.TARGET_COLUMNS)}", *lines, sep="\n")
    num_failed = sum(row.measured is None for row in rows)
    sys.exit(1 if num_wrong + num_failed else 0)


def make_bench(*, is_dry: bool) -> Bench:
    """Says what it is."""
    device: Device = CpuDevice() if is_dry else CudaDevice()
    dtype = torch.float32 if is_dry else torch.bfloat16
    bandwidth = measured_bandwidth(device.place, num_bytes=1 << (20 if is_dry else 32))
    nothing = "a CPU, interpreted: no figure means anything"
    print(f"## octavo on {nothing if is_dry else torch.cuda.get_device_name()}\n")
    print(f"PyTorch {torch.__version__}, {dtype}, {bandwidth / 1e9:.0f} GB/s by copying\n")
    return Bench(DRY if is_dry else FULL, device, Place(device.place, dtype, dtype), bandwidth)


def check_kernels(shape: Shape, place: Place) -> int:
    """How many of them are wrong."""
    checks: dict[str, Callable[[], None]] = {
        "attention": lambda: attention_test.check(triton_paged, shape.config, place),
        "norms, rotation, cache, gates, draws": lambda: steps_test.check(shape.config, place),
    }
    for name in KINDS:
        if name != "fp8" or multiplies_float8(place.device):
            checks[f"products with {name}"] = partial(
                linear_self_test.check, name, few_bits, shape.config, place
            )
    num_wrong = 0
    for kernels, check in checks.items():
        try:
            check()
            print(f"- {shape.name}, {kernels}: as the reference")
        except Exception as error:
            num_wrong += 1
            print(f"- {shape.name}, {kernels}: **WRONG**: {error}")
    return num_wrong


def measure_all(bench: Bench) -> Iterator[Row]:
    """The first rows are what matters most, should time run out."""
    load = protocol(bench.scale)
    for shape in bench.scale.shapes:
        model = offline.random_model(shape, bench.place)
        yield from measure_offline(shape, model, load, WAYS, bench)
        if shape == bench.scale.shapes[0]:
            yield from measure_over_http(shape, model, load, bench)
        for other in other_loads(bench.scale):
            yield from measure_offline(shape, model, other, bench.scale.ways, bench)


def measure_offline(
    shape: Shape, model: Transformer, load: Load, ways: Iterable[Way], bench: Bench
) -> Iterator[Row]:
    scale, device, place, _ = bench
    for way in ways:
        measure = partial(offline.measure, model, place, device, load, way, scale)
        yield attempt(measure, load.name, shape, load, way, bench)


def measure_over_http(shape: Shape, model: Transformer, load: Load, bench: Bench) -> Iterator[Row]:
    with TemporaryDirectory(prefix="octavo-gpu-check-") as path:
        write_folder(Path(path), shape, model)
        gc.collect()
        if bench.place.device.type == "cuda":
            torch.cuda.empty_cache()  # the server finds what it may take
        for way in bench.scale.ways:
            measure = partial(server.measure, Path(path), load, way, bench.scale)
            yield attempt(measure, load.name + HTTP, shape, load, way, bench)


def attempt(
    measure: Callable[[], Measured], name: str, shape: Shape, load: Load, way: Way, bench: Bench
) -> Row:
    """What fails is told, and keeps nothing else from being measured."""
    try:
        measured = measure()
    except Exception as error:
        print(f"gpu_check: {name}, {way}: {error!r}", file=sys.stderr)
        return Row(shape.name, name, way, None)
    return Row(shape.name, name, way, measured, roofline(shape, load, measured, bench))


def roofline(shape: Shape, load: Load, measured: Measured, bench: Bench) -> float:
    dtype = bench.place.cache_dtype
    num_bytes = load.num_bytes(shape.config, dtype, num_steps=measured.num_steps)
    return num_bytes / bench.bandwidth / measured.seconds


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

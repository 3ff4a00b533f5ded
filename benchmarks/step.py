"""What a step takes, which of its phases take it, and how far that is from the machine's floor.

    .venv/bin/octavo bench step [MODEL] [--batch 1,4,16,32] [--context 128,512] [--prompt 64,512]

For decodes of several sequences at several contexts, and for prompts: the fastest run's
microseconds by phase, of which the machine gave the least to others. The floor of a step is the
time in which the machine, by a measurement of its own, reads the weights once; many sequences and
prompts are held up by arithmetic instead, so the multiplications a second stand beside it.
"""

import argparse
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from model.batch import Batch, Row, SamplingParams
from model.config import ModelConfig, load_config
from model.host import usable_cores
from model.native.cache import NativeCache
from model.native.library import PAGE_SIZE, PHASES, builds
from model.native.transformer import NativeTransformer, load_native
from model.runner import native_kernels
from model.torch_runner import TorchRunner
from model.weights.names import num_parameters
from service import hub
from service.cli import DEFAULT_MODEL

HOST_PHASES = ("pack", "sample")
READ_BYTES = 256 << 20
"""More than most caches hold."""


class Shape(NamedTuple):
    num_rows: int
    num_tokens: int
    """Of each row."""
    context_len: int
    """In the cache already."""


def main() -> None:
    arguments = parse_arguments()
    path = Path(hub.resolve(arguments.model))
    config = load_config(path)
    torch.set_num_threads(arguments.threads)
    model = load_native(
        path,
        config,
        build=arguments.build,
        threads=arguments.threads,
        report=lambda name, fraction: None,
    )
    shapes = [
        *(Shape(rows, 1, context) for context in arguments.context for rows in arguments.batch),
        *(Shape(1, length, 0) for length in arguments.prompt),
    ]
    most_pages = max(shape.num_rows * pages_each(shape) for shape in shapes)
    cache = NativeCache(config, num_pages=most_pages)
    runner = TorchRunner(
        model, cache, max_model_len=config.context_len, kernels=native_kernels(model)
    )
    floor = model.bytes_read / read_rate()
    print(f"{arguments.build}, {arguments.threads} threads; floor {1e6 * floor:.0f} us")
    phases = " ".join(f"{phase:>8}" for phase in (*PHASES, *HOST_PHASES))
    print(f"rows x tokens @ context   total us {phases}  floor GMAC/s")
    for shape in shapes:
        show(shape, config, fastest(model, runner, shape, runs=arguments.runs), floor)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="octavo bench step", description="Phases of a step of the native model."
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    for name, default, help in (
        ("batch", "1,4,16,32", "sequences that decode"),
        ("context", "128,512", "tokens of each in the cache"),
        ("prompt", "64,512", "tokens of a prompt"),
    ):
        parser.add_argument(f"--{name}", type=numbers, default=default, help=help)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--build", choices=builds(), default=builds()[0])
    parser.add_argument("--runs", type=int, default=30)
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def read_rate() -> float:
    """Bytes a second, by as many threads as compute."""
    content = torch.zeros(READ_BYTES // 8, dtype=torch.int64)
    seconds = []
    for _ in range(10):
        started = perf_counter()
        content.sum()
        seconds.append(perf_counter() - started)
    return READ_BYTES / min(seconds)


def fastest(
    model: NativeTransformer, runner: TorchRunner, shape: Shape, *, runs: int
) -> dict[str, float]:
    """Its seconds by phase, and in total."""
    batch = Batch(rows_of(shape))
    timings = []
    for _ in range(runs):
        model.take_seconds(timed=True)
        started = perf_counter()
        host = runner.run(batch).phase_seconds
        total = perf_counter() - started
        timings.append({**host, **model.take_seconds(timed=False), "total": total})
    return min(timings, key=lambda timing: timing["total"])


def rows_of(shape: Shape) -> list[Row]:
    ids = [1 + i % 1000 for i in range(shape.num_tokens)]
    pages = pages_each(shape)
    return [
        Row(ids, shape.context_len, range(row * pages, (row + 1) * pages), SamplingParams())
        for row in range(shape.num_rows)
    ]


def pages_each(shape: Shape) -> int:
    return -(-(shape.context_len + shape.num_tokens) // PAGE_SIZE)


def show(shape: Shape, config: ModelConfig, seconds: dict[str, float], floor: float) -> None:
    head = config.vocab_size * config.hidden_size
    layers = num_parameters(config) - head * (1 if config.tied_head else 2)
    products = shape.num_rows * shape.num_tokens * layers + shape.num_rows * head
    name = f"{shape.num_rows:4d} x {shape.num_tokens:3d} @ {shape.context_len:3d}"
    phases = " ".join(f"{seconds[phase] * 1e6:8.0f}" for phase in (*PHASES, *HOST_PHASES))
    total = seconds["total"]
    print(
        f"{name:24s} {total * 1e6:9.0f} {phases} {floor / total:6.0%} {products / total / 1e9:6.1f}"
    )


if __name__ == "__main__":
    main()

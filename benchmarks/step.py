"""What a step of the native model takes, and which of its phases take it.

    .venv/bin/python -m benchmarks.step [MODEL] [--threads 2] [--build avx2] [--runs 30]

For decodes of several sequences at several contexts, and for a prompt: the fastest run's
microseconds by phase, of which the machine gave the least to others; and beside them the rates that
they come to, of weights read and of multiplications done.
"""

import argparse
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from model.batch import Row
from model.config import ModelConfig, load_config
from model.host import usable_cores
from model.native.cache import NativeCache
from model.native.library import PAGE_SIZE, PHASES, builds
from model.native.transformer import NativeTransformer, load_native
from model.packing import pack
from model.weights.names import num_parameters
from service import hub
from service.cli import DEFAULT_MODEL


class Shape(NamedTuple):
    num_rows: int
    num_tokens: int
    """Of each row."""
    context_len: int
    """In the cache already."""


DECODES = [Shape(rows, 1, context) for context in (128, 512) for rows in (1, 4, 16, 32)]
PROMPTS = [Shape(1, 64, 0), Shape(1, 512, 0), Shape(8, 64, 0)]
MOST_PAGES = 32 * (512 // PAGE_SIZE + 1)


def main() -> None:
    arguments = parse_arguments()
    path = Path(hub.resolve(arguments.model))
    config = load_config(path)
    model = load_native(
        path,
        config,
        build=arguments.build,
        threads=arguments.threads,
        report=lambda name, fraction: None,
    )
    cache = NativeCache(config, num_pages=MOST_PAGES)
    print(
        "rows x tokens @ context   total us", *(f"{phase:>8}" for phase in PHASES), " GB/s GMAC/s"
    )
    for shape in DECODES + PROMPTS:
        show(shape, config, fastest(model, cache, shape, runs=arguments.runs))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Phases of a step of the native model.")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--build", choices=builds(), default=builds()[0])
    parser.add_argument("--runs", type=int, default=30)
    return parser.parse_args()


@torch.inference_mode()
def fastest(
    model: NativeTransformer, cache: NativeCache, shape: Shape, *, runs: int
) -> dict[str, float]:
    """Its seconds by phase, and in total."""
    batch = pack(rows_of(shape), page_size=PAGE_SIZE)
    last = batch.query_lens_S.cumsum(0) - 1
    timings = []
    for _ in range(runs):
        model.take_seconds(timed=True)
        started = perf_counter()
        model.logits(model.hidden(batch, cache)[last])
        total = perf_counter() - started
        timings.append(model.take_seconds(timed=False) | {"total": total})
    return min(timings, key=lambda timing: timing["total"])


def rows_of(shape: Shape) -> list[Row]:
    pages = -(-(shape.context_len + shape.num_tokens) // PAGE_SIZE)
    ids = [1 + i % 1000 for i in range(shape.num_tokens)]
    return [
        Row(ids, shape.context_len, range(row * pages, (row + 1) * pages), None)
        for row in range(shape.num_rows)
    ]


def show(shape: Shape, config: ModelConfig, seconds: dict[str, float]) -> None:
    head = config.vocab_size * config.hidden_size
    layers = num_parameters(config) - head * (1 if config.tied_head else 2)
    products = shape.num_rows * shape.num_tokens * layers + shape.num_rows * head
    name = f"{shape.num_rows:4d} x {shape.num_tokens:3d} @ {shape.context_len:3d}"
    phases = " ".join(f"{seconds[phase] * 1e6:8.0f}" for phase in PHASES)
    rates = (
        f"{(layers + head) / seconds['total'] / 1e9:5.1f} {products / seconds['total'] / 1e9:6.1f}"
    )
    print(f"{name:24s} {seconds['total'] * 1e6:9.0f} {phases} {rates}")


if __name__ == "__main__":
    main()

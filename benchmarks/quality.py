"""What the native model's rounding costs: perplexity and agreement with float32, on the same text.

    .venv/bin/python -m benchmarks.quality [MODEL] [--windows 24] [--build avx2]

The text is this project's documents and the standard library's source, cut into windows of 256
tokens; each token of a window is predicted from those before it. Prints both perplexities, the
share of positions whose most likely token is the same, and the logits' differences.
"""

import argparse
import math
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from model.batch import Row
from model.config import load_config
from model.host import usable_cores
from model.kv_cache import KVCache
from model.native.cache import NativeCache
from model.native.library import PAGE_SIZE, builds
from model.native.transformer import load_native
from model.packing import pack
from model.torch_runner import Cache, Model
from model.weights.load import load_model
from service import hub
from service.cli import DEFAULT_MODEL
from service.text.tokenizer import Tokenizer

WINDOW = 256
NUM_PAGES = WINDOW // PAGE_SIZE
ROOT = Path(__file__).parent.parent
LIBRARY = Path(sysconfig.get_path("stdlib"))
SOURCES = ["argparse.py", "asyncio/tasks.py", "dataclasses.py", "datetime.py", "difflib.py"]
TAKEN_CHARACTERS = 8000
"""Of each text, so that many kinds count."""


class Verdict(NamedTuple):
    surprise: Tensor
    """Of both, the sum over a window's tokens of -log(probability)."""
    num_agreeing: int
    largest_difference: float


def main() -> None:
    arguments = parse_arguments()
    path = Path(hub.resolve(arguments.model))
    config = load_config(path)
    torch.set_num_threads(arguments.threads)
    exact = load_model(path, config, report=lambda name, fraction: None)
    native = load_native(
        path,
        config,
        build=arguments.build,
        threads=arguments.threads,
        report=lambda name, fraction: None,
    )
    exact_cache = KVCache.allocate(
        config, num_pages=NUM_PAGES, page_size=PAGE_SIZE, dtype=torch.float32
    )
    native_cache = NativeCache(config, num_pages=NUM_PAGES)
    verdicts = [
        compare(logits(exact, exact_cache, ids), logits(native, native_cache, ids), ids)
        for ids in windows(Tokenizer.load(path), arguments.windows)
    ]
    show(verdicts)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Quality of the native model.")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--build", choices=builds(), default=builds()[0])
    return parser.parse_args()


def windows(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """By turns from each text."""
    texts = [iter(cut(tokenizer.encode(text))) for text in all_texts()]
    rounds = zip(*texts, strict=False)
    return [ids for taken in rounds for ids in taken][:count]


def all_texts() -> Iterator[str]:
    documents = [ROOT / "README.md", ROOT / "docs/architecture.md", ROOT / "LICENSE"]
    for path in [*documents, *(LIBRARY / source for source in SOURCES)]:
        yield path.read_text()[:TAKEN_CHARACTERS]


def cut(ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(ids) - WINDOW + 1, WINDOW):
        yield ids[start : start + WINDOW]


@torch.inference_mode()
def logits(model: Model, cache: Cache, ids: list[int]) -> Tensor:
    batch = pack([Row(ids, 0, range(NUM_PAGES), None)], page_size=PAGE_SIZE)
    return model.logits(model.hidden(batch, cache))[:-1]


def compare(exact: Tensor, native: Tensor, ids: list[int]) -> Verdict:
    following = torch.tensor(ids[1:])[:, None]
    surprises = [-x.log_softmax(-1).gather(-1, following).sum() for x in (exact, native)]
    return Verdict(
        torch.stack(surprises),
        int((exact.argmax(-1) == native.argmax(-1)).sum()),
        float((exact - native).abs().max()),
    )


def show(verdicts: list[Verdict]) -> None:
    num_tokens = len(verdicts) * (WINDOW - 1)
    per_token = torch.stack([verdict.surprise for verdict in verdicts]).sum(0) / num_tokens
    exact, native = (math.exp(value) for value in per_token.tolist())
    agreeing = sum(verdict.num_agreeing for verdict in verdicts) / num_tokens
    print(f"{num_tokens} tokens")
    print(f"perplexity: float32 {exact:.3f}, native {native:.3f} ({native / exact - 1:+.2%})")
    print(f"most likely token: the same at {agreeing:.2%} of positions")
    print(f"largest difference of a logit: {max(v.largest_difference for v in verdicts):.2f}")


if __name__ == "__main__":
    main()

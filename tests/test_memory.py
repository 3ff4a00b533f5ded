"""What loading takes in memory beyond the weights, at its peak, and how C gives back the rest."""

import subprocess
import sys
from ctypes import CDLL
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from model.weights import memory
from tests.families import KINDS

MOST_BYTES = 100_000_000
"""Of 300 MB that may be; a second copy of the weights would be over 400 MB."""
SIZES = {
    **{"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6},
    **{"num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True},
}
LOADING = """
import sys
from functools import partial
from pathlib import Path

import torch

from model.config import load_config
from model.footprint import float32_weight_bytes, native_weight_bytes
from model.native.library import builds
from model.native.transformer import load_native
from model.weights.load import load_model

def in_use():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

torch.set_num_threads(4)
folder = Path(sys.argv[1])
config = load_config(folder)
load, weight_bytes = load_model, float32_weight_bytes(config)
if sys.argv[2] == "native":
    load = partial(load_native, build=builds()[0], threads=4)
    weight_bytes = native_weight_bytes(config)
before, seen = in_use(), []
model = load(folder, config, report=lambda *news: seen.append(in_use()))
assert in_use() - before > 0.5 * weight_bytes
print(max([*seen, in_use()]) - before - weight_bytes)
"""
"""Prints how far the peak is above the weights. Files that are mapped are no memory of ours."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of zeros, in bfloat16."""
    path = tmp_path_factory.mktemp("model")
    config = KINDS["Llama"].describe(**SIZES)
    config.save_pretrained(path)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    zeros = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(zeros, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.slow
@pytest.mark.parametrize("way", ["torch", "native"])
def test_the_peak_at_load_is_little_above_the_weights(folder: Path, way: str) -> None:
    command = [sys.executable, "-c", LOADING, str(folder), way]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(result.stdout) < MOST_BYTES


class Libc:
    def __init__(self) -> None:
        self.set: list[tuple[int, int]] = []

    def mallopt(self, name: int, num_bytes: int) -> None:
        self.set.append((name, num_bytes))


def test_thresholds_are_put_back_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    libc: Any = Libc()
    libc.gnu_get_libc_version = None
    monkeypatch.setattr(memory, "CDLL", lambda name: libc)
    with pytest.raises(KeyError), memory.returned_when_freed():
        raise KeyError
    assert libc.set == [*memory.LOADING.items(), *memory.SERVING.items()]


def test_other_c_libraries_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = Libc()
    monkeypatch.setattr(memory, "CDLL", lambda name: libc)
    with memory.returned_when_freed():
        pass
    assert libc.set == []


def test_this_library_takes_the_thresholds() -> None:
    libc = CDLL(None)
    values = [*memory.LOADING.items(), *memory.SERVING.items()]
    assert not hasattr(libc, "gnu_get_libc_version") or all(libc.mallopt(*v) for v in values)

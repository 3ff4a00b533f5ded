"""A whole model in Triton's kernels against PyTorch's: the same tokens, at each step."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from model.attention import triton_paged
from model.batch import Batch, Row, SamplingParams
from model.kernels import PLAIN, Kernels
from model.kv_cache import KVCache
from model.torch_runner import TorchRunner
from model.transformer import Transformer
from model.triton import fused
from model.triton.sampling import TritonSampler
from tests.tiny_llama import CONFIG

TRITON = Kernels("triton_paged", triton_paged, fused, TritonSampler)
PROMPTS = ([5, 9, 2, 33, 7], [1], list(range(40, 70)))
NUM_STEPS, CHUNK = 3, 18


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(triton_paged, "SPLIT", 64)
    torch.use_deterministic_algorithms(True)  # fills what torch.empty gives with NaN
    yield
    torch.use_deterministic_algorithms(False)


def generated(kernels: Kernels, changes: dict[str, Any]) -> list[list[int]]:
    """Prompts in chunks beside decodes, some of them greedy."""
    config = replace(CONFIG, **changes)
    torch.manual_seed(0)
    model = Transformer(config, kernels)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    cache = KVCache.allocate(config, num_pages=12, page_size=16, dtype=torch.float32)
    runner = TorchRunner(model, cache, max_model_len=64, kernels=kernels)
    known = [list(prompt) for prompt in PROMPTS]
    num_cached = [0] * len(known)
    for _ in range(NUM_STEPS):
        rows = []
        for sequence, ids in enumerate(known):
            new = ids[num_cached[sequence] :][:CHUNK]
            is_last = num_cached[sequence] + len(new) == len(ids)
            params = SamplingParams(temperature=float(sequence % 2), top_k=20, seed=sequence)
            pages = range(4 * sequence, 4 * sequence + 4)
            rows.append(Row(new, num_cached[sequence], pages, params if is_last else None))
            num_cached[sequence] += len(new)
        for ids, token in zip(known, runner.run(Batch(rows)).sampled, strict=True):
            ids += [token.token_id] if token else []
    return known


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"qk_norm": "head", "rope_dim": 4, "residual_scale": 0.5}, marks=pytest.mark.slow
        ),
        {
            "residual": "sandwich",
            "activation": "gelu_tanh",
            "attention_softcap": 3.0,
            "sliding_window": 9,
            "local_layers": frozenset({0}),
        },
        pytest.param(
            {"norm": "layer", "positions": "learned", "num_positions": 64, "num_kv_heads": 6},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["norms of heads", "windows, softcap", "learned positions"],
)
def test_a_model_generates_the_same(changes: dict[str, Any]) -> None:
    assert generated(TRITON, changes) == generated(PLAIN, changes)

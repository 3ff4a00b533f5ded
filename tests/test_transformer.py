"""The model over ragged batches against itself one sequence at a time, and against transformers."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from transformers import LlamaForCausalLM

from model.batch import Row
from model.config import load_config
from model.kv_cache import KVCache
from model.packing import pack
from model.transformer import Transformer
from model.weights.load import load_model
from tests.tiny_llama import CONFIG, empty_cache, random_transformer, transformers_llama

NUM_PAGES = 30
PAGES_EACH = 5

Prompts = list[list[int]]
prompts = st.lists(
    st.lists(st.integers(0, CONFIG.vocab_size - 1), min_size=1, max_size=40),
    min_size=1,
    max_size=NUM_PAGES // PAGES_EACH,
)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return random_transformer(dtype=torch.float64)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, LlamaForCausalLM]:
    """The same random model as ours and as transformers'."""
    folder: Path = tmp_path_factory.mktemp("llama")
    theirs = transformers_llama()
    theirs.save_pretrained(folder)
    ours = load_model(folder, load_config(folder), report=lambda name, fraction: None)
    return ours, theirs


def pages_of(sequence: int) -> list[int]:
    """Each sequence's own, and not in order."""
    return list(range(NUM_PAGES))[sequence :: NUM_PAGES // PAGES_EACH][::-1]


@torch.inference_mode()
def step(model: Transformer, cache: KVCache, rows: Sequence[Row]) -> list[Tensor]:
    """The logits at each token of each row."""
    batch = pack(rows, page_size=cache.page_size)
    logits_TV = model(batch, cache, output_rows_S=torch.arange(len(batch.token_ids_T)))
    return list(torch.split(logits_TV, [len(row.token_ids) for row in rows]))


def whole(prompts: Prompts) -> list[Row]:
    return [Row(ids, 0, pages_of(i), None) for i, ids in enumerate(prompts)]


def one_at_a_time(model: Transformer, prompts: Prompts) -> list[Tensor]:
    return [
        step(model, empty_cache(model, num_pages=NUM_PAGES), [row])[0] for row in whole(prompts)
    ]


def in_chunks(model: Transformer, prompts: Prompts, chunk_lens: Sequence[int]) -> list[Tensor]:
    """Sequence i goes on by chunk_lens[i] tokens a step, all sequences in the same steps."""
    cache = empty_cache(model, num_pages=NUM_PAGES)
    logits: list[list[Tensor]] = [[] for _ in prompts]
    for chunk in range(max(map(len, prompts))):
        rows = {
            i: Row(ids[chunk * n :][:n], chunk * n, pages_of(i), None)
            for i, (ids, n) in enumerate(zip(prompts, chunk_lens, strict=False))
            if chunk * n < len(ids)
        }
        if rows:
            for i, chunk_logits in zip(rows, step(model, cache, list(rows.values())), strict=True):
                logits[i].append(chunk_logits)
    return [torch.cat(chunks) for chunks in logits]


@settings(max_examples=30, deadline=None)
@given(prompts)
def test_a_ragged_batch_is_as_one_sequence_at_a_time(model: Transformer, prompts: Prompts) -> None:
    cache = empty_cache(model, num_pages=NUM_PAGES)
    for batched, alone in zip(
        step(model, cache, whole(prompts)), one_at_a_time(model, prompts), strict=True
    ):
        torch.testing.assert_close(batched, alone)


@settings(max_examples=20, deadline=None)
@given(prompts, st.lists(st.integers(1, 9), min_size=6, max_size=6))
def test_chunks_are_as_the_whole(
    model: Transformer, prompts: Prompts, chunk_lens: list[int]
) -> None:
    chunked = in_chunks(model, prompts, chunk_lens)
    for in_parts, alone in zip(chunked, one_at_a_time(model, prompts), strict=True):
        torch.testing.assert_close(in_parts, alone)


@settings(max_examples=20, deadline=None)
@given(prompts)
def test_paged_is_as_padded(pair: tuple[Transformer, LlamaForCausalLM], prompts: Prompts) -> None:
    """Padded is what transformers does: sequences as wide as the longest, and a mask."""
    ours, theirs = pair
    paged = step(ours, empty_cache(ours, num_pages=NUM_PAGES), whole(prompts))
    width = max(map(len, prompts))
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids in prompts])
    mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in prompts])
    with torch.inference_mode():
        padded = theirs(input_ids=ids, attention_mask=mask).logits
    for logits, row in zip(paged, padded, strict=True):
        torch.testing.assert_close(logits, row[: len(logits)], atol=1e-4, rtol=1e-4)


def test_only_the_rows_asked_for_are_computed(model: Transformer) -> None:
    row = Row([4, 8, 15, 16], 0, pages_of(0), None)
    batch = pack([row], page_size=16)
    cache = empty_cache(model, num_pages=NUM_PAGES)
    with torch.inference_mode():
        some = model(batch, cache, output_rows_S=torch.tensor([3, 1]))
        none = model(batch, cache, output_rows_S=torch.tensor([], dtype=torch.int64))
    torch.testing.assert_close(some, step(model, cache, [row])[0][[3, 1]])
    assert none.shape == (0, CONFIG.vocab_size)


def test_the_future_changes_nothing(model: Transformer) -> None:
    ids = list(range(20))
    before = one_at_a_time(model, [ids])[0]
    after = one_at_a_time(model, [[*ids[:12], *ids[:8]]])[0]
    torch.testing.assert_close(before[:12], after[:12])
    assert not torch.allclose(before[12:], after[12:])

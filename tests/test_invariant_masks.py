"""Sequences of all lengths side by side: paged = padded = one at a time, and padding is nothing.

The seed of it all is softmax(QKᵀ/√d_k + M)V (arXiv:1706.03762, equation 1, with a mask), written
out here over a rectangle of sequences that are padded to the longest one.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM

from model.attention.reference import attend
from model.batch import Row
from model.masks import additive, causal_mask, padding_mask, window_mask
from model.transformer import Transformer
from tests.ragged import plain_attention
from tests.test_attention import D, H, K, plan_of, random_layer, random_queries, rows_of, sizes
from tests.test_families import load, our_logits
from tests.tiny_llama import transformers_llama

NOISE = 1e6


def seed(q_SHQD: Tensor, k_SHCD: Tensor, v_SHCD: Tensor, mask_S1QC: Tensor) -> Tensor:
    scores_SHQC = q_SHQD @ k_SHCD.mT / q_SHQD.shape[-1] ** 0.5
    return torch.softmax(scores_SHQC + mask_S1QC, dim=-1) @ v_SHCD


def padded(parts: Sequence[Tensor], value: float) -> Tensor:
    return pad_sequence(list(parts), batch_first=True, padding_value=value).transpose(1, 2)


def mask_of(rows: Sequence[Row], *, num_keys: int, window: int | None) -> Tensor:
    positions = [torch.arange(row.start, row.start + len(row.token_ids)) for row in rows]
    positions_SQ = pad_sequence(positions, batch_first=True)
    lengths_S = torch.tensor([row.start + len(row.token_ids) for row in rows])
    mask_SQC = causal_mask(positions_SQ, num_keys=num_keys)
    mask_SQC &= padding_mask(lengths_S, num_keys=num_keys)[:, None]
    if window is not None:
        mask_SQC &= window_mask(positions_SQ, num_keys=num_keys, window=window)
    return additive(mask_SQC, dtype=torch.float64)[:, None]


@settings(max_examples=40, deadline=None)
@given(sizes, st.none() | st.integers(1, 20))
def test_paged_is_padded_is_one_at_a_time(sizes: list[tuple[int, int]], window: int | None) -> None:
    rows = rows_of(sizes)
    q_THD, layer = random_queries(rows), random_layer()
    keys, values = [], []
    for row in rows:
        chunks = torch.tensor(row.page_ids) * 2 * K + torch.arange(2 * K)[:, None]
        kv_JCD = layer.gather(chunks[None])[0][:, : row.start + len(row.token_ids)]
        k_HCD, v_HCD = kv_JCD.repeat_interleave(H // K, 0).chunk(2)
        keys.append(k_HCD.transpose(0, 1))
        values.append(v_HCD.transpose(0, 1))
    query_lens = [len(row.token_ids) for row in rows]
    q_SHQD = padded(torch.split(q_THD, query_lens), NOISE)
    mask_S1QC = mask_of(rows, num_keys=max(map(len, keys)), window=window)
    out_SHQD = seed(q_SHQD, padded(keys, NOISE), padded(values, NOISE), mask_S1QC)
    rectangle = [out[:, :n].transpose(0, 1) for out, n in zip(out_SHQD, query_lens, strict=True)]
    paged = attend(q_THD, layer, plan_of(rows, window=window))
    torch.testing.assert_close(torch.cat(rectangle), paged)
    torch.testing.assert_close(paged, plain_attention(q_THD, layer, rows, window=window))


@settings(max_examples=40, deadline=None)
@given(sizes)
@example([(16, 0), (16, 1)])  # which differed where there is no AVX-512
def test_padding_changes_no_real_tokens_output_by_a_bit(sizes: list[tuple[int, int]]) -> None:
    """In float64, however much of it the other sequences bring about."""
    rows = rows_of(sizes)
    q_THD, layer = random_queries(rows), random_layer()
    together = attend(q_THD, layer, plan_of(rows))
    parts = torch.split(q_THD, [len(row.token_ids) for row in rows])
    alone = [attend(q, layer, plan_of([row])) for q, row in zip(parts, rows, strict=True)]
    assert torch.equal(together, torch.cat(alone))


def test_permuted_tokens_without_positions_have_permuted_outputs() -> None:
    generator = torch.Generator().manual_seed(0)
    x_THD = torch.randn(7, H, D, generator=generator).double()
    order = torch.randperm(7, generator=generator)
    everything = additive(padding_mask(torch.tensor([7]), num_keys=7), dtype=torch.float64)

    def attended(x_THD: Tensor) -> Tensor:
        x_SHTD = x_THD.transpose(0, 1)[None]
        return seed(x_SHTD, x_SHTD, x_SHTD, everything)[0].transpose(0, 1)

    torch.testing.assert_close(attended(x_THD[order]), attended(x_THD)[order])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("llama")
    theirs = transformers_llama()
    theirs.config.architectures = ["LlamaForCausalLM"]
    theirs.save_pretrained(folder)
    return load(Path(folder)), theirs.eval()


prompts = st.lists(st.lists(st.integers(0, 95), min_size=1, max_size=60), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(prompts, st.integers(1, 60))
@torch.inference_mode()
def test_a_model_too_is_the_same_paged_and_padded_and_one_at_a_time(
    models: tuple[Transformer, LlamaForCausalLM], prompts: list[list[int]], chunk_len: int
) -> None:
    ours, theirs = models
    ids = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
    lengths = torch.tensor(list(map(len, prompts)))
    mask = padding_mask(lengths, num_keys=ids.shape[1])
    rectangle = theirs(ids, attention_mask=mask.long(), use_cache=False).logits
    paged = our_logits(ours, prompts, chunk_len=chunk_len)
    for prompt, logits, padded_logits in zip(prompts, paged, rectangle, strict=True):
        [alone] = our_logits(ours, [prompt], chunk_len=100)
        torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(logits, padded_logits[: len(prompt)], atol=1e-4, rtol=1e-4)

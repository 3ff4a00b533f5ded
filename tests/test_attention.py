"""The reference attention against softmax(QKᵀ/√d)V written out one query at a time."""

import math
from collections.abc import Sequence
from itertools import product

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from model.attention.reference import PAGE_SIZE, Group, attend, prepare
from model.batch import Row
from model.kv_cache import KVCache, LayerCache
from model.packing import pack
from tests.tiny_llama import CONFIG

H, K, D = CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.head_dim
NUM_PAGES = 64

sizes = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 60)), min_size=1, max_size=7)
"""Queries and cached tokens of each row."""


def rows_of(sizes: Sequence[tuple[int, int]]) -> list[Row]:
    """Each with pages of its own, in no order."""
    pages = iter(torch.randperm(NUM_PAGES, generator=torch.manual_seed(0)).tolist())
    return [
        Row(
            [0] * num_queries,
            start,
            [next(pages) for _ in range(-(-(start + num_queries) // PAGE_SIZE))],
            sampling=None,
        )
        for num_queries, start in sizes
    ]


def random_layer() -> LayerCache:
    """A cache that is full of values, also where no row has tokens."""
    cache = KVCache.allocate(CONFIG, num_pages=NUM_PAGES, page_size=PAGE_SIZE, dtype=torch.float64)
    layer = cache.layers[0]
    page_ids_T = torch.arange(NUM_PAGES).repeat_interleave(PAGE_SIZE)
    layer.write(
        torch.randn(len(page_ids_T), 2 * K, D, dtype=torch.float64),
        page_ids_T=page_ids_T,
        offsets_T=torch.arange(PAGE_SIZE).repeat(NUM_PAGES),
    )
    return layer


def plan_of(rows: Sequence[Row]) -> list[Group]:
    batch = pack(rows, page_size=PAGE_SIZE)
    return prepare(batch, num_kv_heads=K, dtype=torch.float64)


def random_queries(rows: Sequence[Row]) -> Tensor:
    return torch.randn(sum(len(row.token_ids) for row in rows), H, D, dtype=torch.float64)


def plain_attention(q_THD: Tensor, layer: LayerCache, rows: Sequence[Row]) -> Tensor:
    outputs = []
    queries = iter(q_THD)
    for row in rows:
        chunks = torch.tensor(row.page_ids) * 2 * K + torch.arange(2 * K)[:, None]
        kv_JCD = layer.gather(chunks[None])[0]
        for position in range(row.start, row.start + len(row.token_ids)):
            q_HD = next(queries)
            seen_JCD = kv_JCD[:, : position + 1]
            k_HCD, v_HCD = seen_JCD.repeat_interleave(H // K, 0).chunk(2)
            scores_HC = (k_HCD @ q_HD[:, :, None])[..., 0] / math.sqrt(D)
            outputs.append((scores_HC.softmax(-1)[:, None] @ v_HCD)[:, 0])
    return torch.stack(outputs)


@settings(max_examples=40, deadline=None)
@given(sizes)
def test_any_ragged_batch_is_as_one_query_at_a_time(sizes: list[tuple[int, int]]) -> None:
    rows = rows_of(sizes)
    q_THD, layer = random_queries(rows), random_layer()
    torch.testing.assert_close(
        attend(q_THD, layer, plan_of(rows)), plain_attention(q_THD, layer, rows)
    )


@settings(max_examples=40, deadline=None)
@given(sizes)
def test_what_the_padding_holds_changes_no_bit(sizes: list[tuple[int, int]]) -> None:
    """Neither in a row's last page, behind its tokens, nor in the pages that fill up the table."""
    rows = rows_of(sizes)
    q_THD, layer, plan = random_queries(rows), random_layer(), plan_of(rows)
    before = attend(q_THD, layer, plan)
    used = {
        (row.page_ids[position // PAGE_SIZE], position % PAGE_SIZE)
        for row in rows
        for position in range(row.start + len(row.token_ids))
    }
    unused = [slot for slot in product(range(NUM_PAGES), range(PAGE_SIZE)) if slot not in used]
    page_ids_T, offsets_T = torch.tensor(unused).unbind(1)
    noise = 1e6 * torch.randn(len(unused), 2 * K, D, dtype=torch.float64)
    layer.write(noise, page_ids_T=page_ids_T, offsets_T=offsets_T)
    assert torch.equal(attend(q_THD, layer, plan), before)


def test_decodes_share_a_group_and_prompts_have_their_own() -> None:
    decodes = [(1, context) for context in (30, 40, 50)]
    plan = plan_of(rows_of([*decodes, (7, 0), (19, 0)]))
    assert [group.num_tokens for group in plan] == [3, 7, 19]


def test_no_query_is_padded_and_keys_only_to_the_longest_of_the_group() -> None:
    plan = plan_of(rows_of([(1, 5), (1, 40), (20, 0)]))
    assert [group.mask_S1QC.shape for group in plan] == [(2, 1, 1, 48), (1, 1, 20, 32)]


@pytest.mark.parametrize(("context", "num_groups"), [(16 * 8 - 1, 1), (16 * 12 - 1, 2)])
def test_a_group_ends_where_padding_would_cost_more(context: int, num_groups: int) -> None:
    plan = plan_of(rows_of([(1, 15), (1, context)]))
    assert len(plan) == num_groups

"""The reference attention against softmax(QKᵀ/√d)V written out one query at a time."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.testing import assert_close

from model.attention.reference import PAGE_SIZE, Group, attend, prepare
from model.batch import Row
from model.kv_cache import KVCache, LayerCache
from model.packing import pack
from tests.ragged import plain_attention
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


def plan_of(rows: Sequence[Row], *, window: int | None = None) -> list[Group]:
    batch = pack(rows, page_size=PAGE_SIZE)
    return prepare(batch, num_heads=H, num_kv_heads=K, dtype=torch.float64, window=window)


def random_queries(rows: Sequence[Row]) -> Tensor:
    return torch.randn(sum(len(row.token_ids) for row in rows), H, D, dtype=torch.float64)


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


def one_page(k_CD: Tensor, v_CD: Tensor) -> LayerCache:
    """One sequence of so many keys and values, of one head."""
    config = replace(CONFIG, num_kv_heads=1, head_dim=k_CD.shape[1], positions="learned")
    cache = KVCache.allocate(config, num_pages=1, page_size=PAGE_SIZE, dtype=torch.float64)
    slots = torch.arange(len(k_CD))
    kv_TJD = torch.stack((k_CD, v_CD), dim=1).double()
    cache.layers[0].write(kv_TJD, page_ids_T=slots * 0, offsets_T=slots)
    return cache.layers[0]


def attended(q_TD: Tensor, layer: LayerCache, *, start: int = 0, **how: float) -> Tensor:
    """By so many last tokens of that sequence."""
    batch = pack([Row([0] * len(q_TD), start, [0], None)], page_size=PAGE_SIZE)
    plan = prepare(batch, num_heads=1, num_kv_heads=1, dtype=torch.float64)
    return attend(q_TD[:, None].double(), layer, plan, **how)[:, 0]


def weights(q_D: Tensor, k_CD: Tensor, **how: float) -> list[float]:
    """Of each key, by values that each have a dimension of their own."""
    width = max(len(q_D), len(k_CD))
    padded_CD = torch.zeros(len(k_CD), width).double()
    padded_CD[:, : k_CD.shape[1]] = k_CD
    q_TD = torch.zeros(1, width).double()
    q_TD[0, : len(q_D)] = q_D
    layer = one_page(padded_CD, torch.eye(len(k_CD), width))
    how = {"scale": len(q_D) ** -0.5} | how
    return attended(q_TD, layer, start=len(k_CD) - 1, **how)[0, : len(k_CD)].tolist()


def test_a_score_is_the_scaled_product() -> None:
    """q = (2, -1, 0.5) and k = (1, 3, 4) meet at 2 - 3 + 2 = 1, over √3; another key, at 0."""
    found = weights(torch.tensor([2.0, -1, 0.5]), torch.tensor([[1.0, 3, 4], [0, 0, 0]]))
    score = math.log(found[0] / found[1])
    assert score == pytest.approx(1 / math.sqrt(3))
    assert score == pytest.approx(0.577, abs=5e-4)


def test_a_verb_looks_at_its_nouns() -> None:
    """Five tokens: two nouns score 2.0, the others 0; d = 4, so e¹ against e⁰, of 2e + 3."""
    keys = torch.tensor([[0.0, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]])
    found = weights(torch.tensor([1.0, 1, 0, 0]), keys)
    assert [round(weight, 2) for weight in found] == [0.12, 0.32, 0.12, 0.32, 0.12]


def test_values_are_mixed_by_their_weights() -> None:
    """Keys whose scores are the logarithms of the weights; the mean of the values is by hand."""
    wanted = torch.tensor([0.03, 0.62, 0.08, 0.05, 0.12, 0.04, 0.06])
    values = [[0.2, 0.6], [0.8, 0.3], [0.2, 0.9], [0.4, 1], [0.4, 0.5], [0.1, 0.6], [0.5, 1]]
    keys = torch.stack((wanted.log(), torch.zeros(7)), dim=1)
    layer = one_page(keys, torch.tensor(values))
    mixed = attended(torch.tensor([[1.0, 0]]), layer, start=6, scale=1.0)[0]
    assert [round(value, 2) for value in mixed.tolist()] == [0.62, 0.47]


def test_a_first_token_attends_to_itself_alone() -> None:
    torch.manual_seed(0)
    v_CD = torch.randn(5, 4).double()
    out_TD = attended(torch.randn(5, 4), one_page(torch.randn(5, 4), v_CD))
    assert torch.equal(out_TD[0], v_CD[0])


def test_permuted_tokens_are_the_same_to_a_query_that_sees_them_all() -> None:
    torch.manual_seed(0)
    q_TD, k_CD, v_CD = torch.randn(1, 4), torch.randn(6, 4), torch.randn(6, 4)
    order = torch.randperm(6)
    one, other = (
        attended(q_TD, one_page(k, v), start=5)
        for k, v in ((k_CD, v_CD), (k_CD[order], v_CD[order]))
    )
    torch.testing.assert_close(one, other)


def test_a_softcap_bounds_scores_by_a_hyperbolic_tangent() -> None:
    """Scores of 3 and 0 under a cap of 2 are 2·tanh(1.5) and 0."""
    found = weights(torch.tensor([3.0]), torch.tensor([[1.0], [0.0]]), softcap=2.0)
    assert math.log(found[0] / found[1]) == pytest.approx(2 * math.tanh(1.5))


def test_a_window_is_cut_out_of_the_context() -> None:
    rows = rows_of([(3, 40), (1, 20), (17, 0)])
    q_THD, layer = random_queries(rows), random_layer()
    batch = pack(rows, page_size=PAGE_SIZE)
    windowed = prepare(batch, num_heads=H, num_kv_heads=K, dtype=torch.float64, window=5)
    out_THD = attend(q_THD, layer, windowed)
    assert_close(out_THD, plain_attention(q_THD, layer, rows, window=5))
    assert_close(
        attend(q_THD, layer, windowed, scale=0.7, softcap=1.5),
        plain_attention(q_THD, layer, rows, window=5, scale=0.7, softcap=1.5),
    )

"""The native attention against softmax(QKᵀ)V in float64, one query at a time, in all builds.

Shapes: T packed tokens, H query heads, K key-value heads, D head dimension, N pages, P page size.
"""

from collections.abc import Sequence
from ctypes import CDLL, POINTER, Structure, byref, c_int, c_int32, c_size_t, c_void_p
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from model.batch import Row
from model.native.library import NEEDED_FLAGS, PAGE_SIZE, Batch, builds, declare, load
from model.native.transformer import native_batch
from model.packing import RaggedBatch, pack

NUM_PAGES = 64
HEADS = [(9, 3, 64), (4, 4, 16), (8, 1, 32), (6, 2, 128), (2, 1, 256)]
"""H, K, D."""


class Tile(Structure):
    _fields_ = (
        ("sequence", c_int32),
        ("first", c_int32),
        ("num_queries", c_int32),
        ("first_token", c_int32),
    )


class Attention(Structure):
    _fields_ = (
        ("batch", POINTER(Batch)),
        ("tiles", POINTER(Tile)),
        ("num_tiles", c_int),
        ("num_heads", c_int),
        ("num_kv_heads", c_int),
        ("head_dim", c_int),
        ("queries", c_void_p),
        ("pool", c_void_p),
        ("page_stride", c_size_t),
        ("out", c_void_p),
        ("out_stride", c_int),
        ("out_dim", c_int),
    )


def library(build: str) -> CDLL:
    library = load(build)
    declare(library, "team_create", [c_int], c_void_p)
    declare(library, "team_destroy", [c_void_p])
    takes = [POINTER(Batch), c_void_p, c_int, POINTER(Tile)]
    declare(library, "make_tiles", takes, c_int)
    declare(library, "attend", [c_void_p, POINTER(Attention)])
    return library


def attend(
    build: str, batch: RaggedBatch, q_THD: Tensor, pool: Tensor, num_kv_heads: int, threads: int = 1
) -> Tensor:
    calls, native = library(build), native_batch(batch)
    _, H, D = q_THD.shape
    group_size = H // num_kv_heads
    tiling = byref(native), native.wanted_lens, group_size
    tiles = (Tile * calls.make_tiles(*tiling, None))()
    calls.make_tiles(*tiling, tiles)
    out = torch.full((len(q_THD), H * D), torch.nan)
    factors = q_THD if "avx512_bf16" in NEEDED_FLAGS[build] else q_THD.float()
    addresses: list[Any] = [factors.data_ptr(), pool.data_ptr(), out.data_ptr()]
    shape = (H, num_kv_heads, D)
    attention = Attention(batch=POINTER(Batch)(native), tiles=tiles, num_tiles=len(tiles))
    attention.num_heads, attention.num_kv_heads, attention.head_dim = shape
    attention.queries, attention.pool, attention.out = addresses
    attention.page_stride = pool[0].numel()
    attention.out_stride, attention.out_dim = H * D, D
    team = calls.team_create(threads)
    calls.attend(team, byref(attention))
    calls.team_destroy(team)
    return out.view(len(q_THD), H, D)


def random_pool(num_kv_heads: int, head_dim: int) -> Tensor:
    shape = (NUM_PAGES, num_kv_heads, 2, PAGE_SIZE * head_dim)
    return torch.randn(shape, generator=torch.manual_seed(0)).bfloat16()


def keys_and_values(pool: Tensor, row: Row, head: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Of all positions that the row's pages hold, from the layouts in attention.h."""
    pages = pool[torch.tensor(row.page_ids), head].double()
    keys = pages[:, 0].view(-1, head_dim // 2, PAGE_SIZE, 2).transpose(1, 2)
    values = pages[:, 1].view(-1, PAGE_SIZE // 2, head_dim, 2).transpose(2, 3)
    return keys.reshape(-1, head_dim), values.reshape(-1, head_dim)


def plain_attention(rows: Sequence[Row], q_THD: Tensor, pool: Tensor, num_kv_heads: int) -> Tensor:
    _, H, D = q_THD.shape
    out_THD, token = torch.empty(q_THD.shape, dtype=torch.float64), 0
    for row in rows:
        for position in range(row.start, row.start + len(row.token_ids)):
            for head in range(H):
                k_CD, v_CD = keys_and_values(pool, row, head * num_kv_heads // H, D)
                scores_C = k_CD[: position + 1] @ q_THD[token, head].double()
                weights_C = torch.softmax(scores_C * np.log(2), 0)
                out_THD[token, head] = weights_C @ v_CD[: position + 1]
            token += 1
    return out_THD


def rows_of(sizes: Sequence[tuple[int, int]]) -> list[Row]:
    """Each with pages of its own, in no order."""
    pages = iter(torch.randperm(NUM_PAGES, generator=torch.manual_seed(0)).tolist())
    return [
        Row(
            [0] * count, start, [next(pages) for _ in range(-(-(start + count) // PAGE_SIZE))], None
        )
        for count, start in sizes
    ]


def random_queries(rows: Sequence[Row], num_heads: int, head_dim: int) -> Tensor:
    num_tokens = sum(len(row.token_ids) for row in rows)
    return (torch.randn(num_tokens, num_heads, head_dim) * 3 / head_dim**0.5).bfloat16()


def check(actual: Tensor, expected: Tensor) -> None:
    """Weights are rounded to 8 bits, each at random."""
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=0.02)
    assert (actual - expected).square().mean().sqrt() < 0.003


@pytest.mark.parametrize("build", builds())
@pytest.mark.parametrize("heads", HEADS)
def test_any_ragged_batch_is_as_one_query_at_a_time(
    build: str, heads: tuple[int, int, int]
) -> None:
    H, K, D = heads
    rows = rows_of([(1, 0), (1, 15), (1, 16), (1, 300), (3, 62), (20, 0), (17, 50), (70, 3)])
    q_THD, pool = random_queries(rows, H, D), random_pool(K, D)
    batch = pack(rows, page_size=PAGE_SIZE)
    check(attend(build, batch, q_THD, pool, K), plain_attention(rows, q_THD, pool, K))


SIZES = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 90)), min_size=1, max_size=7)


@pytest.mark.parametrize("build", builds())
@settings(max_examples=15, deadline=None)
@given(sizes=SIZES, threads=st.integers(1, 3))
def test_a_query_has_the_same_bits_in_any_batch(
    build: str, sizes: list[tuple[int, int]], threads: int
) -> None:
    """As alone: with no other sequence, and none of its own chunk's queries."""
    H, K, D = HEADS[0]
    rows = rows_of(sizes)
    q_THD, pool = random_queries(rows, H, D), random_pool(K, D)
    together = attend(build, pack(rows, page_size=PAGE_SIZE), q_THD, pool, K, threads)
    positions = [(row, i) for row in rows for i in range(len(row.token_ids))]
    for token, (row, i) in enumerate(positions):
        one = Row([0], row.start + i, row.page_ids, None)
        q_1HD = q_THD[token : token + 1].clone()
        alone = attend(build, pack([one], page_size=PAGE_SIZE), q_1HD, pool, K)
        assert torch.equal(alone[0], together[token])


@pytest.mark.parametrize("build", builds())
def test_what_lies_behind_a_query_changes_no_bit(build: str) -> None:
    H, K, D = HEADS[0]
    rows = rows_of([(1, 20), (9, 30)])
    q_THD, pool = random_queries(rows, H, D), random_pool(K, D)
    batch = pack(rows, page_size=PAGE_SIZE)
    before = attend(build, batch, q_THD, pool, K)
    for row in rows:
        last = row.start + len(row.token_ids) - 1
        page = pool[row.page_ids[last // PAGE_SIZE]]
        keys = page[:, 0].view(K, D // 2, PAGE_SIZE, 2)
        values = page[:, 1].view(K, PAGE_SIZE // 2, D, 2)
        keys[:, :, last % PAGE_SIZE + 1 :] = 1e30
        for offset in range(last % PAGE_SIZE + 1, PAGE_SIZE):
            values[:, offset // 2, :, offset % 2] = 1e30
    assert torch.equal(attend(build, batch, q_THD, pool, K), before)


@pytest.mark.parametrize("build", builds())
def test_one_key_far_above_the_others_is_all_that_counts(build: str) -> None:
    """Its score is the largest float's share: powers of two neither overflow nor vanish."""
    H, K, D = 1, 1, 16
    rows, pool = rows_of([(1, 99)]), torch.zeros(NUM_PAGES, 1, 2, PAGE_SIZE * D).bfloat16()
    page, offset = rows[0].page_ids[70 // PAGE_SIZE], 70 % PAGE_SIZE
    pool[page, 0, 0].view(D // 2, PAGE_SIZE, 2)[:, offset] = 1e15
    pool[page, 0, 1].view(PAGE_SIZE // 2, D, 2)[offset // 2, :, offset % 2] = 5
    q_THD = torch.full((1, H, D), 1e15).bfloat16()
    out = attend(build, pack(rows, page_size=PAGE_SIZE), q_THD, pool, K)
    assert torch.equal(out, torch.full_like(out, 5))

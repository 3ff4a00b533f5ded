"""Triton's attention against attention written out one query at a time.

Under the interpreter, unless TRITON_INTERPRET=0 asks for a GPU. Memory that isn't written is NaN:
the cache's, where no row has tokens, and that of outputs and workspaces.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close

from model.attention import self_test, triton_paged
from model.attention.backend import Place
from model.packing import pack
from tests.ragged import Case
from tests.tiny_llama import CONFIG
from tests.triton_device import DEVICE

FLOAT8 = torch.float8_e4m3fn
TOLERANCES = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}
MIXED = ((1, 0), (1, 90), (1, 63), (40, 9), (2, 130), (7, 0))
"""Decodes, chunks and prompts."""

sizes = st.lists(
    st.tuples(st.one_of(st.just(1), st.integers(1, 40)), st.integers(0, 150)),
    min_size=1,
    max_size=4,
)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Splits are short, so that there are several."""
    monkeypatch.setattr(triton_paged, "SPLIT", 64)
    torch.use_deterministic_algorithms(True)  # fills what torch.empty gives with NaN
    yield
    torch.use_deterministic_algorithms(False)


def agree(case: Case, **how: Any) -> None:
    out_THD = case.attended(triton_paged, **how).cpu().double()
    bound = TOLERANCES[case.q_THD.dtype]
    assert_close(out_THD, case.wanted(**how), rtol=bound, atol=bound)


@pytest.mark.no_cover
@settings(max_examples=12, deadline=None)
@given(
    sizes=sizes,
    heads=st.sampled_from([(4, 2), (2, 2), (7, 1), (20, 1)]),
    page_size=st.sampled_from([16, 32, 64, 128, 256]),
    window=st.one_of(st.none(), st.integers(1, 120)),
    softcap=st.sampled_from([None, 1.5]),
)
def test_any_ragged_batch_is_as_one_query_at_a_time(
    sizes: Sequence[tuple[int, int]],
    heads: tuple[int, int],
    page_size: int,
    window: int | None,
    softcap: float | None,
) -> None:
    case = Case(
        sizes, num_heads=heads[0], num_kv_heads=heads[1], page_size=page_size, device=DEVICE
    )
    agree(case, window=window, softcap=softcap, scale=0.2)


@pytest.mark.parametrize("cache_dtype", [None, FLOAT8], ids=["", "float8"])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_any_dtype(dtype: torch.dtype, cache_dtype: torch.dtype | None) -> None:
    case = Case(((1, 90), (5, 60)), dtype=dtype, cache_dtype=cache_dtype, device=DEVICE)
    agree(case)
    agree(case, window=33, softcap=2.0)


@pytest.mark.parametrize("head_dim", [80, 128, 256])
def test_any_head_dim(head_dim: int) -> None:
    agree(Case(((1, 90), (5, 60)), head_dim=head_dim, device=DEVICE))


@pytest.mark.no_cover
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("cache_dtype", [None, FLOAT8], ids=["", "float8"])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    window: int | None, cache_dtype: torch.dtype | None
) -> None:
    case = Case(MIXED, dtype=torch.float16, cache_dtype=cache_dtype, device=DEVICE)
    lens = [num_queries for num_queries, _ in MIXED]
    together = torch.split(case.attended(triton_paged, window=window), lens)
    for row, out_QHD in enumerate(together):
        assert torch.equal(case.attended(triton_paged, [row], window=window), out_QHD)
    order = [4, 1, 5, 0, 3, 2]
    shuffled = case.attended(triton_paged, order, window=window)
    assert torch.equal(shuffled, torch.cat([together[row] for row in order]))


@pytest.mark.no_cover
def test_how_many_programs_share_the_splits_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(((1, 300), (1, 20)), device=DEVICE)
    out_THD = case.attended(triton_paged)
    monkeypatch.setattr(triton_paged, "SPLIT_PROGRAMS", 1)
    assert torch.equal(case.attended(triton_paged), out_THD)


def test_a_chunk_is_as_the_end_of_the_whole() -> None:
    whole, chunk = Case(((90, 0),), device=DEVICE), Case(((30, 60),), device=DEVICE)
    chunk.q_THD = whole.q_THD[60:]
    assert torch.equal(chunk.layer.pool_NJPD.nan_to_num(), whole.layer.pool_NJPD.nan_to_num())
    assert_close(chunk.attended(triton_paged), whole.attended(triton_paged)[60:])


def test_a_plan_waits_for_no_device() -> None:
    """Tensors without values can be asked for none."""
    case = Case(MIXED)
    batch = pack(case.rows, page_size=16).to(torch.device("meta"))
    plan = triton_paged.prepare(batch, num_heads=4, num_kv_heads=2, dtype=torch.float32)
    assert plan.tile_rows_I.device.type == "meta"


def test_every_query_of_longer_rows_is_in_one_tile() -> None:
    lens = [num_queries for num_queries, _ in MIXED]
    batch = pack(Case(MIXED).rows, page_size=16)
    plan = triton_paged.prepare(batch, num_heads=16, num_kv_heads=2, dtype=torch.float32)
    tiles = zip(plan.tile_rows_I.tolist(), plan.tile_firsts_I.tolist(), strict=True)
    wanted = [(row, first) for row in (3, 4, 5) for first in range(0, lens[row], 32 // 8)]
    assert [tile for tile in tiles if tile[0] >= 0] == wanted


@pytest.mark.parametrize(
    ("changes", "cache_dtype"),
    [
        ({"num_kv_heads": 3, "attention_softcap": 3.0, "attention_scale": 0.1}, torch.float16),
        ({"head_dim": 64, "sliding_window": 40, "local_layers": frozenset({0})}, FLOAT8),
    ],
    ids=["softcap", "window, float8"],
)
def test_it_passes_the_self_test(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], cache_dtype: torch.dtype
) -> None:
    monkeypatch.setattr(self_test, "SIZES", ((1, 0), (1, 90), (5, 30)))
    config = replace(CONFIG, **changes)
    place = Place(DEVICE, torch.float16, cache_dtype)
    assert triton_paged.refusal(config, place) == ""
    self_test.check(triton_paged, config, place)


def test_what_it_cannot_do_it_refuses() -> None:
    place = Place(DEVICE, torch.float64, torch.float64)
    assert triton_paged.refusal(CONFIG, place) == "it doesn't compute in torch.float64"
    wide = replace(CONFIG, head_dim=512)
    half = Place(DEVICE, torch.float16, torch.float16)
    assert triton_paged.refusal(wide, half) == "heads have 512 dimensions, more than 256"

"""Draws in Triton: the tokens that model.sampling draws, for any way to draw."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from model.batch import SamplingParams
from model.sampling import Draw, Sampler
from model.triton import sampling
from model.triton.sampling import TritonSampler
from tests.triton_device import DEVICE

WAYS = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(top_k=40),
    SamplingParams(top_k=300, top_p=0.9),
    SamplingParams(top_p=0.3),
    SamplingParams(min_p=0.1),
    SamplingParams(top_k=50, top_p=0.95, min_p=0.02, temperature=1.3),
]

seeds = st.integers(-(1 << 63), (1 << 63) - 1)
params = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(0.0), st.floats(0.05, 3)),
    top_k=st.integers(0, 700),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1)),
    seed=seeds,
)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks are small, so that there are several."""
    monkeypatch.setattr(sampling, "BLOCK_W", 256)
    monkeypatch.setattr(sampling, "SEARCH_W", 512)
    torch.use_deterministic_algorithms(True)  # fills what torch.empty gives with NaN
    yield
    torch.use_deterministic_algorithms(False)


def random_logits(num_rows: int, vocab_size: int, *, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return scale * torch.randn(num_rows, vocab_size, generator=generator)


def both(logits_SV: Tensor, draws: list[Draw]) -> tuple[list[int], list[int]]:
    vocab_size = logits_SV.shape[-1]
    ours_S = TritonSampler(vocab_size).draw(logits_SV.to(DEVICE), draws)
    return ours_S.tolist(), Sampler(vocab_size).draw(logits_SV, draws).tolist()


@pytest.mark.no_cover
@settings(max_examples=12, deadline=None)
@given(
    draws=st.lists(st.tuples(st.integers(0, 1 << 20), params), min_size=1, max_size=2),
    vocab_size=st.integers(1, 600),
    scale=st.floats(0.01, 20),
)
def test_any_draw_is_that_of_the_cpu(draws: list[Draw], vocab_size: int, scale: float) -> None:
    ours, theirs = both(random_logits(len(draws), vocab_size, scale=scale), draws)
    assert ours == theirs


@pytest.mark.no_cover
@settings(max_examples=10, deadline=None)
@given(draw=st.tuples(st.integers(0, 1 << 20), params), num_levels=st.integers(1, 5))
def test_of_equal_logits_the_lower_ids_are_kept(draw: Draw, num_levels: int) -> None:
    """Powers of two, so that no sum is rounded."""
    position, wanted = draw
    wanted = replace(wanted, temperature=1.0, min_p=0.0, top_p=round(wanted.top_p * 64) / 64 or 1.0)
    logits_SV = random_logits(1, 512).mul(num_levels).round().clamp(0, num_levels) * math.log(2)
    ours, theirs = both(logits_SV, [(position, wanted)])
    assert ours == theirs


@pytest.mark.no_cover
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_masked_token_is_never_drawn(way: SamplingParams) -> None:
    logits_SV = torch.full((2, 700), -math.inf)
    logits_SV[:, 613] = -40.0
    logits_SV[1, [5, 600]] = torch.tensor([-41.0, -40.5])
    ours, theirs = both(logits_SV, [(i, replace(way, seed=i)) for i in range(2)])
    assert ours == theirs
    assert ours[0] == 613


def test_the_highest_and_the_lowest_temperature() -> None:
    ways = [SamplingParams(temperature=t, top_k=3) for t in (2e-5, 1e-5, 9e-6, 100.0)]
    ours, theirs = both(random_logits(4, 300), list(enumerate(ways)))
    assert ours == theirs


@pytest.mark.no_cover
def test_a_row_draws_the_same_alone_and_in_any_batch() -> None:
    ways = WAYS[1::2]
    logits_SV = random_logits(len(ways), 520).to(DEVICE)
    draws = [(7 * i, replace(way, seed=i)) for i, way in enumerate(ways)]
    sampler = TritonSampler(520)
    together = sampler.draw(logits_SV, draws)
    for row, draw in enumerate(draws):
        assert sampler.draw(logits_SV[row : row + 1], [draw]) == together[row]


@pytest.mark.no_cover
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_row_of_no_numbers_harms_no_other(poison: float) -> None:
    logits_SV = random_logits(len(WAYS), 300)
    draws = [(5, replace(way, seed=3)) for way in WAYS]
    clean = Sampler(300).draw(logits_SV, draws).tolist()
    logits_SV[1::2] = poison
    ids = TritonSampler(300).draw(logits_SV.to(DEVICE), draws).tolist()
    assert ids[::2] == clean[::2]
    assert all(0 <= token_id < 300 for token_id in ids)


def test_a_sampler_gives_logprobs_and_penalties_as_on_a_cpu() -> None:
    logits_SV = random_logits(3, 300)
    ways = [
        SamplingParams(seed=4, num_logprobs=2),
        SamplingParams(top_p=0.5, logit_bias={7: 30.0}),
        SamplingParams(temperature=0, num_logprobs=0),
    ]
    ours, theirs = (
        kind(300).sample(logits_SV, [1, 2, 3], ways) for kind in (TritonSampler, Sampler)
    )
    assert ours == theirs
    assert ours[1].token_id == 7


def test_nothing_is_drawn_of_no_rows() -> None:
    assert TritonSampler(50).adjust_and_draw(torch.empty(0, 50), [], [], []).tolist() == []

"""The native draws against model.sampling's: the same ids, in all builds, whatever the logits."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from model.batch import Context, SampledToken, SamplingParams
from model.native.library import builds
from model.native.sampling import NativeSampler
from model.native.transformer import NativeTransformer
from model.sampling import Sampler
from tests.tiny_llama import CONFIG

ALL_WAYS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in product(
        (0, 1e-5, 0.01, 0.7, 1, 2, 1e4, 1e38, math.inf),
        (0, 1, 2, 40, 700, 1_500),
        (1.0, 0.9, 0.3, 0.9999, 1e-9, 1e-35),
        (0.0, 0.05, 1.0, 1e-35),
    )
]
LARGE = 49_152
USUAL = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(top_p=0.9),
    SamplingParams(top_p=0.95, temperature=2),
    SamplingParams(min_p=0.05),
    SamplingParams(top_k=40),
    SamplingParams(top_k=50, top_p=0.9, temperature=0.6),
    SamplingParams(top_k=1_000, min_p=0.02),
    SamplingParams(top_k=5_000),
]
FLOATS = st.floats(width=32) | st.sampled_from([-math.inf, math.inf, math.nan, 0.0, -0.0, 1.0])
ROWS = st.integers(1, 70).flatmap(lambda size: st.lists(FLOATS, min_size=size, max_size=size))

Make = Callable[..., NativeSampler]


@pytest.fixture(scope="module", params=builds())
def make(request: pytest.FixtureRequest) -> Make:
    def make(vocab_size: int, *, threads: int = 1) -> NativeSampler:
        model = NativeTransformer(CONFIG, build=request.param, threads=threads)
        return NativeSampler(model, vocab_size)

    return make


def draw(
    sampler: Sampler,
    logits_SV: Tensor,
    positions: Sequence[int],
    params: Sequence[SamplingParams],
    contexts: Sequence[Context | None] | None = None,
) -> list[int]:
    return [token.token_id for token in sampler.sample(logits_SV, positions, params, contexts)]


def check_same(
    sampler: Sampler, logits_SV: Tensor, positions: Sequence[int], params: Sequence[SamplingParams]
) -> None:
    expected = draw(Sampler(sampler.vocab_size), logits_SV, positions, params)
    assert draw(sampler, logits_SV, positions, params) == expected


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@given(row=ROWS, seed=st.integers(-(1 << 63), (1 << 63) - 1), position=st.integers(0, 1 << 40))
def test_any_numbers_are_drawn_from_alike(
    make: Make, row: list[float], seed: int, position: int
) -> None:
    params = [replace(way, seed=seed) for way in ALL_WAYS[::7]]
    logits_SV = torch.tensor([row]).expand(len(params), -1)
    check_same(make(len(row)), logits_SV, [position] * len(params), params)


@pytest.mark.parametrize("spread", [0.01, 1, 4, 30])
@pytest.mark.parametrize("vocab_size", [1, 15, 16, 300, 5_003])
def test_each_way_to_draw(make: Make, vocab_size: int, spread: float) -> None:
    params = [replace(way, seed=seed) for seed, way in enumerate(ALL_WAYS)]
    logits_SV = randn(len(params), vocab_size) * spread
    check_same(make(vocab_size), logits_SV, range(len(params)), params)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("vocab_size", [1, 7, 16, 300, 5_003])
def test_only_what_is_allowed_is_drawn(make: Make, vocab_size: int, share: float) -> None:
    ways = [way for way in ALL_WAYS if math.isfinite(way.temperature)]
    params = [replace(way, seed=seed) for seed, way in enumerate(ways)]
    logits_SV = randn(len(params), vocab_size) * 3
    rng = random.Random(vocab_size)
    allowed = [
        [i == row % vocab_size or rng.random() < share for i in range(vocab_size)]
        for row in range(len(params))
    ]
    contexts = [allowing(each) if row % 5 else None for row, each in enumerate(allowed)]
    expected = draw(Sampler(vocab_size), logits_SV, range(len(params)), params, contexts)
    drawn = draw(make(vocab_size), logits_SV, range(len(params)), params, contexts)
    assert drawn == expected
    for row, token_id in enumerate(drawn):
        assert contexts[row] is None or allowed[row][token_id]


@pytest.mark.parametrize("way", USUAL, ids=str)
def test_something_is_drawn_even_where_nothing_may_be(make: Make, way: SamplingParams) -> None:
    (token_id,) = draw(make(100), randn(1, 100), [0], [way], [allowing([])])
    assert 0 <= token_id < 100


def allowing(allowed: Sequence[bool]) -> Context:
    """Without the bytes at the end that allow nothing, which may be left out."""
    bits = np.packbits(np.array(allowed, dtype=bool), bitorder="little").tobytes().rstrip(b"\0")
    return Context(allowed=lambda: bits)


@pytest.mark.parametrize("way", USUAL, ids=str)
def test_what_may_not_be_drawn_may_be_anything(make: Make, way: SamplingParams) -> None:
    logits_SV = randn(1, 100)
    logits_SV[0, :50] = torch.tensor([math.nan, math.inf, 3e38, 7.0, -math.inf] * 10)
    context = allowing([i >= 50 for i in range(100)])
    (drawn,) = draw(make(100), logits_SV, [0], [way], [context])
    assert drawn == draw(Sampler(100), logits_SV, [0], [way], [context])[0] >= 50


@pytest.mark.parametrize("steps", [1, 2, 16])
def test_ties(make: Make, steps: int) -> None:
    """Few values, so that many logits are equal."""
    params = [replace(way, seed=seed) for seed, way in enumerate(ALL_WAYS)]
    logits_SV = (randn(len(params), 1_003) * steps).round() / steps
    check_same(make(1_003), logits_SV, range(len(params)), params)


@pytest.mark.parametrize("poison", [math.nan, -math.nan, math.inf, -math.inf, 3e38, -3e38])
@pytest.mark.parametrize("places", [[70], [0, 69], range(1, 71), range(71)], ids=len)
def test_what_is_no_number(make: Make, poison: float, places: Sequence[int]) -> None:
    params = [replace(way, seed=seed) for seed, way in enumerate(ALL_WAYS)]
    logits_SV = randn(len(params), 71)
    logits_SV[:, list(places)] = poison
    check_same(make(71), logits_SV, range(len(params)), params)


@pytest.mark.parametrize("spread", [0.5, 3])
def test_a_vocabulary_of_the_usual_size(make: Make, spread: float) -> None:
    params = [replace(USUAL[i % len(USUAL)], seed=i) for i in range(200)]
    logits_SV = randn(len(params), LARGE) * spread
    logits_SV[:, ::1_000] += 2 * spread
    check_same(make(LARGE, threads=2), logits_SV, range(len(params)), params)


@pytest.mark.parametrize("context", [None, Context(allowed=lambda: b"\x7f" * (LARGE // 8))])
def test_nearly_all_rows_are_decided(make: Make, context: Context | None) -> None:
    """Else it would be slow."""
    params = [replace(USUAL[i % len(USUAL)], seed=i) for i in range(400)]
    logits_SV = randn(1, LARGE).expand(400, -1) * 3
    left: list[int] = []

    def count(_: Sampler, logits_SV: Tensor, draws: Sequence[object]) -> Tensor:
        left.append(len(draws))
        return torch.zeros(len(draws), dtype=torch.int64)

    with patch.object(Sampler, "draw", count):
        draw(make(LARGE), logits_SV, range(400), params, [context] * 400)
    assert sum(left) <= 4


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_draws_the_same_alone_and_in_any_batch(make: Make, threads: int) -> None:
    params = [replace(way, seed=seed) for seed, way in enumerate(ALL_WAYS[:: 5 + threads])]
    positions = [3 * i for i in range(len(params))]
    logits_SV = randn(len(params), 5_003) * 3
    together = draw(make(5_003, threads=threads), logits_SV, positions, params)
    alone = make(5_003)
    for row, token_id in enumerate(together):
        one = slice(row, row + 1)
        assert draw(alone, logits_SV[one], positions[one], params[one]) == [token_id]
    order = random.Random(0).sample(range(len(params)), len(params))
    shuffled = draw(
        alone, logits_SV[order], [positions[i] for i in order], [params[i] for i in order]
    )
    assert shuffled == [together[i] for i in order]


def test_logits_may_be_part_of_wider_rows(make: Make) -> None:
    wide_SV = randn(len(USUAL), 400)
    check_same(make(333), wide_SV[:, :333], range(len(USUAL)), USUAL)


def sample(sampler: Sampler, logits_SV: Tensor) -> list[SampledToken]:
    params = [replace(way, num_logprobs=3, logit_bias={7: 2.0}) for way in USUAL]
    contexts = [Context(forbidden_ids=range(8, 400, 3))] * len(params)
    return sampler.sample(logits_SV, range(len(params)), params, contexts)


def test_changes_come_before_and_logprobs_after(make: Make) -> None:
    logits_SV = randn(len(USUAL), 400)
    assert sample(make(400), logits_SV) == sample(Sampler(400), logits_SV)


def test_halves_and_inputs_stay_as_they_are(make: Make) -> None:
    logits_SV = randn(len(USUAL), 400).bfloat16()
    before = logits_SV.clone()
    check_same(make(400), logits_SV, range(len(USUAL)), USUAL)
    assert torch.equal(logits_SV, before)


def test_no_rows(make: Make) -> None:
    assert draw(make(10), torch.empty(0, 10), [], []) == []

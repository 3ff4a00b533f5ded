"""Sampling: the distribution drawn from, the noise, and that a row draws the same in any company.

Statistics are of fixed seeds, so they pass or fail for good.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st

from model.batch import SampledToken, SamplingParams
from model.sampling import Sampler, argmax, log_noise, ranked_ids, row_key
from tests.distributions import chi_square_p, exact_probs

UINT32 = (1 << 32) - 1
LOGITS = [2.0, 1.0, 1.0, 0.5, 0.0, -0.5, -1.0, -math.inf, 1.5, -3.0]


def draw_ids(
    logits_SV: torch.Tensor, positions: Sequence[int], params: Sequence[SamplingParams]
) -> list[int]:
    sampled = Sampler(logits_SV.shape[-1]).sample(logits_SV, positions, params)
    return [token.token_id for token in sampled]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0, seed=3),
        SamplingParams(top_k=1),
        SamplingParams(top_k=2),
        SamplingParams(top_k=4, temperature=1.5),
        SamplingParams(top_k=10),
        SamplingParams(top_k=1_000),
        SamplingParams(top_p=0.05),
        SamplingParams(top_p=0.6),
        SamplingParams(top_p=0.9, temperature=0.7),
        SamplingParams(top_p=0.9999),
        SamplingParams(min_p=0.2),
        SamplingParams(min_p=0.3, temperature=2.0),
        SamplingParams(min_p=1.0),
        SamplingParams(top_k=5, top_p=0.8),
        SamplingParams(top_k=4, min_p=0.3),
        SamplingParams(top_p=0.9, min_p=0.1),
        SamplingParams(top_k=6, top_p=0.9, min_p=0.1, temperature=1.3, seed=-7),
    ],
    ids=str,
)
def test_draws_follow_the_exact_distribution(params: SamplingParams) -> None:
    num_draws = 20_000
    logits_SV = torch.tensor(LOGITS).expand(num_draws, -1)
    ids = draw_ids(logits_SV, range(num_draws), [params] * num_draws)
    observed = torch.bincount(torch.tensor(ids), minlength=len(LOGITS)).tolist()
    assert chi_square_p(observed, exact_probs(LOGITS, params)) > 1e-3


def test_seeds_are_as_good_a_source_as_positions() -> None:
    num_draws = 20_000
    params = [SamplingParams(seed=seed) for seed in range(num_draws)]
    ids = draw_ids(torch.tensor(LOGITS).expand(num_draws, -1), [5] * num_draws, params)
    observed = torch.bincount(torch.tensor(ids), minlength=len(LOGITS)).tolist()
    assert chi_square_p(observed, exact_probs(LOGITS, SamplingParams())) > 1e-3


def test_rare_tokens_are_drawn_as_often_as_they_should() -> None:
    """The tail is where too few bits of noise would show: 3,000 tokens of 1e-5 each."""
    num_draws, num_rare = 2_000, 3_000
    probs = torch.full((1 + num_rare,), 1e-5)
    probs[0] = 1 - 1e-5 * num_rare
    logits_SV = probs.log().expand(num_draws, -1)
    ids = draw_ids(logits_SV, range(num_draws), [SamplingParams()] * num_draws)
    rare = [token_id for token_id in ids if token_id > 0]
    assert abs(len(rare) - 60) < 4 * math.sqrt(60)
    assert len(set(rare)) > 0.9 * len(rare)


def test_the_lowest_ids_win_ties_at_the_top_k_border() -> None:
    logits_SV = torch.tensor([[1.0, 2.0, 1.0, 1.0, 1.0]]).expand(500, -1)
    ids = draw_ids(logits_SV, range(500), [SamplingParams(top_k=3)] * 500)
    assert set(ids) == {0, 1, 2}


@pytest.mark.parametrize(("top_p", "kept"), [(1e-9, {1}), (0.5, {1}), (0.51, {1, 3})])
def test_top_p_ends_with_the_token_that_reaches_the_sum(top_p: float, kept: set[int]) -> None:
    logits_SV = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0]]).expand(200, -1)
    assert set(draw_ids(logits_SV, range(200), [SamplingParams(top_p=top_p)] * 200)) == kept


MIXED = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=0.7, num_logprobs=3),
    SamplingParams(top_k=40),
    SamplingParams(top_k=700, top_p=0.95),
    SamplingParams(top_p=0.95, num_logprobs=0),
    SamplingParams(top_p=0.99, temperature=2.0),
    SamplingParams(min_p=0.05),
]


def mixed_batch() -> tuple[torch.Tensor, list[int], list[SamplingParams]]:
    """64 rows over an odd vocabulary, some with their top-p beyond the first candidates."""
    generator = torch.Generator().manual_seed(0)
    logits_SV = torch.randn(64, 5_003, generator=generator) * torch.linspace(0.5, 5, 64)[:, None]
    return logits_SV, [3 * i for i in range(64)], [replace(MIXED[i % 8], seed=i) for i in range(64)]


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_draws_the_same_alone_and_in_any_batch(num_threads: int) -> None:
    logits_SV, positions, params = mixed_batch()
    sampler, threads_before = Sampler(logits_SV.shape[-1]), torch.get_num_threads()
    together = sampler.sample(logits_SV, positions, params)
    torch.set_num_threads(num_threads)
    try:
        for row, token in enumerate(together):
            one = slice(row, row + 1)
            assert sampler.sample(logits_SV[one], positions[one], params[one]) == [token]
        order = random.Random(0).sample(range(64), 64)
        shuffled = sampler.sample(
            logits_SV[order], [positions[i] for i in order], [params[i] for i in order]
        )
        assert shuffled == [together[i] for i in order]
    finally:
        torch.set_num_threads(threads_before)


def test_filtered_rows_equal_a_search_through_the_whole_vocabulary() -> None:
    logits_SV, positions, params = mixed_batch()
    drawn = draw_ids(logits_SV, positions, params)
    ids_V = torch.arange(logits_SV.shape[-1], dtype=torch.int32)
    for row, (position, p) in enumerate(zip(positions, params, strict=True)):
        if p.temperature == 0:
            continue
        probs_V = torch.tensor(exact_probs(logits_SV[row].tolist(), p), dtype=torch.float64)
        race_V = probs_V.log() - log_noise(ids_V, key_tensor([(p.seed, position)]))[0]
        assert drawn[row] == race_V.argmax().item()


def test_a_greedy_batch_takes_the_first_of_the_most_likely() -> None:
    logits_SV = torch.tensor([[0.0, 3.0, 3.0], [5.0, 5.0, -math.inf], [-0.0, 0.0, -1.0]])
    for temperature in (0.0, 1e-300, 9e-6):
        params = [SamplingParams(temperature=temperature)] * 3
        assert draw_ids(logits_SV, [0, 1, 2], params) == [1, 0, 0]


def test_a_low_temperature_is_nearly_greedy() -> None:
    logits_SV = torch.randn(64, 1_000, generator=torch.Generator().manual_seed(1)) * 100
    cold = [SamplingParams(temperature=2e-5, top_p=top_p) for top_p in (1.0, 0.9) * 32]
    greedy = [SamplingParams(temperature=0)] * 64
    assert draw_ids(logits_SV, range(64), cold) == draw_ids(logits_SV, range(64), greedy)


@pytest.mark.parametrize("params", MIXED, ids=str)
def test_the_only_finite_token_is_drawn(params: SamplingParams) -> None:
    logits_SV = torch.full((300, 512), -math.inf)
    logits_SV[:, 77] = -50.0
    assert set(draw_ids(logits_SV, range(300), [params] * 300)) == {77}


@pytest.mark.parametrize("poison", [math.nan, -math.nan, math.inf, -math.inf])
def test_a_row_of_no_numbers_harms_no_other(poison: float) -> None:
    logits_SV, positions, params = mixed_batch()
    clean = Sampler(5_003).sample(logits_SV, positions, params)
    logits_SV[8:16] = poison
    logits_SV[16:24, 5] = poison
    mixed = Sampler(5_003).sample(logits_SV, positions, params)
    assert mixed[:8] + mixed[24:] == clean[:8] + clean[24:]
    assert all(0 <= token.token_id < 5_003 for token in mixed)


def test_extreme_seeds_draw_unlike_each_other() -> None:
    seeds = [0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 32, -(1 << 32)]
    draws = {
        seed: tuple(draw_ids(torch.zeros(50, 100), range(50), [SamplingParams(seed=seed)] * 50))
        for seed in seeds
    }
    assert len(set(draws.values())) == len(seeds)


def test_halves_and_inputs_stay_as_they_are() -> None:
    logits_SV, positions, params = mixed_batch()
    before = logits_SV.clone()
    draw_ids(logits_SV, positions, params)
    assert torch.equal(logits_SV, before)
    halves = logits_SV.bfloat16()
    assert draw_ids(halves, positions, params) == draw_ids(halves.float(), positions, params)


def sample_logprobs(
    logits_SV: torch.Tensor, params: Sequence[SamplingParams]
) -> list[SampledToken]:
    return Sampler(logits_SV.shape[-1]).sample(logits_SV, range(len(params)), params)


def test_logprobs_are_of_the_raw_logits() -> None:
    logits_SV = torch.randn(6, 500, generator=torch.Generator().manual_seed(2)) * 4
    ways = [replace(p, num_logprobs=k) for k, p in enumerate(MIXED[:6])]
    expected_SV = logits_SV.log_softmax(-1)
    for k, token in enumerate(sample_logprobs(logits_SV, ways)):
        assert token.logprobs is not None
        assert token.logprobs.chosen == expected_SV[k, token.token_id].item()
        values, ids = expected_SV[k].topk(k)
        assert token.logprobs.top == list(zip(ids.tolist(), values.tolist(), strict=True))


def test_logprobs_come_to_those_who_ask() -> None:
    counts = [None, 2, None, 0, 9]
    params = [SamplingParams(num_logprobs=count) for count in counts]
    tokens = sample_logprobs(torch.zeros(5, 4), params)
    lens = [None if t.logprobs is None else len(t.logprobs.top) for t in tokens]
    assert lens == [None, 2, None, 0, 4]


def test_equal_logprobs_come_lower_id_first() -> None:
    logits_SV = torch.tensor([[0.0, 1.0, 0.0, 1.0, 1.0, -0.0]])
    [token] = sample_logprobs(logits_SV, [SamplingParams(num_logprobs=5)])
    assert token.logprobs is not None
    assert [token_id for token_id, _ in token.logprobs.top] == [1, 3, 4, 0, 2]


FLOATS = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0])
ROWS = st.integers(1, 24).flatmap(
    lambda size: st.lists(st.lists(FLOATS, min_size=size, max_size=size), min_size=1, max_size=3)
)


@given(rows=ROWS)
def test_ranking_equals_a_stable_sort(rows: list[list[float]]) -> None:
    ranked = ranked_ids(torch.tensor(rows), len(rows[0])).tolist()
    assert ranked == [sorted(range(len(row)), key=row.__getitem__, reverse=True) for row in rows]


@given(rows=ROWS, repeat=st.sampled_from([1, 2, 64, 1_024]))
def test_argmax_equals_that_of_torch(rows: list[list[float]], repeat: int) -> None:
    values = torch.tensor(rows).repeat(1, repeat)
    assert torch.equal(argmax(values), values.argmax(-1))


def key_tensor(seeds_and_positions: Sequence[tuple[int, int]]) -> torch.Tensor:
    keys = [row_key(seed, position) for seed, position in seeds_and_positions]
    return torch.tensor(keys, dtype=torch.uint64).view(torch.int32).view(-1, 2)


def uniform(num_ids: int, seeds_and_positions: Sequence[tuple[int, int]]) -> torch.Tensor:
    """The noise, undone to what it was made of: uniform in (0, 1)."""
    ids_V = torch.arange(num_ids, dtype=torch.int32)
    return -torch.expm1(-log_noise(ids_V, key_tensor(seeds_and_positions)).double().exp())


def reference_log_noise(seed: int, position: int, token_id: int) -> float:
    """The same hash in Python's integers."""
    key = row_key(seed, position)
    bits = token_id ^ (key & UINT32)
    bits = ((bits ^ bits >> 16) * 0x21F0AAAD) & UINT32
    bits = ((bits ^ bits >> 15 ^ key >> 32) * 0x735A2D97) & UINT32
    bits = (bits ^ bits >> 15) & 0x7FFFFFFF
    return math.log(-math.log1p(-(bits + 0.5) * (1 - 2**-24) / 2**31))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 7), (-1, 8_191), ((1 << 63) - 1, 3)])
def test_noise_is_the_hash_it_says(seed: int, position: int) -> None:
    ids = [0, 1, 2, 255, 49_151, 262_143]
    ours = log_noise(torch.tensor(ids, dtype=torch.int32), key_tensor([(seed, position)]))[0]
    expected = [reference_log_noise(seed, position, token_id) for token_id in ids]
    assert ours.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_keys_never_change() -> None:
    """A seed gives the same text in the next release. SplitMix64 begins, from 0, with `first`."""
    first = 0xE220A8397B1DCDAF
    assert row_key(0, first) == first
    assert row_key(0, 0) == 0xA706DD2F4D197E6F
    assert row_key(-1, 2) == row_key((1 << 64) - 1, 2)


def test_noise_is_uniform_and_finite() -> None:
    uniform_SV = uniform(4_096, [(9, position) for position in range(500)])
    counts = torch.histc(uniform_SV.float(), bins=1_000, min=0, max=1).int().tolist()
    assert sum(counts) == uniform_SV.numel()
    assert chi_square_p(counts, [1e-3] * 1_000) > 1e-3


@pytest.mark.parametrize("bits", [0, 0x7FFFFFFF])
def test_the_ends_of_the_noise_are_finite(bits: int) -> None:
    """An id that hashes to the given bits, found by running the hash backwards."""
    token_id = bits ^ bits >> 15 ^ bits >> 30
    token_id = token_id * pow(0x735A2D97, -1, 1 << 32) & UINT32
    token_id ^= token_id >> 15 ^ token_id >> 30
    token_id = token_id * pow(0x21F0AAAD, -1, 1 << 32) & UINT32
    token_id ^= token_id >> 16
    ids = torch.tensor([token_id], dtype=torch.uint32).view(torch.int32)
    noise = log_noise(ids, torch.zeros(1, 2, dtype=torch.int32)).item()
    u = (bits + 0.5) / 2**31
    assert noise == pytest.approx(math.log(-math.log1p(-min(u, 1 - 2**-24))), rel=1e-3)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, position) for position in range(64)],
        [(seed, 0) for seed in range(64)],
        [(seed << 32, 1 << 20) for seed in range(-32, 32)],
        [(i, i) for i in range(64)],
    ],
    ids=["positions", "seeds", "high bits of seeds", "both"],
)
def test_noise_is_uncorrelated_across_rows_and_ids(rows: list[tuple[int, int]]) -> None:
    num_ids = 16_384
    noise_SV = (uniform(num_ids, rows) - 0.5) * math.sqrt(12)  # mean 0, variance 1
    between_rows = noise_SV @ noise_SV.T / math.sqrt(num_ids)
    between_rows.fill_diagonal_(0)
    assert between_rows.abs().max().item() < 5
    for lag in (1, 2, 3, 64, 1_000):
        within = (noise_SV[:, lag:] * noise_SV[:, :-lag]).sum(-1) / math.sqrt(num_ids - lag)
        shifted = (noise_SV[1:, lag:] * noise_SV[:-1, :-lag]).sum(-1) / math.sqrt(num_ids - lag)
        assert within.abs().max().item() < 5
        assert shifted.abs().max().item() < 5


@pytest.mark.parametrize("vocab_size", [10, 257, 4096])
def test_a_tokens_rank_is_one_more_than_there_are_likelier_ones(vocab_size: int) -> None:
    rng = random.Random(vocab_size)
    logits = [float(rng.randrange(vocab_size)) for _ in range(vocab_size)]
    logits_SV = torch.tensor(logits).expand(20, -1)
    params = SamplingParams(num_logprobs=0, temperature=2.0)
    for token in Sampler(vocab_size).sample(logits_SV, range(20), [params] * 20):
        assert token.logprobs is not None
        assert token.logprobs.rank == 1 + sum(x > logits[token.token_id] for x in logits)

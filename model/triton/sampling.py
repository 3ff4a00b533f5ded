"""model.sampling's draws in Triton: the same tokens for the same seeds, without the host.

Where top-k and top-p end is found without sorting: what they keep is a first part of the tokens in
falling order, which ends at some logit, whose bits are found four at a time, by counting and
weighing the tokens above each of sixteen candidates. Of the tokens with that very logit, the lower
ids are kept. A row's sums don't depend on other rows; but they run in another order than on a CPU,
so that a token at which top-p ends to within rounding may be kept by one of the two alone.

Shapes: S sequences, V vocabulary, W tokens of a block, D = 16 digits, C blocks of a vocabulary.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.sampling import GREEDY_BELOW, NOISE_STEP, Columns, Draw, Sampler

BLOCK_W = 4096
SEARCH_W = 1024
"""Smaller, as sixteen candidates are held against it."""

_GREEDY_BELOW, _NOISE_STEP = tl.constexpr(GREEDY_BELOW), tl.constexpr(NOISE_STEP)
_LEAST_WEIGHT = tl.constexpr(1e-38)
_SIGN = tl.constexpr(1 << 31)


class TritonSampler(Sampler):
    """A Sampler that draws here."""

    def draw(self, logits_SV: Tensor, draws: Sequence[Draw]) -> Tensor:
        if not draws:
            return torch.empty(0, dtype=torch.int64, device=logits_SV.device)
        columns = Columns.of(draws, vocab_size=self.vocab_size, device=logits_SV.device)
        return self.draw_by(logits_SV, columns)

    def draw_by(self, logits_SV: Tensor, columns: Columns) -> Tensor:
        return draw(logits_SV, columns)


def draw(logits_SV: Tensor, columns: Columns) -> Tensor:
    """One id a row; float32 logits, whose rows are contiguous."""
    S, V = logits_SV.shape
    device = logits_SV.device
    seeds_S, positions_S, temperatures_S, top_ks_S, top_ps_S, min_ps_S = columns
    last_S2 = torch.empty(S, 2, dtype=torch.int64, device=device)
    tops_S = torch.empty(S, device=device)
    find_last[S,](
        logits_SV, temperatures_S, top_ks_S, top_ps_S, min_ps_S, last_S2, tops_S,
        logits_SV.stride(0), V, BLOCK=SEARCH_W,
    )  # fmt: skip
    num_blocks = triton.cdiv(V, BLOCK_W)
    scores_SC = torch.empty(S, num_blocks, device=device)
    ids_SC = torch.empty(S, num_blocks, dtype=torch.int64, device=device)
    race[S, num_blocks](
        logits_SV, temperatures_S, min_ps_S, last_S2, tops_S, seeds_S, positions_S,
        scores_SC, ids_SC, logits_SV.stride(0), V, BLOCK=BLOCK_W,
    )  # fmt: skip
    ids_S = torch.empty(S, dtype=torch.int64, device=device)
    pick_winner[S,](scores_SC, ids_SC, ids_S, num_blocks, C=triton.next_power_of_2(num_blocks))
    return ids_S


@triton.jit
def find_last(
    logits, temperatures, top_ks, top_ps, min_ps, last, tops, stride,
    V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The order of the last logit that top-k and top-p keep, the last id that they keep of those
    that have it, and the highest score: grid (S,)."""
    row = tl.program_id(0).to(tl.int64)
    temperature, top_k = tl.load(temperatures + row), tl.load(top_ks + row).to(tl.int32)
    top_p = tl.load(top_ps + row)
    order, last_id = tl.full([], 0, tl.uint32), tl.full([], V, tl.int32)
    top = tl.full([], 0.0, tl.float32)
    is_limited = (top_k < V) | (top_p < float("inf")) | (tl.load(min_ps + row) > 0)
    if (temperature >= _GREEDY_BELOW) & is_limited:
        logits += row * stride
        top, total = _mass(logits, temperature, V, BLOCK)
        room = top_k
        if top_k < V:
            order, count, mass = _search(logits, temperature, top, top_k, float("inf"), V, BLOCK)
            room = top_k - count
            total = mass + room * _weight_of(order, temperature, top)
        if top_p < float("inf"):
            most = top_p * total
            order, count, mass = _search(logits, temperature, top, top_k, most, V, BLOCK)
            weight = tl.maximum(_weight_of(order, temperature, top), _LEAST_WEIGHT)
            fitting = tl.minimum(tl.ceil((most - mass) / weight), V).to(tl.int32)
            room = tl.minimum(top_k - count, fitting)
        last_id = _last_id(logits, order, room, V, BLOCK)
    tl.store(tops + row, top)
    tl.store(last + row * 2, order.to(tl.int64))
    tl.store(last + row * 2 + 1, last_id.to(tl.int64))


@triton.jit
def race(
    logits, temperatures, min_ps, last, tops, seeds, positions, scores, ids, stride,
    V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a block of the vocabulary, the best token and its score: grid (S, C)."""
    row = tl.program_id(0).to(tl.int64)
    ids_W = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logits_W = tl.load(logits + row * stride + ids_W, mask=ids_W < V, other=float("-inf"))
    temperature, min_p = tl.load(temperatures + row), tl.load(min_ps + row)
    scores_W = logits_W
    if temperature >= _GREEDY_BELOW:
        order, last_id = tl.load(last + row * 2).to(tl.uint32), tl.load(last + row * 2 + 1)
        orders_W = _order(logits_W)
        is_kept_W = (orders_W > order) | ((orders_W == order) & (ids_W <= last_id))
        key = _mix64(_mix64(tl.load(seeds + row)) ^ tl.load(positions + row).to(tl.uint64))
        scores_W = tl.div_rn(logits_W, temperature)
        if min_p > 0:
            is_kept_W &= tl.exp(scores_W - tl.load(tops + row)) >= min_p
        scores_W = tl.where(is_kept_W, scores_W, float("-inf")) - _log_noise(ids_W, key)
    scores_W = tl.where((scores_W == scores_W) & (ids_W < V), scores_W, float("-inf"))
    best, index = tl.max(scores_W, 0, return_indices=True, return_indices_tie_break_left=True)
    at = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(scores + at, best)
    tl.store(ids + at, (tl.program_id(1) * BLOCK + index).to(tl.int64))


@triton.jit
def pick_winner(scores, ids, out, num_blocks, C: tl.constexpr):
    """The best of the blocks' best, the first of equals: grid (S,)."""
    row = tl.program_id(0).to(tl.int64)
    blocks_C = tl.arange(0, C)
    at_C = row * num_blocks + blocks_C
    scores_C = tl.load(scores + at_C, mask=blocks_C < num_blocks, other=float("-inf"))
    index = tl.argmax(scores_C, 0, tie_break_left=True)
    tl.store(out + row, tl.load(ids + row * num_blocks + index))


@triton.jit
def _mass(logits, temperature, V: tl.constexpr, BLOCK: tl.constexpr):
    """The highest score, and the sum of all weights, which are e to the score's distance to it."""
    top_W = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, V, BLOCK):
        top_W = tl.maximum(top_W, _block(logits, start, V, BLOCK))
    top = tl.div_rn(tl.max(top_W, 0), temperature)
    mass = 0.0
    for start in range(0, V, BLOCK):
        scores_W = tl.div_rn(_block(logits, start, V, BLOCK), temperature)
        mass += tl.sum(tl.exp(scores_W - top), 0)
    return top, mass


@triton.jit
def _search(logits, temperature, top, top_k, most, V: tl.constexpr, BLOCK: tl.constexpr):
    """The least order that fewer than top_k tokens, of together less than the most mass, are above;
    and how many they are, and their mass."""
    digits_D = tl.arange(0, 16)
    order, count, mass = tl.full([], 0, tl.uint32), tl.full([], 0, tl.int32), 0.0
    for step in range(8):
        shift = 28 - 4 * step
        # The highest of the orders that begin with the digits found and this one.
        rest = (tl.full([], 1, tl.uint32) << shift) - 1
        highest_D = order | (digits_D.to(tl.uint32) << shift) | rest
        counts_D, masses_D = tl.zeros([16], tl.int32), tl.zeros([16], tl.float32)
        for start in range(0, V, BLOCK):
            logits_W = _block(logits, start, V, BLOCK)
            weights_W = tl.exp(tl.div_rn(logits_W, temperature) - top)
            is_above_WD = _order(logits_W)[:, None] > highest_D[None, :]
            counts_D += tl.sum(is_above_WD.to(tl.int32), 0)
            masses_D += tl.sum(tl.where(is_above_WD, weights_W[:, None], 0.0), 0)
        is_enough_D = (counts_D < top_k) & (masses_D < most)
        digit = tl.minimum(16 - tl.sum(is_enough_D.to(tl.int32), 0), 15)
        order |= digit.to(tl.uint32) << shift
        count = tl.sum(tl.where(digits_D == digit, counts_D, 0), 0)
        mass = tl.sum(tl.where(digits_D == digit, masses_D, 0.0), 0)
    return order, count, mass


@triton.jit
def _last_id(logits, order, room, V: tl.constexpr, BLOCK: tl.constexpr):
    """Of the tokens of that order, the last that there is room for, by rising id."""
    num_before, last_id = tl.full([], 0, tl.int32), tl.full([], -1, tl.int32)
    for start in range(0, V, BLOCK):
        ids_W = start + tl.arange(0, BLOCK)
        is_equal_W = (_order(_block(logits, start, V, BLOCK)) == order) & (ids_W < V)
        ranks_W = num_before + tl.cumsum(is_equal_W.to(tl.int32), 0)
        last_id = tl.maximum(
            last_id, tl.max(tl.where(is_equal_W & (ranks_W <= room), ids_W, -1), 0)
        )
        num_before += tl.sum(is_equal_W.to(tl.int32), 0)
    return last_id


@triton.jit
def _block(logits, start, V: tl.constexpr, BLOCK: tl.constexpr):
    ids_W = start + tl.arange(0, BLOCK)
    return tl.load(logits + ids_W, mask=ids_W < V, other=float("-inf"))


@triton.jit
def _order(logits):
    """Integers that sort as the floats do."""
    bits = (logits + 0.0).to(tl.uint32, bitcast=True)  # -0.0 + 0.0 is 0.0
    return bits ^ tl.where(bits >= _SIGN, 0xFFFFFFFF, _SIGN).to(tl.uint32)


@triton.jit
def _weight_of(order, temperature, top):
    bits = order ^ tl.where(order >= _SIGN, _SIGN, 0xFFFFFFFF).to(tl.uint32)
    return tl.exp(tl.div_rn(bits.to(tl.float32, bitcast=True), temperature) - top)


@triton.jit
def _log_noise(ids, key):
    """model.sampling.log_noise. log1p by Kahan's formula, as Triton has none of its own."""
    bits = ids.to(tl.uint32) ^ key.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * tl.full([], 0x21F0AAAD, tl.uint32)
    bits = (bits ^ (bits >> 15) ^ (key >> 32).to(tl.uint32)) * tl.full([], 0x735A2D97, tl.uint32)
    bits = (bits ^ (bits >> 15)) & 0x7FFFFFFF
    uniform = (bits.to(tl.float32) + 0.5) * _NOISE_STEP
    rest = 1.0 - uniform
    taken = 1.0 - rest  # uniform, as far as rest was rounded
    noise = -tl.log(rest) * tl.div_rn(uniform, tl.where(taken == 0, 1.0, taken))
    return tl.log(tl.where(taken == 0, uniform, noise))


@triton.jit
def _mix64(state):
    """model.sampling._mix64."""
    z = state.to(tl.uint64) + 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)

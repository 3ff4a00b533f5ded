"""Logits to token ids: argmax, or a draw after top-k, top-p and min-p; and logprobs.

A draw is a race (the Gumbel-max trick, Maddison et al. 2014, https://arxiv.org/abs/1411.0030):
token i takes a time that is exponentially distributed with rate p_i, and the first one wins. So the
winner has the largest logit_i / temperature - log(noise_i), and nothing is summed over the
vocabulary. The noise is a hash of (seed, position, i): there is no generator and no state, and a
row draws the same alone, in any batch, after preemption and after a restart.

First comes what model.logits changes. Then filters, in the order of transformers and llama.cpp:
temperature, top-k, top-p, min-p. Each
keeps a first part of the tokens in order of falling logit, the lower id first among equals; top-p
includes the token that reaches the sum. Logprobs are of the logits as they came, before all this.

A logit of -inf is never drawn while another is finite. A row with NaN draws some id of the
vocabulary, its logprobs are NaN, and the other rows don't notice.

Shapes: S sequences, V vocabulary, W candidates in order of falling logit.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from model.batch import Context, SampledToken, SamplingParams, TokenLogprobs
from model.logits import adjusted

GREEDY_BELOW = 1e-5
"""Lower temperatures are argmax, as in vLLM: logits divided by less overflow in the end."""
NUM_CANDIDATES = 256
"""Where the search for the end of top-p or min-p begins; it goes on with WIDER times as many."""
WIDER = 16

UINT64 = (1 << 64) - 1
NOISE_STEP = (1 - 2**-24) / 2**31
"""Maps 31 bits into (0, 1): their largest float32, 2^31, to the float32 below 1."""

Draw = tuple[int, SamplingParams]
"""The position of the token to draw, and how to draw it."""


class Columns(NamedTuple):
    """How each row draws, on its device. Only the positions change from step to step."""

    seeds_S: torch.Tensor
    positions_S: torch.Tensor
    temperatures_S: torch.Tensor
    top_ks_S: torch.Tensor
    """The size of the vocabulary where all are kept."""
    top_ps_S: torch.Tensor
    """Infinite where all are kept, in spite of rounding."""
    min_ps_S: torch.Tensor

    @classmethod
    def of(cls, draws: Sequence[Draw], *, vocab_size: int, device: torch.device) -> "Columns":
        positions, params = zip(*draws, strict=True)
        top_ks = [min(p.top_k or vocab_size, vocab_size) for p in params]
        top_ps = [p.top_p if p.top_p < 1 else math.inf for p in params]

        def column(values: Iterable[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([*values], dtype=dtype, device=device)

        return cls(
            column((p.seed for p in params), torch.int64),
            column(positions, torch.int64),
            column((p.temperature for p in params), torch.float32),
            column(top_ks, torch.int64),
            column(top_ps, torch.float32),
            column((p.min_p for p in params), torch.float32),
        )

    def draws(self) -> list[Draw]:
        """The same for the host, which waits for the device."""
        return [
            (position, SamplingParams(seed=seed, temperature=t, top_k=k, top_p=p, min_p=m))
            for seed, position, t, k, p, m in zip(*(c.tolist() for c in self), strict=True)
        ]


class Likelihoods(NamedTuple):
    """Of ids, and of the most likely ones at their places; where they were computed."""

    logprobs_S: torch.Tensor
    ranks_S: torch.Tensor
    top_ids_SW: torch.Tensor
    top_logprobs_SW: torch.Tensor

    def told(self, counts: Iterable[int]) -> list[TokenLogprobs]:
        """counts: how many of the most likely ones each id is told with. Waits for the device."""
        columns = (column.tolist() for column in self)
        return [
            TokenLogprobs(logprob, list(zip(ids, values, strict=True))[:count], rank)
            for count, logprob, rank, ids, values in zip(counts, *columns, strict=True)
        ]


class Sampler:
    def __init__(self, vocab_size: int, *, device: torch.device | str = "cpu") -> None:
        self.vocab_size = vocab_size
        self.ids_V = torch.arange(vocab_size, dtype=torch.int32, device=device)

    def sample(
        self,
        logits_SV: torch.Tensor,
        positions: Sequence[int],
        params: Sequence[SamplingParams],
        contexts: Sequence[Context | None] | None = None,
    ) -> list[SampledToken]:
        """One token a row; positions are those that the drawn tokens will have."""
        logits_SV = logits_SV.float()
        ids_S = self.adjust_and_draw(logits_SV, positions, params, contexts or [None] * len(params))
        return told(logits_SV, ids_S, params)

    def adjust_and_draw(
        self,
        logits_SV: torch.Tensor,
        positions: Sequence[int],
        params: Sequence[SamplingParams],
        contexts: Sequence[Context | None],
    ) -> torch.Tensor:
        adjusted_SV = adjusted(logits_SV, params, contexts)
        return self.draw(adjusted_SV, list(zip(positions, params, strict=True)))

    def draw_by(self, logits_SV: torch.Tensor, columns: Columns) -> torch.Tensor:
        return self.draw(logits_SV, columns.draws())

    def draw(self, logits_SV: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
        """Each way to draw runs once, over the rows that want it, or not at all."""
        rows_by_way: dict[Callable[..., torch.Tensor], list[int]] = {}
        for row, (_, params) in enumerate(draws):
            rows_by_way.setdefault(self._way(params), []).append(row)
        ids_S = torch.empty(len(draws), dtype=torch.int64, device=logits_SV.device)
        for way, rows in rows_by_way.items():
            ids_S[rows] = way(_take(logits_SV, rows), [draws[row] for row in rows])
        return ids_S

    def _way(self, params: SamplingParams) -> Callable[..., torch.Tensor]:
        if params.temperature < GREEDY_BELOW:
            return self._draw_likeliest
        if self._limit(params) < self.vocab_size or params.top_p < 1 or params.min_p > 0:
            return self._draw_filtered
        return self._draw_any

    def _limit(self, params: SamplingParams) -> int:
        """How many tokens top-k keeps."""
        return min(params.top_k or self.vocab_size, self.vocab_size)

    def _draw_likeliest(self, logits_SV: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
        return argmax(logits_SV)

    def _draw_any(self, logits_SV: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
        noise_SV = log_noise(self.ids_V, _keys(draws, logits_SV.device))
        return argmax(_scores(logits_SV, draws).sub_(noise_SV))

    def _draw_filtered(
        self, logits_SV: torch.Tensor, draws: Sequence[Draw], num_candidates: int = NUM_CANDIDATES
    ) -> torch.Tensor:
        """Looks at the W best tokens only, since sorting a vocabulary takes milliseconds a row.

        Where all of them pass, top-p or min-p may end further on: those rows are drawn again, from
        more candidates. What a row draws doesn't depend on W.
        """
        limits = [self._limit(params) for _, params in draws]
        width = min(
            self.vocab_size,
            max(num_candidates if limit == self.vocab_size else limit for limit in limits),
        )
        scores_SV = _scores(logits_SV, draws)
        ids_SW = ranked_ids(logits_SV, width)
        kept_SW = self._kept(scores_SV.softmax(-1).gather(-1, ids_SW), draws)
        noise_SW = log_noise(ids_SW.int(), _keys(draws, logits_SV.device))
        scores_SW = scores_SV.gather(-1, ids_SW).sub_(noise_SW).masked_fill_(~kept_SW, -math.inf)
        ids_S = ids_SW.gather(-1, argmax(scores_SW)[:, None])[:, 0]
        if max(limits) > width:
            all_pass = kept_SW[:, -1].tolist()
            again = [row for row, limit in enumerate(limits) if limit > width and all_pass[row]]
            if again:
                wider = [draws[row] for row in again]
                ids_S[again] = self._draw_filtered(logits_SV[again], wider, width * WIDER)
        return ids_S

    def _kept(self, probs_SW: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
        """Which candidates pass top-k, top-p and min-p; top-p is a share of what top-k leaves."""
        num_candidates = probs_SW.shape[-1]
        limit_S1 = _column(probs_SW, [self._limit(p) for _, p in draws], torch.int64)
        # A top_p of 1 keeps all, in spite of rounding.
        top_p_S1 = _column(probs_SW, [p.top_p if p.top_p < 1 else math.inf for _, p in draws])
        min_p_S1 = _column(probs_SW, [p.min_p for _, p in draws])
        ranks_W = torch.arange(num_candidates, device=probs_SW.device)
        # In float64 and one after the other, so that the sum at a rank doesn't depend on W.
        mass_SW = probs_SW.double().cumsum(-1)
        total_S1 = mass_SW.gather(-1, limit_S1.clamp(max=num_candidates) - 1)
        total_S1.masked_fill_(limit_S1 == self.vocab_size, 1.0)
        return (
            (ranks_W < limit_S1)
            & (mass_SW - probs_SW < top_p_S1 * total_S1)
            & (probs_SW >= min_p_S1 * probs_SW[:, :1])
        )


def told(
    logits_SV: torch.Tensor, ids_S: torch.Tensor, params: Sequence[SamplingParams]
) -> list[SampledToken]:
    """What was drawn, with logprobs where they are asked for, of the logits as they came."""
    logprobs = logprobs_of(logits_SV.float(), ids_S, [p.num_logprobs for p in params])
    return [
        SampledToken(token_id, logprobs.get(row)) for row, token_id in enumerate(ids_S.tolist())
    ]


def argmax(values_SV: torch.Tensor) -> torch.Tensor:
    """torch.argmax, the first of equals as well, but a tenth of its time on a CPU.

    torch's goes one value at a time, whereas its amax goes a vector at a time: so find the first
    block that holds the maximum, then the maximum within it.
    """
    block_len = math.gcd(values_SV.shape[-1], 256)
    blocks = values_SV.view(len(values_SV), -1, block_len)
    block_S = blocks.amax(-1).argmax(-1)
    best = blocks[torch.arange(len(blocks), device=blocks.device), block_S]
    return block_S * block_len + best.argmax(-1)


def ranked_ids(logits_SV: torch.Tensor, num_ids: int) -> torch.Tensor:
    """The most likely ids in falling order, the lower id first among equals.

    topk leaves the order of equals open, so it ranks integers that have none: above, the float's
    bits made to sort as integers do; below, the id reversed.
    """
    bits = (logits_SV + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # negative floats sort by falling magnitude
    last_id = logits_SV.shape[-1] - 1
    reversed_ids = torch.arange(last_id, -1, -1, device=logits_SV.device)
    keys = (order.long() << 32).add_(reversed_ids)
    return last_id - (keys.topk(num_ids, -1).values & 0xFFFFFFFF)


def log_noise(ids: torch.Tensor, keys_S2: torch.Tensor) -> torch.Tensor:
    """The logarithm of exponentially distributed noise of each row's key at each id.

    The hash is a two-round multiplicative one with the key's halves before and between its rounds:
    [16 21f0aaad 15 735a2d97 15] of https://github.com/skeeto/hash-prospector. 32 bits at a time,
    as vector units multiply them several times faster than 64. Of the noise -log(1 - u), the small
    values decide a race, and they are those that float32 and log1p resolve best.
    """
    bits = ids ^ keys_S2[:, :1]
    spare = torch.empty_like(bits)
    _xor_shifted(bits, 16, spare)
    bits.mul_(0x21F0AAAD)
    _xor_shifted(bits, 15, spare)
    bits.bitwise_xor_(keys_S2[:, 1:]).mul_(0x735A2D97)
    _xor_shifted(bits, 15, spare)
    uniform = bits.bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(NOISE_STEP)
    return uniform.neg_().log1p_().neg_().log_()


def _xor_shifted(bits: torch.Tensor, shift: int, spare: torch.Tensor) -> None:
    """bits ^= bits >> shift, as if unsigned, which torch can't shift."""
    torch.bitwise_right_shift(bits, shift, out=spare)
    bits.bitwise_xor_(spare.bitwise_and_((1 << (32 - shift)) - 1))


def row_key(seed: int, position: int) -> int:
    return _mix64(_mix64(seed) ^ position)


def _mix64(state: int) -> int:
    """SplitMix64's next output (Steele et al. 2014, https://doi.org/10.1145/2660193.2660195)."""
    z = (state + 0x9E3779B97F4A7C15) & UINT64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & UINT64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & UINT64
    return z ^ (z >> 31)


def _keys(draws: Sequence[Draw], device: torch.device) -> torch.Tensor:
    keys = [row_key(params.seed, position) for position, params in draws]
    return torch.tensor(keys, dtype=torch.uint64).view(torch.int32).view(-1, 2).to(device)


def _scores(logits_SV: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    return logits_SV / _column(logits_SV, [params.temperature for _, params in draws])


def _column(
    like: torch.Tensor, values: Sequence[float], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device)[:, None]


def _take(logits_SV: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return logits_SV if len(rows) == len(logits_SV) else logits_SV[rows]


def logprobs_of(
    logits_SV: torch.Tensor, ids_S: torch.Tensor, num_logprobs: Sequence[int | None]
) -> dict[int, TokenLogprobs]:
    """Of the ids, and of the most likely ones: by row, for the rows that ask for them."""
    counts = {row: count for row, count in enumerate(num_logprobs) if count is not None}
    if not counts:
        return {}
    rows = list(counts)
    found = likelihoods(_take(logits_SV, rows), ids_S[rows], most=max(counts.values()))
    return dict(zip(rows, found.told(counts.values()), strict=True))


def likelihoods(logits_SV: torch.Tensor, ids_S: torch.Tensor, *, most: int) -> Likelihoods:
    """most: how many of the likeliest ids."""
    logprobs_SV = logits_SV.log_softmax(-1)
    chosen_S1 = logprobs_SV.gather(-1, ids_S[:, None])
    ids_SW = ranked_ids(logits_SV, min(most, logits_SV.shape[-1]))
    ranks_S = _ranks(logprobs_SV, chosen_S1)
    return Likelihoods(chosen_S1[:, 0], ranks_S, ids_SW, logprobs_SV.gather(-1, ids_SW))


def _ranks(logprobs_SV: torch.Tensor, chosen_S1: torch.Tensor) -> torch.Tensor:
    """1 for the likeliest. Counts in bytes, a block at a time, in an eighth of a sum's time."""
    likelier_SV = (logprobs_SV > chosen_S1).view(torch.uint8)
    blocks = likelier_SV.view(len(likelier_SV), -1, math.gcd(likelier_SV.shape[-1], 128))
    num_likelier_S = blocks.sum(-1, dtype=torch.uint8).sum(-1)
    return num_likelier_S + 1

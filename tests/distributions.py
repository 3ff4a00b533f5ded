"""What sampling parameters mean, in plain float64, and whether draws follow it."""

import math
from collections.abc import Sequence

import torch

from model.batch import SamplingParams


def exact_probs(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """What the parameters mean, in plain float64."""
    best = max(logits)
    weights = [math.exp((logit - best) / params.temperature) for logit in logits]
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    ranked = ranked[: params.top_k or None]
    total, before, kept = math.fsum(weights[i] for i in ranked), 0.0, set()
    for i in ranked:
        if before < params.top_p * total and weights[i] >= params.min_p * weights[ranked[0]]:
            kept.add(i)
        before += weights[i]
    share = math.fsum(weights[i] for i in kept)
    return [weights[i] / share if i in kept else 0.0 for i in range(len(logits))]


def chi_square_p(observed: list[int], probs: list[float]) -> float:
    """The share of fair samples that fit worse; a token of no probability mustn't occur at all."""
    num_draws = sum(observed)
    assert all(count == 0 for count, p in zip(observed, probs, strict=True) if p == 0)
    cells = [(count, p * num_draws) for count, p in zip(observed, probs, strict=True) if p > 0]
    if len(cells) == 1:
        return 1.0
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(half[0], half[1]).item()

"""What changes logits before a token is drawn: bias, penalties, and what may not be drawn at all.

In vLLM's order: bias, repetition penalty, frequency and presence penalty, bans. Each kind is one
pass over all the numbers that change, in whichever rows they are; rows that ask for none are not
touched, and a batch without any costs nothing.

Shapes: S sequences, V vocabulary, E entries that change.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from model.batch import Context, SamplingParams

Draw = tuple[SamplingParams, Context]

HUGE = 1e30
"""More than any logit, and still finite when it is divided by a temperature."""
Entries = list[tuple[int, int, float]]
"""Row, vocabulary id, number."""

NO_CONTEXT = Context()


def adjusted(
    logits_SV: Tensor, params: Sequence[SamplingParams], contexts: Sequence[Context | None]
) -> Tensor:
    """The logits to draw from: the same tensor where no row asks for a change, else a new one."""
    return restricted(reweighted(logits_SV, params, contexts), allowed_ids(contexts))


def reweighted(
    logits_SV: Tensor, params: Sequence[SamplingParams], contexts: Sequence[Context | None]
) -> Tensor:
    """The same without what `allowed` says, which some samplers can see to as they draw."""
    draws = {
        row: (wanted, context or NO_CONTEXT)
        for row, (wanted, context) in enumerate(zip(params, contexts, strict=True))
        if context is not None or wanted.logit_bias
    }
    biases, repetitions = _biases(draws), _repetitions(draws)
    penalties, forbidden = _output_penalties(draws), _forbidden(draws)
    if not (biases or repetitions or penalties or forbidden):
        return logits_SV
    logits_SV = logits_SV.clone()
    _add(logits_SV, biases)
    _penalize_repetition(logits_SV, repetitions)
    _add(logits_SV, penalties)
    _set(logits_SV, forbidden)
    return logits_SV


def allowed_ids(contexts: Iterable[Context | None]) -> list[bytes | None]:
    """Of each row, as in Context; waits for it."""
    given = [context and context.allowed for context in contexts]
    return [tell() if tell else None for tell in given]


def restricted(logits_SV: Tensor, allowed: Sequence[bytes | None]) -> Tensor:
    """-inf for what may not be drawn."""
    rows = {row: bits for row, bits in enumerate(allowed) if bits is not None}
    if not rows:
        return logits_SV
    logits_SV = logits_SV.clone()
    for row, bits in rows.items():
        logits_SV[row].masked_fill_(~_mask(bits, logits_SV), -math.inf)
    return logits_SV


def _biases(draws: dict[int, Draw]) -> Entries:
    return [
        (row, token_id, bias)
        for row, (params, _) in draws.items()
        for token_id, bias in params.logit_bias.items()
    ]


def _repetitions(draws: dict[int, Draw]) -> Entries:
    return [
        (row, token_id, params.repetition_penalty)
        for row, (params, context) in draws.items()
        if params.repetition_penalty != 1
        for token_id in set(context.known_ids)
    ]


def _output_penalties(draws: dict[int, Draw]) -> Entries:
    return [
        (row, token_id, -params.frequency_penalty * count - params.presence_penalty)
        for row, (params, context) in draws.items()
        if params.frequency_penalty or params.presence_penalty
        for token_id, count in Counter(context.known_ids[context.prompt_len :]).items()
    ]


def _forbidden(draws: dict[int, Draw]) -> Entries:
    return [
        (row, token_id, -math.inf)
        for row, (_, context) in draws.items()
        for token_id in context.forbidden_ids
    ]


def _add(logits_SV: Tensor, entries: Entries) -> None:
    if entries:
        rows_E, ids_E, numbers_E = _columns(entries, logits_SV)
        logits_SV[rows_E, ids_E] += numbers_E


def _penalize_repetition(logits_SV: Tensor, entries: Entries) -> None:
    if entries:
        rows_E, ids_E, penalties_E = _columns(entries, logits_SV)
        penalties_E = penalties_E.clamp(1 / HUGE, HUGE)
        values_E = logits_SV[rows_E, ids_E]
        penalized_E = torch.where(values_E > 0, values_E / penalties_E, values_E * penalties_E)
        logits_SV[rows_E, ids_E] = penalized_E.clamp(-HUGE, HUGE)


def _set(logits_SV: Tensor, entries: Entries) -> None:
    if entries:
        rows_E, ids_E, numbers_E = _columns(entries, logits_SV)
        logits_SV[rows_E, ids_E] = numbers_E


def _mask(packed: bytes, logits_SV: Tensor) -> Tensor:
    vocab_size = logits_SV.shape[-1]
    bits_V = np.unpackbits(np.frombuffer(packed, np.uint8), count=vocab_size, bitorder="little")
    return torch.from_numpy(bits_V.view(np.bool_)).to(logits_SV.device)


def _columns(entries: Iterable[tuple[int, int, float]], like: Tensor) -> tuple[Tensor, ...]:
    rows, ids, numbers = zip(*entries, strict=True)
    return (
        torch.tensor(rows, device=like.device),
        torch.tensor(ids, device=like.device),
        torch.tensor(numbers, dtype=like.dtype, device=like.device),
    )

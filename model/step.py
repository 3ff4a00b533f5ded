"""A batch as a step computes it: its rows in another order, packed, and where they draw.

Shapes: T packed tokens, S draws: one a row that samples, and one more for each of its guesses.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from model.batch import Batch, Context, Row, SamplingParams
from model.packing import pack
from model.sampling import Likelihoods


class Draws(NamedTuple):
    positions: Sequence[int]
    params: Sequence[SamplingParams]
    contexts: Sequence[Context | None]


class Computed(NamedTuple):
    """What a step leaves on the device."""

    x_TW: Tensor
    logits_SV: Tensor
    ids_S: Tensor
    scores: Mapping[int, Sequence[Likelihoods]]
    """By the number of the row, for rows with a scoring; of some tokens each."""


class Step:
    def __init__(self, batch: Batch, *, page_size: int) -> None:
        # Rows of a size go next to each other, since attention can take those together.
        self.order = sorted(range(len(batch.rows)), key=lambda index: _size(batch.rows[index]))
        """The rows' numbers in the batch."""
        self.rows = [batch.rows[index] for index in self.order]
        wanted_lens = [_num_wanted(row) for row in self.rows]
        self.ragged = pack(self.rows, page_size=page_size, wanted_lens=wanted_lens)
        self.query_lens: list[int] = self.ragged.query_lens_S.tolist()
        ends = self.ragged.query_lens_S.cumsum(0).tolist()
        drawing = [(row, end) for row, end in zip(self.rows, ends, strict=True) if row.sampling]
        self.drawn_at_S = torch.tensor(
            [at for row, end in drawing for at in range(end - 1 - len(row.guessed_ids), end)],
            dtype=torch.int64,
        )
        """The places in the batch of the tokens after which one is drawn."""
        self.draws = _draws(self.rows)

    @property
    def unknown(self) -> tuple[list[int], list[int]]:
        """The places of tokens that the step before draws, and by which of its rows."""
        starts = (self.ragged.query_lens_S.cumsum(0) - self.ragged.query_lens_S).tolist()
        rows = zip(self.rows, starts, strict=True)
        found = [(start, row.drawn_by) for row, start in rows if row.drawn_by is not None]
        return [place for place, _ in found], [drawn_by for _, drawn_by in found]

    @property
    def first_draws(self) -> tuple[list[int], list[int]]:
        """The rows of the batch that sample, and the draws that come after what they know."""
        drawing = [(i, row) for i, row in zip(self.order, self.rows, strict=True) if row.sampling]
        counts = [1 + len(row.guessed_ids) for _, row in drawing]
        return [index for index, _ in drawing], [sum(counts[:i]) for i in range(len(counts))]


def _size(row: Row) -> tuple[int, int]:
    """The number of queries, then that of keys."""
    return row.num_tokens, row.start


def _num_wanted(row: Row) -> int:
    """Of how many of its last tokens the model's output is asked for."""
    if row.scoring or row.pooling == "mean":
        return row.num_tokens
    return 1 + len(row.guessed_ids) if row.sampling or row.pooling else 0


def _draws(rows: Sequence[Row]) -> Draws:
    """After a row's last token, and after each guess."""
    draws = [
        (row.start + len(row.token_ids) + number, row.sampling, row.context)
        for row in rows
        if row.sampling
        for number in range(1 + len(row.guessed_ids))
    ]
    return Draws(*zip(*draws, strict=True)) if draws else Draws((), (), ())

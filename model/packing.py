"""Rows of a step → the ragged batch: all their tokens end to end, and where each one belongs.

Integers only; knows nothing of the model. The host's work per step is here, so it is numpy over
all tokens at once.

Shapes: T packed tokens, S sequences, N pages of the longest sequence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.batch import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch:
    """Three rows: a decode at position 6, a whole prompt of 3 tokens, a chunk from position 4 on.

    token_ids_T      [ g   a b c   e f ]
    positions_T      [ 6   0 1 2   4 5 ]
    query_lens_S     [ 1   3       2   ]
    context_lens_S   [ 7   3       6   ]      what each row's last token can see, itself included
    """

    token_ids_T: Tensor
    positions_T: Tensor
    page_ids_T: Tensor
    """With offsets_T: the slots of the cache that take the tokens' keys and values."""
    offsets_T: Tensor
    page_table_SN: Tensor
    """Padded with page 0, which attention reads there and masks."""
    query_lens_S: Tensor
    context_lens_S: Tensor
    wanted_lens_S: Tensor
    """Of how many of each row's last tokens the output is asked for; that of others may be
    anything."""

    def moved(self, move: Callable[[Tensor], Tensor]) -> "RaggedBatch":
        return RaggedBatch(**{f.name: move(getattr(self, f.name)) for f in fields(self)})

    def to(self, device: torch.device) -> "RaggedBatch":
        return self.moved(lambda values: values.to(device))


def pack(
    rows: Sequence[Row], *, page_size: int, wanted_lens: Sequence[int] | None = None
) -> RaggedBatch:
    """wanted_lens: None for all tokens."""
    query_lens_S = np.array([row.num_tokens for row in rows])
    starts_S = np.array([row.start for row in rows])
    context_lens_S = starts_S + query_lens_S
    page_table_SN = _page_table(rows, num_pages_S=-(-context_lens_S // page_size))
    ids = chain.from_iterable(part for row in rows for part in (row.token_ids, row.guessed_ids))
    token_ids_T = np.fromiter(ids, np.int64)
    row_of_T = np.repeat(np.arange(len(rows)), query_lens_S)
    first_T = (np.cumsum(query_lens_S) - query_lens_S)[row_of_T]
    positions_T = np.arange(len(row_of_T)) - first_T + starts_S[row_of_T]
    return RaggedBatch(
        token_ids_T=torch.from_numpy(token_ids_T),
        positions_T=torch.from_numpy(positions_T),
        page_ids_T=torch.from_numpy(page_table_SN[row_of_T, positions_T // page_size]),
        offsets_T=torch.from_numpy(positions_T % page_size),
        page_table_SN=torch.from_numpy(page_table_SN),
        query_lens_S=torch.from_numpy(query_lens_S),
        context_lens_S=torch.from_numpy(context_lens_S),
        wanted_lens_S=torch.from_numpy(
            query_lens_S if wanted_lens is None else np.array(wanted_lens, np.int64)
        ),
    )


def _page_table(
    rows: Sequence[Row], *, num_pages_S: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    table_SN = np.zeros((len(rows), num_pages_S.max()), np.int64)
    for row, num_pages, entries_N in zip(rows, num_pages_S, table_SN, strict=True):
        assert len(row.page_ids) >= num_pages
        entries_N[:num_pages] = row.page_ids[:num_pages]
    return table_SN

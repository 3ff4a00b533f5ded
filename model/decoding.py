"""A step of decodes alone, from token ids to the next ones, on the device from end to end.

What the rows go by stays there from step to step and advances there: as long as the same sequences
decode, the host sends nothing but the pages that they begin. So a step can be launched before the
tokens of the one before are known, and a CUDA graph can hold it.

    tokens_S     what the rows of the last step drew; this step reads them and writes its own
    positions_S  go up by advances_S: 1, or 0 for the rows that only fill up a graph's size

Those padding rows read and write a page that no sequence has.

Shapes: S rows, of which a step takes the first ones, N pages of the longest sequence.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.batch import Row, SamplingParams
from model.kv_cache import CPU
from model.packing import RaggedBatch
from model.sampling import Columns

GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    num_rows: int
    max_model_len: int
    page_size: int
    spare_page: int
    """Padding's."""
    vocab_size: int

    @property
    def num_pages(self) -> int:
        return -(-self.max_model_len // self.page_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRows:
    """Rows and padding as `Decoding.write` takes them, on the host."""

    tokens_S: Tensor
    """-1 where the device has the token."""
    drawn_by_S: Tensor
    """The row of the last step that drew it."""
    positions_S: Tensor
    advances_S: Tensor
    page_table_SN: Tensor
    columns: Columns


class Decoding:
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._sizes = sizes
        self.tokens_S = torch.zeros(sizes.num_rows, dtype=torch.int64, device=device)
        self._positions_S = torch.zeros_like(self.tokens_S)
        self._advances_S = torch.zeros_like(self.tokens_S)
        self._ones_S = torch.ones_like(self.tokens_S)
        table = (sizes.num_rows, sizes.num_pages)
        self._page_table_SN = torch.full(table, sizes.spare_page, device=device)
        draws = [(0, GREEDY)] * sizes.num_rows
        self._columns = Columns.of(draws, vocab_size=sizes.vocab_size, device=device)

    def batch(self, num_rows: int) -> RaggedBatch:
        positions_S, table_SN = self._positions_S[:num_rows], self._page_table_SN[:num_rows]
        pages_S1 = (positions_S // self._sizes.page_size)[:, None]
        return RaggedBatch(
            token_ids_T=self.tokens_S[:num_rows],
            positions_T=positions_S,
            page_ids_T=table_SN.gather(1, pages_S1)[:, 0],
            offsets_T=positions_S % self._sizes.page_size,
            page_table_SN=table_SN,
            query_lens_S=self._ones_S[:num_rows],
            context_lens_S=positions_S + 1,
            wanted_lens_S=self._ones_S[:num_rows],
        )

    def columns(self, num_rows: int) -> Columns:
        columns = Columns(*(column[:num_rows] for column in self._columns))
        return columns._replace(positions_S=self._positions_S[:num_rows] + 1)

    def advance(self, drawn_S: Tensor) -> None:
        self.tokens_S[: len(drawn_S)] = drawn_S
        self._positions_S += self._advances_S

    def write(self, rows: HostRows, upload: Callable[[Tensor], Tensor]) -> None:
        """Take other sequences than before."""
        size = len(rows.tokens_S)
        tokens_S = upload(rows.tokens_S)
        drawn_S = self.tokens_S[upload(rows.drawn_by_S)]
        self.tokens_S[:size] = torch.where(tokens_S < 0, drawn_S, tokens_S)
        self._positions_S[:size] = upload(rows.positions_S)
        self._advances_S.zero_()
        self._advances_S[:size] = upload(rows.advances_S)
        self._page_table_SN[:size] = upload(rows.page_table_SN)
        for column, values_S in zip(self._columns, rows.columns, strict=True):
            column[:size] = upload(values_S)

    def write_pages(self, pages_E3: Tensor) -> None:
        """Row, place in its page table, page: of those that begin one."""
        rows_E, places_E, ids_E = pages_E3.T
        self._page_table_SN[rows_E, places_E] = ids_E


def host_rows(rows: Sequence[Row], size: int, sizes: Sizes) -> HostRows:
    num_padding = size - len(rows)

    def column(values: Iterable[int]) -> Tensor:
        return torch.tensor([*values, *[0] * num_padding])

    table_SN = np.full((size, sizes.num_pages), sizes.spare_page)
    for row, entries_N in zip(rows, table_SN, strict=False):
        known = row.page_ids[: sizes.num_pages]
        entries_N[: len(known)] = known
    draws = [(0, row.sampling or GREEDY) for row in rows] + [(0, GREEDY)] * num_padding
    return HostRows(
        tokens_S=column(row.token_ids[0] if row.drawn_by is None else -1 for row in rows),
        drawn_by_S=column(row.drawn_by or 0 for row in rows),
        positions_S=column(row.start for row in rows),
        advances_S=column(1 for _ in rows),
        page_table_SN=torch.from_numpy(table_SN),
        columns=Columns.of(draws, vocab_size=sizes.vocab_size, device=CPU),
    )


def begun_pages(rows: Sequence[Row], page_size: int) -> list[tuple[int, int, int]]:
    """What `Decoding.write_pages` takes."""
    places = [(index, row.start // page_size) for index, row in enumerate(rows)]
    return [
        (index, place, rows[index].page_ids[place])
        for index, place in places
        if rows[index].start % page_size == 0
    ]


def is_decode(row: Row) -> bool:
    """Whether it draws one token, by numbers alone that the device has."""
    sampling = row.sampling
    return (
        sampling is not None
        and row.num_tokens == 1
        and not (row.context or row.scoring or row.pooling or sampling.logit_bias)
        and sampling.num_logprobs is None
    )

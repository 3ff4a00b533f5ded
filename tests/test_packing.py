import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from model.batch import Row
from model.packing import RaggedBatch, pack


def packed(*rows: Row) -> RaggedBatch:
    return pack(rows, page_size=4)


def test_three_rows_as_in_the_picture() -> None:
    batch = packed(
        Row([17], start=6, page_ids=[5, 9], sampling=None),
        Row([11, 12, 13], start=0, page_ids=[2], sampling=None),
        Row([15, 16], start=3, page_ids=[7, 1, 8], sampling=None),
    )
    assert batch.token_ids_T.tolist() == [17, 11, 12, 13, 15, 16]
    assert batch.positions_T.tolist() == [6, 0, 1, 2, 3, 4]
    assert batch.page_ids_T.tolist() == [9, 2, 2, 2, 7, 1]
    assert batch.offsets_T.tolist() == [2, 0, 1, 2, 3, 0]
    assert batch.query_lens_S.tolist() == [1, 3, 2]
    assert batch.context_lens_S.tolist() == [7, 3, 5]
    assert batch.page_table_SN.tolist() == [[5, 9], [2, 0], [7, 1]]


def test_a_row_without_pages_for_its_tokens_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        packed(Row([1, 2], start=3, page_ids=[0], sampling=None))


@st.composite
def some_rows(draw: st.DrawFn) -> list[Row]:
    sizes = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6))
    ids = iter(draw(st.permutations(range(200))))
    return [
        Row(
            [next(ids) for _ in range(num_tokens)],
            start,
            [next(ids) for _ in range(5)],
            sampling=None,
        )
        for num_tokens, start in sizes
    ]


@settings(suppress_health_check=[HealthCheck.too_slow])  # permutations, on a busy machine
@given(some_rows())
def test_each_token_goes_to_the_slot_of_its_position(rows: list[Row]) -> None:
    batch = packed(*rows)
    expected = [
        (token_id, row.start + i, row.page_ids[(row.start + i) // 4], (row.start + i) % 4)
        for row in rows
        for i, token_id in enumerate(row.token_ids)
    ]
    columns = (batch.token_ids_T, batch.positions_T, batch.page_ids_T, batch.offsets_T)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected

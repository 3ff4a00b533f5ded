"""A batch as a step computes it."""

import pytest

from model.batch import Batch, Row, SamplingParams, Scoring
from model.step import Step

DRAWS = SamplingParams()


@pytest.mark.parametrize(
    ("row", "num_wanted"),
    [
        (Row([1, 2, 3], 0, [0], None), 0),
        (Row([1, 2, 3], 0, [0], DRAWS), 1),
        (Row([1], 5, [0, 1], DRAWS, guessed_ids=[4, 5]), 3),
        (Row([1, 2, 3], 0, [0], None, scoring=Scoring([2, 3], 1)), 3),
        (Row([1, 2, 3], 0, [0], None, pooling="mean"), 3),
        (Row([1, 2, 3], 0, [0], None, pooling="last"), 1),
    ],
    ids=["chunk", "prompt", "guesses", "scores", "mean", "last"],
)
def test_the_output_is_asked_for_where_it_is_used(row: Row, num_wanted: int) -> None:
    step = Step(Batch([row]), page_size=4)
    assert step.ragged.wanted_lens_S.tolist() == [num_wanted]

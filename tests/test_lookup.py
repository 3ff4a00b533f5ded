"""Speculation by prompt lookup: what is guessed, when, and that the answer stays the same."""

from collections.abc import Sequence
from typing import Any

import pytest

from model.batch import SamplingParams
from service.engine.engine import Engine
from service.engine.lookup import FIRST_GUESSES, MOST_GUESSES, Lookup
from service.engine.messages import Event, Request
from service.engine.scheduler import SPECULATIVE_TOKENS
from tests.fakes_engine import FakeRunner, generate

CYCLE = [10, 11, 12, 13, 14, 15, 16, 17]


def test_the_newest_continuation_of_the_same_words_is_guessed() -> None:
    assert list(Lookup().guess([1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 1, 2, 3], most=3)) == [6, 7, 1]


@pytest.mark.parametrize("known", [[1, 2], [1, 2, 3], [1, 2, 3, 4, 1, 2, 4], [1, 1, 1]])
def test_nothing_is_guessed_of_what_was_never_said(known: list[int]) -> None:
    assert list(Lookup().guess(known, most=8)) == []


def test_tokens_that_came_since_count_as_well() -> None:
    lookup, known = Lookup(), [1, 2, 3, 4, 5]
    assert list(lookup.guess(known, most=8)) == []
    assert list(lookup.guess([*known, 1, 2, 3], most=8)) == [4, 5, 1, 2][:FIRST_GUESSES]
    assert list(lookup.guess([*known, 1, 2, 3], most=0)) == []


def test_guesses_grow_as_they_come_true_and_become_rare_as_they_do_not() -> None:
    lookup, known = Lookup(), [*range(40), 0, 1, 2]
    for expected in (FIRST_GUESSES, 2 * FIRST_GUESSES, MOST_GUESSES, MOST_GUESSES):
        guesses = lookup.guess(known, most=99)
        assert len(guesses) == expected
        lookup.learn(len(guesses), len(guesses))
    lookup.learn(MOST_GUESSES, 2)
    assert len(lookup.guess(known, most=99)) == 3
    for pause in (1, 3, 7, 15, 31, 32, 32):
        lookup.learn(2, 0)
        assert [len(lookup.guess(known, most=99)) for _ in range(pause)] == [0] * pause
        assert len(lookup.guess(known, most=99)) == 2
    lookup.learn(2, 2)
    assert len(lookup.guess(known, most=99)) == 4


class CyclicRunner(FakeRunner):
    """Counts from 10 to 17, over and over."""

    @staticmethod
    def next_token(token_ids: Sequence[int], *, seed: int = 0) -> int:
        return 10 + (token_ids[-1] - 9 + seed) % 8


def run(
    *requests: Request, speculative: bool, runner: FakeRunner | None = None
) -> tuple[list[Event], Engine, int]:
    engine = Engine(
        runner or CyclicRunner(), max_batch_tokens=32, max_sequences=8, speculative=speculative
    )
    events, num_steps = [], 0
    for request in requests:
        engine.add(request)
    while engine.has_work:
        events += engine.step()
        engine.check_integrity()
        num_steps += 1
    return events, engine, num_steps


def request(name: str = "a", **fields: Any) -> Request:
    defaults: dict[str, Any] = {
        "id": name,
        "prompt_ids": CYCLE * 2,
        "max_tokens": 30,
        "sampling": SamplingParams(num_logprobs=0),
        "stop_token_ids": frozenset(),
    }
    return Request(**(defaults | fields))


def ids(events: list[Event], name: str = "a") -> list[int]:
    return [token for event in events if event.request_id == name for token in event.token_ids]


def test_what_repeats_takes_a_fraction_of_the_steps() -> None:
    plain, _, num_steps = run(request(), speculative=False)
    events, _, num_fewer = run(request(), speculative=True)
    assert (
        ids(events)
        == ids(plain)
        == generate(CYCLE * 2, max_tokens=30, next_token=CyclicRunner.next_token)
    )
    assert (num_steps, num_fewer) == (30, 5)
    assert all(len(event.logprobs) == len(event.token_ids) for event in events)
    assert events[-1].finish_reason == "length"


def test_an_answer_ends_at_its_stop_token_whatever_was_guessed_behind_it() -> None:
    events, engine, _ = run(request(stop_token_ids=frozenset({14})), speculative=True)
    assert ids(events) == [10, 11, 12, 13, 14]
    assert events[-1].finish_reason == "stop"
    assert engine.stats.num_free_pages == engine.stats.num_pages


def test_the_first_token_is_told_apart_once() -> None:
    events, _, _ = run(request(), request("b"), speculative=True)
    for name in "ab":
        told = [event for event in events if event.request_id == name and event.timings]
        assert len(told) == 2, "with the first token and with the end"
    assert sum(event.num_cached_tokens for event in events if event.request_id == "b") > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": SamplingParams(presence_penalty=0.5)},
        {"min_tokens": 3},
        {"bad_words": [[1]]},
        {"allowed": b"\xff" * 7},
    ],
)
def test_where_a_draw_depends_on_more_nothing_is_guessed(fields: dict[str, Any]) -> None:
    runner = CyclicRunner()
    run(request(**fields), speculative=True, runner=runner)
    assert not any(row.guessed_ids for batch in runner.batches for row in batch.rows)


def test_guesses_take_what_room_there_is_and_no_more() -> None:
    """Of tokens in a step, and of pages: a pool that is full without guesses runs all the same."""
    runner = CyclicRunner(num_pages=64, max_model_len=64)
    run(*(request(name) for name in "abcdefgh"), speculative=True, runner=runner)
    sizes = [batch.num_tokens for batch in runner.batches if any(r.guessed_ids for r in batch.rows)]
    assert max(sizes) == SPECULATIVE_TOKENS
    runner = CyclicRunner(num_pages=12, page_size=4, max_model_len=48)
    events, engine, _ = run(request(max_tokens=32), speculative=True, runner=runner)
    assert len(ids(events)) == 32
    assert engine.stats.num_free_pages == 12


def test_records_count_guesses() -> None:
    engine = Engine(CyclicRunner(), max_batch_tokens=32, max_sequences=8, speculative=True)
    engine.add(request())
    records = []
    while engine.has_work:
        engine.step()
        assert engine.record
        records.append(engine.record)
    assert [record.num_decodes for record in records] == [0, 1, 1, 1, 1]
    assert [record.num_guessed_tokens for record in records] == [0, 4, 8, 8, 5]
    assert [record.num_true_guesses for record in records] == [0, 4, 8, 8, 5]

"""The engine with a runner whose steps are computed late: the next is launched before a step's
tokens are known, and yet all is as if each had been waited for."""

import pytest

from model.batch import SamplingParams
from service.engine.engine import Engine
from service.engine.messages import Event, Request
from tests.fakes_engine import FakeClock, LateRunner, generate, run


def make_engine(
    *,
    num_pages: int = 16,
    max_batch_tokens: int = 16,
    speculative: bool = False,
    overlap: bool = True,
) -> tuple[Engine, LateRunner]:
    runner = LateRunner(num_pages=num_pages, page_size=4)
    engine = Engine(
        runner,
        max_batch_tokens=max_batch_tokens,
        max_sequences=4,
        speculative=speculative,
        overlap=overlap,
        clock=FakeClock(),
    )
    return engine, runner


def tokens(events: list[Event]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def prompt(length: int, *, start: int = 1) -> list[int]:
    return [(start + 7 * i) % 50 for i in range(length)]


def test_a_step_is_launched_before_the_last_one_is_read() -> None:
    engine, runner = make_engine()
    engine.add(Request(id="a", prompt_ids=prompt(6), max_tokens=5))
    assert engine.step() == [], "launched, not awaited"
    assert engine.record is None
    assert tokens(engine.step()) == generate(prompt(6), max_tokens=1)
    assert tokens(run(engine)["a"]) == generate(prompt(6), max_tokens=5)[1:]
    assert runner.most_launched == 2
    assert len(runner.batches) == 5, "max_tokens is known ahead: no step is in vain"


def test_a_stop_wastes_one_step_whose_pages_stay_until_then() -> None:
    engine, runner = make_engine()
    stop = generate(prompt(7), max_tokens=2)[-1]
    engine.add(
        Request(id="a", prompt_ids=prompt(7), max_tokens=9, stop_token_ids=frozenset({stop}))
    )
    engine.step()
    engine.step()
    (event,) = engine.step()
    assert event.finish_reason == "stop"
    assert engine.stats.num_running == 0
    assert engine.stats.num_free_pages < engine.stats.num_pages
    assert engine.has_work
    assert engine.step() == []
    assert len(runner.batches) == 3
    assert engine.stats.num_free_pages == engine.stats.num_pages
    assert not engine.has_work


def test_an_aborted_request_keeps_its_pages_while_a_step_may_touch_them() -> None:
    engine, _ = make_engine()
    engine.add(Request(id="a", prompt_ids=prompt(6), max_tokens=5))
    engine.step()
    engine.abort("a")
    assert engine.stats.num_free_pages == engine.stats.num_pages - 2
    (event,) = run(engine)["a"]
    assert event.finish_reason == "cancelled"
    assert engine.stats.num_free_pages == engine.stats.num_pages


def test_what_depends_on_a_token_waits_for_it_and_holds_up_no_other() -> None:
    engine, runner = make_engine()
    penalized = SamplingParams(repetition_penalty=1.5)
    engine.add(Request(id="a", prompt_ids=prompt(3), max_tokens=4, sampling=penalized))
    engine.add(Request(id="b", prompt_ids=prompt(5), max_tokens=8))
    events = run(engine)
    assert tokens(events["a"]) == generate(prompt(3), max_tokens=4)
    assert tokens(events["b"]) == generate(prompt(5), max_tokens=8)
    assert len(runner.batches) == 8
    assert all(
        row.drawn_by is None for batch in runner.batches for row in batch.rows if row.context
    )


def test_short_of_pages_a_step_is_awaited_before_one_is_preempted() -> None:
    engine, runner = make_engine(num_pages=5)
    for name in "abc":
        engine.add(Request(id=name, prompt_ids=prompt(4, start=ord(name)), max_tokens=12))
    events = run(engine)
    timings = [events[name][-1].timings for name in "abc"]
    assert sum(t.num_preemptions for t in timings if t) > 0
    assert runner.most_launched == 2
    for name in "abc":
        assert tokens(events[name]) == generate(prompt(4, start=ord(name)), max_tokens=12)


@pytest.mark.parametrize(("speculative", "most"), [(False, 2), (True, 0)])
def test_guesses_need_known_tokens_so_speculation_does_not_overlap(
    speculative: bool, most: int
) -> None:
    engine, runner = make_engine(speculative=speculative)
    engine.add(Request(id="a", prompt_ids=prompt(5), max_tokens=6))
    assert tokens(run(engine)["a"]) == generate(prompt(5), max_tokens=6)
    assert runner.most_launched == most


def test_without_overlap_each_step_is_awaited_before_the_next() -> None:
    engine, runner = make_engine(overlap=False)
    engine.add(Request(id="a", prompt_ids=prompt(5), max_tokens=6))
    assert tokens(engine.step()) == generate(prompt(5), max_tokens=1)
    assert tokens(run(engine)["a"]) == generate(prompt(5), max_tokens=6)[1:]
    assert runner.most_launched == 0, "none was launched ahead"

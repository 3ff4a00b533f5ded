"""The engine core with a fake runner: whatever is batched, chunked, cached or preempted, each
request's tokens are those of the unbatched reference."""

import pytest

from model.batch import SamplingParams
from service.engine.engine import Engine
from service.engine.messages import Event, Request, Timings
from tests.fakes_engine import FakeClock, FakeRunner, generate, run, score


def make_engine(
    *, num_pages: int = 16, page_size: int = 4, max_batch_tokens: int = 16, max_sequences: int = 4
) -> tuple[Engine, FakeRunner]:
    runner = FakeRunner(num_pages=num_pages, page_size=page_size)
    engine = Engine(
        runner,
        max_batch_tokens=max_batch_tokens,
        max_sequences=max_sequences,
        clock=FakeClock(),
    )
    return engine, runner


def tokens(events: list[Event]) -> list[int]:
    assert [e.finish_reason is not None for e in events] == [False] * (len(events) - 1) + [True]
    return [token_id for event in events for token_id in event.token_ids]


def num_preemptions(events: list[Event]) -> int:
    timings = events[-1].timings
    assert timings is not None
    return timings.num_preemptions


def prompt(length: int, *, start: int = 1) -> list[int]:
    return [(start + 7 * i) % 50 for i in range(length)]


def test_one_request_gets_the_reference_tokens_and_ends_once() -> None:
    engine, _ = make_engine()
    engine.add(Request(id="a", prompt_ids=prompt(6), max_tokens=5))
    events = run(engine)["a"]
    assert tokens(events) == generate(prompt(6), max_tokens=5)
    assert events[-1].finish_reason == "length"
    assert engine.stats.num_free_pages == engine.stats.num_pages


def test_requests_join_and_leave_at_any_step() -> None:
    engine, runner = make_engine()
    engine.add(Request(id="a", prompt_ids=prompt(3), max_tokens=8))
    early = [*engine.step(), *engine.step()]
    engine.add(Request(id="b", prompt_ids=prompt(5, start=9), max_tokens=2))
    events = run(engine)
    assert tokens([*early, *events["a"]]) == generate(prompt(3), max_tokens=8)
    assert tokens(events["b"]) == generate(prompt(5, start=9), max_tokens=2)
    assert max(len(batch.rows) for batch in runner.batches) == 2


def test_a_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    engine, runner = make_engine(max_batch_tokens=8)
    engine.add(Request(id="a", prompt_ids=prompt(2), max_tokens=10))
    engine.step()
    engine.add(Request(id="long", prompt_ids=prompt(30, start=3), max_tokens=2))
    events = run(engine)
    assert tokens(events["long"]) == generate(prompt(30, start=3), max_tokens=2)
    shapes = [[len(row.token_ids) for row in batch.rows] for batch in runner.batches]
    assert shapes[1] == [1], "to learn what decodes take alone"
    assert shapes[2:7] == [[1, 7], [1, 7], [1, 7], [1, 7], [1, 2]]


def test_short_of_pages_the_youngest_is_preempted_and_loses_nothing() -> None:
    engine, _ = make_engine(num_pages=5)
    for name in "abc":
        engine.add(Request(id=name, prompt_ids=prompt(4, start=ord(name)), max_tokens=12))
    events = run(engine)
    assert sum(num_preemptions(events[name]) for name in "abc") > 0
    for name in "abc":
        assert tokens(events[name]) == generate(prompt(4, start=ord(name)), max_tokens=12)


def test_a_cached_prefix_is_not_computed_again() -> None:
    engine, runner = make_engine()
    engine.add(Request(id="a", prompt_ids=prompt(12), max_tokens=1))
    run(engine)
    engine.add(Request(id="b", prompt_ids=prompt(12), max_tokens=3))
    events = run(engine)["b"]
    assert tokens(events) == generate(prompt(12), max_tokens=3)
    assert events[0].num_cached_tokens == 8, "the last token is always computed"
    assert len(runner.batches[-3].rows[0].token_ids) == 4


def test_of_equal_prompts_that_come_together_one_is_computed_for_all() -> None:
    engine, runner = make_engine(max_batch_tokens=8, max_sequences=3)
    for name in "abc":
        engine.add(
            Request(
                id=name,
                prompt_ids=prompt(19),
                max_tokens=3,
                sampling=SamplingParams(seed=ord(name)),
            )
        )
    events = run(engine)
    for name in "abc":
        assert tokens(events[name]) == generate(prompt(19), max_tokens=3, seed=ord(name))
    assert [events[name][0].num_cached_tokens for name in "abc"] == [0, 18, 18]
    num_prompt_tokens = sum(batch.num_tokens for batch in runner.batches) - 3 * 2
    assert num_prompt_tokens == 19 + 1 + 1, "the others compute their last token alone"
    copies = [copy for batch in runner.batches for copy in batch.copies]
    assert len({source for source, _ in copies}) == 1, "the first one's last page"
    assert len({target for _, target in copies}) == 2


def test_strangers_wait_for_the_pages_that_they_share_and_compute_the_rest() -> None:
    engine, runner = make_engine(max_batch_tokens=8)
    common = prompt(12)
    engine.add(Request(id="a", prompt_ids=[*common, 1, 2, 3, 4, 5], max_tokens=2))
    engine.add(Request(id="b", prompt_ids=[*common, 9, 8], max_tokens=2))
    events = run(engine)
    assert tokens(events["a"]) == generate([*common, 1, 2, 3, 4, 5], max_tokens=2)
    assert tokens(events["b"]) == generate([*common, 9, 8], max_tokens=2)
    assert events["b"][0].num_cached_tokens == 12
    assert not any(batch.copies for batch in runner.batches)


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_one_that_waits_for_anothers_pages_survives_its_abort(num_steps: int) -> None:
    engine, _ = make_engine(max_batch_tokens=4)
    engine.add(Request(id="a", prompt_ids=prompt(10), max_tokens=2))
    engine.add(Request(id="b", prompt_ids=prompt(10), max_tokens=2))
    for _ in range(num_steps):
        engine.step()
    engine.abort("a")
    assert tokens(run(engine)["b"]) == generate(prompt(10), max_tokens=2)


def test_one_that_waits_for_anothers_pages_can_be_aborted() -> None:
    engine, _ = make_engine(max_batch_tokens=4)
    engine.add(Request(id="a", prompt_ids=prompt(10), max_tokens=2))
    engine.add(Request(id="b", prompt_ids=prompt(10), max_tokens=2))
    engine.step()
    engine.step()
    engine.abort("b")
    engine.check_integrity()
    assert tokens(run(engine)["a"]) == generate(prompt(10), max_tokens=2)
    assert engine.stats.num_free_pages == engine.stats.num_pages


def test_a_page_of_another_salt_is_not_waited_for() -> None:
    engine, runner = make_engine()
    for salt in ("one", "two"):
        engine.add(Request(id=salt, prompt_ids=prompt(7), max_tokens=1, cache_salt=salt))
    engine.step()
    assert [len(row.token_ids) for row in runner.batches[0].rows] == [7, 7]


def test_different_salts_share_nothing() -> None:
    engine, runner = make_engine()
    engine.add(Request(id="a", prompt_ids=prompt(12), max_tokens=1, cache_salt="one"))
    run(engine)
    engine.add(Request(id="b", prompt_ids=prompt(12), max_tokens=1, cache_salt="two"))
    assert run(engine)["b"][0].num_cached_tokens == 0
    assert len(runner.batches[-1].rows[0].token_ids) == 12


def test_a_stop_token_ends_the_sequence_and_is_delivered() -> None:
    expected = generate(prompt(3), max_tokens=9)
    engine, _ = make_engine()
    stop = frozenset({expected[4]})
    engine.add(Request(id="a", prompt_ids=prompt(3), max_tokens=9, stop_token_ids=stop))
    events = run(engine)["a"]
    assert tokens(events) == expected[: expected.index(expected[4]) + 1]
    assert events[-1].finish_reason == "stop"


def test_seed_and_logprobs_reach_the_runner() -> None:
    engine, _ = make_engine()
    sampling = SamplingParams(seed=7, num_logprobs=0)
    engine.add(Request(id="a", prompt_ids=prompt(3), max_tokens=2, sampling=sampling))
    events = run(engine)["a"]
    assert tokens(events) == generate(prompt(3), max_tokens=2, seed=7)
    assert [len(event.logprobs) for event in events] == [1, 1]


def test_a_resumed_request_goes_on_where_it_stopped() -> None:
    expected = generate(prompt(3), max_tokens=6)
    engine, _ = make_engine()
    engine.add(Request(id="a", prompt_ids=prompt(3), max_tokens=6, output_ids=expected[:4]))
    assert tokens(run(engine)["a"]) == expected[4:]


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_abort_frees_pages_at_once(num_steps: int) -> None:
    engine, _ = make_engine(max_batch_tokens=4)
    engine.add(Request(id="a", prompt_ids=prompt(10), max_tokens=9))
    for _ in range(num_steps):
        engine.step()
    engine.abort("a")
    engine.abort("a")
    engine.abort("never seen")
    assert engine.stats.num_free_pages == engine.stats.num_pages
    assert [event.finish_reason for event in engine.step()] == ["cancelled"]
    assert not engine.has_work


@pytest.mark.parametrize(
    ("prompt_ids", "max_tokens", "reason"),
    [
        ([], 1, "at least one prompt token"),
        ([1], 0, "one token to generate"),
        ([1] * 60, 5, "65 tokens of prompt and output exceed 64"),
        ([1, 50], 1, "vocabulary of 50"),
        ([-1], 1, "vocabulary of 50"),
    ],
)
def test_what_can_never_run_is_refused(prompt_ids: list[int], max_tokens: int, reason: str) -> None:
    engine, _ = make_engine()
    engine.add(Request(id="bad", prompt_ids=prompt_ids, max_tokens=max_tokens))
    (event,) = engine.step()
    assert event.finish_reason == "refused"
    assert reason in event.message
    assert not engine.has_work


def test_the_pool_bounds_the_length_of_a_request() -> None:
    engine, _ = make_engine(num_pages=3)
    assert engine.info.max_model_len == 12
    engine.add(Request(id="all", prompt_ids=prompt(4), max_tokens=8))
    assert tokens(run(engine)["all"]) == generate(prompt(4), max_tokens=8)


def test_no_more_than_max_sequences_run_at_once_in_order_of_arrival() -> None:
    engine, runner = make_engine(max_sequences=2)
    for name in "abc":
        engine.add(Request(id=name, prompt_ids=prompt(2, start=ord(name)), max_tokens=3))
    events = run(engine)
    assert list(events) == ["a", "b", "c"]
    assert max(len(batch.rows) for batch in runner.batches) == 2


def test_a_sequences_own_work_does_not_count_as_cached() -> None:
    engine, _ = make_engine(num_pages=6, max_batch_tokens=4)
    engine.add(Request(id="old", prompt_ids=prompt(4), max_tokens=6))
    engine.step()
    engine.add(Request(id="young", prompt_ids=prompt(16, start=5), max_tokens=2))
    events = run(engine)  # preempts the young one in the middle of its prompt
    assert num_preemptions(events["young"]) == 1
    assert events["young"][0].num_cached_tokens == 0


def test_a_step_is_recorded_with_what_it_did() -> None:
    engine, _ = make_engine(max_batch_tokens=8)
    engine.add(Request(id="a", prompt_ids=prompt(5), max_tokens=4))
    engine.step()
    assert engine.record is not None
    assert (engine.record.number, engine.record.num_admitted) == (1, 1)
    assert (engine.record.num_chunks, engine.record.num_chunk_tokens) == (1, 5)
    assert (engine.record.num_queried_tokens, engine.record.num_hit_tokens) == (5, 0)
    engine.step()
    engine.add(Request(id="b", prompt_ids=prompt(5), max_tokens=1))
    engine.step()
    assert (engine.record.num_decodes, engine.record.num_chunks) == (2, 0), "one token of b is left"
    assert (engine.record.num_queried_tokens, engine.record.num_hit_tokens) == (5, 4)
    assert engine.record.num_finished == 1
    engine.step()
    assert (engine.record.number, engine.record.num_finished) == (4, 1)
    assert list(engine.record.phase_seconds) == ["schedule", "run", "commit"]
    engine.step()
    assert engine.record is None, "nothing was computed"


def test_timings_tell_where_a_requests_time_went() -> None:
    clock = FakeClock()
    runner = FakeRunner()
    engine = Engine(runner, max_batch_tokens=4, max_sequences=1, clock=clock)
    engine.add(Request(id="first", prompt_ids=prompt(4), max_tokens=1))
    engine.add(Request(id="a", prompt_ids=prompt(8, start=3), max_tokens=3))
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
        clock.now += 1
    expected = Timings(queue_seconds=1.0, prefill_seconds=1.0, num_preemptions=0)
    assert [event.timings for event in events[1:]] == [expected, None, expected]


@pytest.mark.parametrize("max_batch_tokens", [3, 16])
@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_a_prompts_logprobs_are_told_once_whatever_its_chunks(
    max_batch_tokens: int, max_tokens: int
) -> None:
    engine, _ = make_engine(max_batch_tokens=max_batch_tokens, max_sequences=2)
    engine.add(Request(id="warm", prompt_ids=prompt(11), max_tokens=1))
    run(engine)
    engine.add(Request(id="a", prompt_ids=prompt(11), max_tokens=max_tokens, num_prompt_logprobs=1))
    events = run(engine)["a"]
    assert tokens(events) == generate(prompt(11), max_tokens=max_tokens)
    assert events[0].prompt_logprobs == score(prompt(11))
    assert events[0].num_cached_tokens == 0, "what is cached has no logits"
    assert not any(event.prompt_logprobs for event in events[1:])


def test_a_prompt_of_one_token_has_no_logprobs() -> None:
    engine, _ = make_engine()
    engine.add(Request(id="a", prompt_ids=[1], max_tokens=0, num_prompt_logprobs=1))
    (event,) = run(engine)["a"]
    assert (event.finish_reason, event.prompt_logprobs, event.token_ids) == ("length", [], [])


def test_preemption_amid_a_prompt_loses_none_of_its_logprobs() -> None:
    engine, _ = make_engine(num_pages=6, max_batch_tokens=4)
    engine.add(Request(id="old", prompt_ids=prompt(4), max_tokens=6))
    engine.step()
    scored = Request(
        id="young", prompt_ids=prompt(16, start=5), max_tokens=2, num_prompt_logprobs=1
    )
    engine.add(scored)
    events = run(engine)["young"]
    assert num_preemptions(events) == 1
    assert events[0].prompt_logprobs == score(scored.prompt_ids)
    assert tokens(events) == generate(scored.prompt_ids, max_tokens=2)


def test_no_stop_token_is_drawn_before_min_tokens() -> None:
    expected = generate(prompt(3), max_tokens=4)
    engine, _ = make_engine()
    engine.add(
        Request(
            id="a",
            prompt_ids=prompt(3),
            max_tokens=9,
            min_tokens=4,
            stop_token_ids=frozenset(range(20, 50)),
        )
    )
    events = run(engine)["a"]
    assert expected[0] >= 20, "else this tests nothing"
    assert all(token_id < 20 for token_id in tokens(events)[:4])
    assert events[-1].finish_reason == "stop"


def test_bad_words_are_not_generated() -> None:
    expected = generate(prompt(3), max_tokens=6)
    engine, _ = make_engine()
    bad = [expected[1:4], [expected[5]], [prompt(3)[-1], expected[0]]]
    engine.add(Request(id="a", prompt_ids=prompt(3), max_tokens=6, bad_words=bad))
    got = tokens(run(engine)["a"])
    assert got[:3] == expected[:3], "a word that begins in the prompt is none of the output"
    assert got[3] == (expected[3] + 1) % 50
    assert expected[5] not in got


def test_penalties_and_masks_reach_the_runner_with_what_they_need() -> None:
    engine, runner = make_engine()
    sampling = SamplingParams(presence_penalty=1.0)
    engine.add(Request(id="a", prompt_ids=prompt(3), max_tokens=2, sampling=sampling))
    engine.add(Request(id="b", prompt_ids=[9], max_tokens=2, allowed=bytes([255] * 7)))
    run(engine)
    contexts = [row.context for batch in runner.batches for row in batch.rows if row.context]
    counting = [c for c in contexts if c.allowed is None]
    assert [c.prompt_len for c in counting] == [3, 3]
    assert list(counting[0].known_ids)[:3] == prompt(3)
    assert [c.allowed() for c in contexts if c.allowed] == [bytes([255] * 7)] * 2


@pytest.mark.parametrize("max_batch_tokens", [3, 16])
@pytest.mark.parametrize("num_pages", [5, 16])
def test_a_prompts_vector_is_of_all_its_tokens_whatever_its_chunks(
    max_batch_tokens: int, num_pages: int
) -> None:
    engine, _ = make_engine(num_pages=num_pages, max_batch_tokens=max_batch_tokens, max_sequences=2)
    for name in "abc":
        engine.add(Request(id=name, prompt_ids=prompt(11), max_tokens=0, pooling="mean"))
        engine.add(Request(id=f"last {name}", prompt_ids=prompt(11), max_tokens=0, pooling="last"))
    events = run(engine)
    for name in "abc":
        (mean,) = events[name]
        assert mean.embedding == [sum(prompt(11)), 11]
        assert mean.finish_reason == "length"
        (last,) = events[f"last {name}"]
        assert last.embedding == [prompt(11)[-1], 1]


def test_preemption_amid_a_prompt_leaves_its_vector_whole() -> None:
    engine, _ = make_engine(num_pages=6, max_batch_tokens=4)
    engine.add(Request(id="old", prompt_ids=prompt(4), max_tokens=6))
    engine.step()
    engine.add(Request(id="young", prompt_ids=prompt(16, start=5), max_tokens=0, pooling="mean"))
    (event,) = run(engine)["young"]
    assert num_preemptions([event]) == 1
    assert event.embedding == [sum(prompt(16, start=5)), 16]

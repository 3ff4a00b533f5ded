"""A call's sequences: how they are planned, run side by side, and end together or alone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import pytest

from service.api.body import parse
from service.api.choice import Delta
from service.api.errors import ApiError
from service.api.generation import Generation, derive_seed, plan
from service.api.schema import CompletionRequest
from service.api.served import Serving
from service.engine.messages import Event, Request
from service.engine.protocol import EngineStatus, EngineUnavailableError
from service.logs import begin_request
from tests.fakes import END, VOCAB_SIZE, Client, FakeEngine, fail_after, hang_after, say


def make_serving(engine: FakeEngine | None = None) -> Serving:
    serving: Serving = Client(engine).app.state.served.serving()
    return serving


def ask(**fields: Any) -> CompletionRequest:
    return parse(orjson.dumps({"prompt": "Hi"} | fields), CompletionRequest)


def make_plan(*prompts: list[int], **fields: Any) -> list[Request]:
    serving = make_serving()
    return plan(serving.ticket("cmpl", None), ask(**fields), prompts or [[1]], serving)


def make_generation(engine: FakeEngine, **fields: Any) -> Generation:
    serving = make_serving(engine)
    prompts = [list(prompt.encode()) for prompt in ask(**fields).prompt if isinstance(prompt, str)]
    return Generation(serving.ticket("cmpl", None), ask(**fields), prompts, serving)


async def collect(generation: Generation) -> list[Delta]:
    deltas: list[Delta] = []

    async def emit(delta: Delta) -> None:
        deltas.append(delta)

    begin_request("test")
    await generation.run(emit)
    return deltas


def run(generation: Generation) -> list[Delta]:
    return asyncio.run(collect(generation))


def test_choices_are_numbered_prompt_by_prompt() -> None:
    requests = make_plan([1], [2, 3], n=2)
    assert [request.prompt_ids for request in requests] == [[1], [1], [2, 3], [2, 3]]
    assert [int(request.id.rpartition("-")[2]) for request in requests] == [0, 1, 2, 3]


def test_what_is_asked_reaches_the_engine() -> None:
    [request] = make_plan(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=-5, logprobs=3, max_tokens=9
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.min_p, sampling.seed, sampling.num_logprobs) == (0.1, -5, 3)
    assert request.max_tokens == 9
    assert request.cache_salt == ""


def test_the_cache_salt_of_all_choices_is_the_callers() -> None:
    requests = make_plan([1], [2], n=2, cache_salt="pepper")
    assert [request.cache_salt for request in requests] == ["pepper"] * 4


@pytest.mark.parametrize(("asked", "used"), [(-1, 0), (0, 0), (5, 5), (10**7, VOCAB_SIZE)])
def test_top_k_is_off_or_within_the_vocabulary(asked: int, used: int) -> None:
    [request] = make_plan(top_k=asked)
    assert request.sampling.top_k == used


def test_seeds_of_choices_differ_and_depend_on_the_seed_alone() -> None:
    seeds = [request.sampling.seed for request in make_plan([1], [2], n=3, seed=42)]
    assert seeds[:3] == seeds[3:] == [derive_seed(42, i) for i in range(3)]
    assert seeds[0] == 42
    assert len({derive_seed(seed, i) for seed in range(-20, 20) for i in range(20)}) == 800
    assert all(-(2**63) <= derive_seed(2**63 - 1, i) < 2**63 for i in range(100))


def test_without_a_seed_each_call_has_another() -> None:
    assert make_plan()[0].sampling.seed != make_plan()[0].sampling.seed


def test_ids_that_stop() -> None:
    assert make_plan()[0].stop_token_ids == {END}
    assert make_plan(stop_token_ids=[5, 5])[0].stop_token_ids == {5, END}
    assert make_plan(stop_token_ids=[5], ignore_eos=True)[0].stop_token_ids == {5}
    with pytest.raises(ApiError, match="stop_token_ids has 258"):
        make_plan(stop_token_ids=[VOCAB_SIZE])


def test_choices_run_side_by_side() -> None:
    deltas = run(make_generation(FakeEngine(say("ab")), n=2))
    assert [delta.index for delta in deltas[:4]] == [0, 1, 0, 1]


def test_usage_counts_a_prompt_once_and_every_token() -> None:
    generation = make_generation(FakeEngine(say("abc")), prompt=["Hi", "you"], n=2)
    run(generation)
    assert generation.usage.prompt_tokens == len("Hi") + len("you")
    assert generation.usage.completion_tokens == 4 * len([*b"abc", END])


def test_a_stop_string_cancels_only_its_own_sequence() -> None:
    def script(request: Request) -> Any:
        return hang_after("ab#")(request) if request.id.endswith("-0") else say("abc")(request)

    engine = FakeEngine(script)
    generation = make_generation(engine, n=2, stop="#")
    run(generation)
    assert engine.cancelled == [engine.submitted[0].id]
    assert [choice.finish_reason for choice in generation.choices] == ["stop", "stop"]
    assert generation.choices[0].num_tokens == 3


def test_the_sequence_is_cancelled_before_its_last_text_is_sent() -> None:
    engine = FakeEngine(hang_after("ab#"))
    generation = make_generation(engine, stop="#")
    running_at: list[int] = []

    async def emit(delta: Delta) -> None:
        running_at.append(len(engine.running))

    async def scenario() -> None:
        begin_request("test")
        await generation.run(emit)

    asyncio.run(scenario())
    assert running_at == [1, 1, 0]


@pytest.mark.parametrize("reason", ["error", "cancelled"])
def test_a_failure_of_one_choice_cancels_the_others(reason: Any) -> None:
    def script(request: Request) -> Any:
        ends = request.id.endswith("-1")
        return fail_after("a", reason)(request) if ends else hang_after("a")(request)

    engine = FakeEngine(script)
    with pytest.raises(ApiError) as caught:
        run(make_generation(engine, n=3))
    assert caught.value.status == 500
    assert "secret" not in str(caught.value)
    assert not engine.running
    assert len(engine.cancelled) == 2


def test_an_engine_that_takes_nothing() -> None:
    engine = FakeEngine()
    generation = make_generation(engine)
    engine.status = EngineStatus("restarting")
    with pytest.raises(EngineUnavailableError, match="restarting"):
        run(generation)
    registry = generation._serving.metrics.registry
    assert registry.get_sample_value("octavo_prompt_tokens_total") == 0
    assert registry.get_sample_value("octavo_request_prompt_tokens_count") == 0


def test_of_a_call_the_prompts_that_the_engine_took_are_counted() -> None:
    class LastPlace(FakeEngine):
        """Takes one sequence more."""

        @asynccontextmanager
        async def submit(self, request: Request) -> AsyncIterator[AsyncIterator[Event]]:
            async with super().submit(request) as events:
                self.status = EngineStatus("restarting")
                yield events

    engine = LastPlace(hang_after(""))
    generation = make_generation(engine, prompt=["four", "sixsix"], n=2)
    with pytest.raises(EngineUnavailableError):
        run(generation)
    registry = generation._serving.metrics.registry
    assert registry.get_sample_value("octavo_prompt_tokens_total") == 4
    assert registry.get_sample_value("octavo_request_prompt_tokens_count") == 1


def test_a_cancelled_call_cancels_all_its_sequences() -> None:
    engine = FakeEngine(hang_after("a"))
    generation = make_generation(engine, n=4)

    async def scenario() -> None:
        task = asyncio.create_task(collect(generation))
        while len(engine.running) < 4:  # noqa: ASYNC110 - each turn lets the sequences get on
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert not engine.running
    assert len(engine.cancelled) == 4


def outcomes(engine: FakeEngine, **fields: Any) -> tuple[dict[str, float], Callable[[str], float]]:
    generation = make_generation(engine, **fields)
    with suppress(ApiError):
        run(generation)
    registry = generation._serving.metrics.registry

    def sample(name: str) -> float:
        return registry.get_sample_value(f"octavo_{name}") or 0.0

    reasons = ("stop", "length", "cancelled", "error")
    counted = {
        reason: registry.get_sample_value("octavo_requests_total", {"outcome": reason}) or 0.0
        for reason in reasons
    }
    return {reason: n for reason, n in counted.items() if n}, sample


def test_outcomes_and_tokens_are_counted_as_usage_is() -> None:
    counted, sample = outcomes(FakeEngine(say("abc")), n=2)
    assert counted == {"stop": 2}
    assert sample("prompt_tokens_total") == 2
    assert sample("generation_tokens_total") == 2 * 4
    assert sample("time_to_first_token_seconds_count") == 2
    assert sample("inter_token_latency_seconds_count") == 2 * 3
    assert sample("request_duration_seconds_count") == 2
    assert sample("request_prompt_tokens_count") == 1
    assert sample("request_generation_tokens_sum") == 2 * 4
    assert outcomes(FakeEngine(say("abc", finish_reason="length")))[0] == {"length": 1}


def test_failures_are_counted_too() -> None:
    counted, sample = outcomes(FakeEngine(fail_after("ab")))
    assert counted == {"error": 1}
    assert sample("generation_tokens_total") == 2
    mixed = FakeEngine(
        lambda request: (
            fail_after("")(request) if request.id.endswith("-0") else hang_after("")(request)
        )
    )
    assert outcomes(mixed, n=2)[0] == {"error": 1, "cancelled": 1}


def test_an_event_without_tokens_is_no_token() -> None:
    def script(request: Request) -> list[Event]:
        return [
            Event(request_id=request.id),
            Event(request_id=request.id, token_ids=[97], finish_reason="length"),
        ]

    counted, sample = outcomes(FakeEngine(script))
    assert counted == {"length": 1}
    assert sample("time_to_first_token_seconds_count") == 1
    assert sample("inter_token_latency_seconds_count") == 0


def test_cached_tokens_of_a_prompt_count_once_for_all_its_choices() -> None:
    engine = FakeEngine(say("ab", num_cached_tokens=16))
    generation = make_generation(engine, prompt=["x" * 20, "y" * 20], n=3)
    run(generation)
    assert generation.usage.as_dict()["prompt_tokens_details"] == {"cached_tokens": 32}

"""A call's sequences: how they are planned, run side by side, and end together or alone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import orjson
import pytest

from service.api.body import parse
from service.api.caller import Caller
from service.api.choice import Delta
from service.api.errors import ApiError
from service.api.generation import Generation
from service.api.schema import CompletionRequest
from service.api.served import Serving
from service.engine.messages import Event, Request
from service.engine.protocol import EngineStatus, EngineUnavailableError
from service.logs import begin_request
from service.metrics import OUTCOMES
from tests.fakes import (
    END,
    Client,
    FakeEngine,
    fail_after,
    hang_after,
    read_metric,
    say,
)


def make_serving(engine: FakeEngine | None = None) -> Serving:
    serving: Serving = Client(engine).app.state.served.serving()
    return serving


def ask(**fields: Any) -> CompletionRequest:
    return parse(orjson.dumps({"prompt": "Hi"} | fields), CompletionRequest)


def make_generation(engine: FakeEngine, **fields: Any) -> Generation:
    serving = make_serving(engine)
    prompts = [list(prompt.encode()) for prompt in ask(**fields).prompt if isinstance(prompt, str)]
    return Generation(serving.ticket("cmpl", None, Caller()), ask(**fields), prompts, serving)


async def collect(generation: Generation) -> list[Delta]:
    deltas: list[Delta] = []

    async def emit(delta: Delta) -> None:
        deltas.append(delta)

    begin_request("test")
    await generation.run(emit)
    return deltas


def run(generation: Generation) -> list[Delta]:
    return asyncio.run(collect(generation))


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


def test_what_the_engine_refuses_is_the_clients_to_mend() -> None:
    engine = FakeEngine(fail_after("a", "refused"))
    with pytest.raises(ApiError, match="can't be computed: a secret") as caught:
        run(make_generation(engine))
    assert caught.value.status == 400


def test_what_an_engine_that_is_gone_leaves_can_be_asked_again() -> None:
    engine = FakeEngine(fail_after("a", "unavailable"))
    with pytest.raises(ApiError, match="send it again") as caught:
        run(make_generation(engine))
    assert caught.value.status == 503
    assert caught.value.headers == {"retry-after": "5"}
    assert "secret" not in str(caught.value)


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
    metrics = generation._serving.metrics
    assert read_metric(metrics, "prompt_tokens_total") == 0
    assert read_metric(metrics, "request_prompt_tokens_count") == 0


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
    metrics = generation._serving.metrics
    assert read_metric(metrics, "prompt_tokens_total") == 4
    assert read_metric(metrics, "request_prompt_tokens_count") == 1


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
    metrics = generation._serving.metrics
    counted = {
        outcome: read_metric(metrics, "requests_total", outcome=outcome) for outcome in OUTCOMES
    }
    return {reason: n for reason, n in counted.items() if n}, partial(read_metric, metrics)


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

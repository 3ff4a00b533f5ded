"""The engine client against a real child process with a fake model: streams, cancels, deaths."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest

from model.batch import SamplingParams
from service.config import EngineConfig
from service.engine import client as client_module
from service.engine.client import EngineClient
from service.engine.messages import Event, Request
from service.engine.protocol import EngineUnavailableError
from service.engine.recorder import NUM_LOGGED
from service.metrics import PHASES
from tests.fake_engine_process import POISON
from tests.fakes_engine import generate
from tests.test_grammar import WORDS, request as grammar_request, vocabulary

DEFAULTS = EngineConfig()
MODEL_PATH = Path("some.gguf")


def make_client(fault: str = "", config: EngineConfig = DEFAULTS) -> EngineClient:
    command = (sys.executable, "-m", "tests.fake_engine_process", fault)
    return EngineClient(config, command=command)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(client: EngineClient) -> AsyncIterator[EngineClient]:
    await client.start(MODEL_PATH)
    try:
        await until(lambda: client.status.phase == "ready")
        yield client
    finally:
        await client.stop()
    assert client.status.phase == "stopped"


def request(name: str, prompt_ids: list[int], max_tokens: int = 8, seed: int = 0) -> Request:
    sampling = SamplingParams(seed=seed)
    return Request(id=name, prompt_ids=prompt_ids, max_tokens=max_tokens, sampling=sampling)


async def collect(client: EngineClient, wanted: Request) -> tuple[list[int], Event]:
    async with client.submit(wanted) as events:
        seen = [event async for event in events]
    assert [event.finish_reason is None for event in seen[:-1]] == [True] * (len(seen) - 1)
    return [token_id for event in seen for token_id in event.token_ids], seen[-1]


def expected(wanted: Request) -> list[int]:
    seed = wanted.sampling.seed
    return generate(wanted.prompt_ids, max_tokens=wanted.max_tokens, seed=seed)


def child_pid(client: EngineClient) -> int:
    assert client._child is not None
    return client._child.pid


async def _streams() -> None:
    async with running(make_client()) as client:
        assert client.info is not None
        assert client.info.max_model_len == 64
        assert client.startup_seconds["weights"] > 0
        wanted = [request(f"r{i}", [i + 1, 2, 3], max_tokens=5 + i) for i in range(20)]
        results = await asyncio.gather(*(collect(client, one) for one in wanted))
        for one, (tokens, last) in zip(wanted, results, strict=True):
            assert tokens == generate(one.prompt_ids, max_tokens=one.max_tokens)
            assert last.finish_reason == "length"
        await until(lambda: client.stats.num_free_pages == client.stats.num_pages)
        numbers = [step.record.number for step in client.recorder.steps]
        assert numbers == list(range(1, len(numbers) + 1))
        assert sum(step.record.num_finished for step in client.recorder.steps) == len(wanted)
        phases = {phase for step in client.recorder.steps for phase in step.record.phase_seconds}
        assert phases <= set(PHASES), "the metrics count all that the engine measures"


def test_concurrent_streams_get_the_reference_tokens() -> None:
    asyncio.run(_streams())


async def _grammar(fault: str, *, at_first: bool) -> None:
    client = make_client(fault)
    if at_first:
        client.learn(vocabulary())
    async with running(client):
        if not at_first:
            client.learn(vocabulary())
        wanted = grammar_request("a")
        tokens, last = await collect(client, wanted)
        assert last.finish_reason == "stop"
        text = "".join(WORDS[token_id] for token_id in tokens[:-1])
        assert text.replace("ab", "").replace("cd", "") == ""


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(("fault", "at_first"), [("", False), ("", True), ("die-after-3", False)])
def test_every_engine_process_learns_the_vocabulary(fault: str, at_first: bool) -> None:
    asyncio.run(_grammar(fault, at_first=at_first))


async def _cancel() -> None:
    async with running(make_client()) as client:
        async with client.submit(request("left", [1, 2], max_tokens=60)) as events:
            await anext(events)
            await until(lambda: client.stats.num_running == 1)
        await until(lambda: client.stats.num_running == 0)
        assert client.stats.num_free_pages == client.stats.num_pages
        tokens, _ = await collect(client, request("next", [4, 5]))
        assert tokens == generate([4, 5], max_tokens=8)


def test_leaving_early_cancels_and_frees_the_pages() -> None:
    asyncio.run(_cancel())


async def _kill() -> None:
    async with running(make_client()) as client:
        wanted = [request(f"r{i}", [i, 9], max_tokens=60, seed=i) for i in range(8)]
        tasks = [asyncio.create_task(collect(client, one)) for one in wanted]
        await until(lambda: client.stats.num_running == 8)
        os.kill(child_pid(client), signal.SIGKILL)
        for one, (tokens, _) in zip(wanted, await asyncio.gather(*tasks), strict=True):
            seed = one.sampling.seed
            assert tokens == generate(one.prompt_ids, max_tokens=60, seed=seed)
        assert client.num_restarts == 1


def test_streams_outlive_a_killed_engine_with_the_same_tokens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asyncio.run(_kill())
    [line] = [r for r in caplog.records if r.name == "service.engine.recorder"]
    assert 0 < len(vars(line)["fields"]["steps"]) <= NUM_LOGGED


async def _poison() -> None:
    async with running(make_client("poison")) as client:
        wanted = (request(f"r{i}", [i % 9, 9], max_tokens=60, seed=i) for i in range(100))
        innocent = list(islice((one for one in wanted if POISON not in expected(one)), 4))
        tasks = [asyncio.create_task(collect(client, one)) for one in innocent]
        await until(lambda: client.stats.num_running == 4)
        tokens, last = await collect(client, request("bad", [1, POISON]))
        assert (tokens, last.finish_reason) == ([], "error")
        assert "died each time" in last.message
        for one, (tokens, _) in zip(innocent, await asyncio.gather(*tasks), strict=True):
            assert tokens == expected(one)


def test_a_request_that_kills_the_engine_is_ended_alone() -> None:
    asyncio.run(_poison())


async def _suspects_leave() -> None:
    async with running(make_client("poison")) as client:
        tasks = [
            asyncio.create_task(collect(client, request(f"bad{i}", [1, POISON]))) for i in range(4)
        ]
        await until(lambda: len(client._trials) == 4)
        late = request("late", [1, 2])
        tasks.append(asyncio.create_task(collect(client, late)))
        await until(lambda: len(client._trials) == 5)
        tasks[1].cancel()  # while it waits
        tasks[0].cancel()  # while it is tried
        tokens, _ = await tasks.pop()
        assert tokens == expected(late)
        for _, last in await asyncio.gather(*tasks[2:]):
            assert last.finish_reason == "error"


def test_suspects_are_tried_one_after_the_other_and_may_leave() -> None:
    asyncio.run(_suspects_leave())


async def _mute() -> None:
    async with running(make_client("mute", EngineConfig(step_timeout=2.5))) as client:
        _, last = await collect(client, request("bad", [1, POISON]))
        assert last.finish_reason == "error"


def test_a_stuck_step_is_a_death() -> None:
    asyncio.run(_mute())


async def _unloadable() -> None:
    client = make_client("unloadable")
    await client.start(MODEL_PATH)
    await until(lambda: client.status.phase == "failed")
    assert client.status.detail == "no such model: take another"
    with pytest.raises(EngineUnavailableError, match="failed"):
        async with client.submit(request("r", [1])):
            pass
    await client.stop()


def test_a_model_that_cannot_be_run_is_reported_and_not_retried() -> None:
    asyncio.run(_unloadable())


async def _crash_loading() -> None:
    client = make_client("crash-loading")
    await client.start(MODEL_PATH)
    await until(lambda: client.status.phase == "failed")
    assert "it ended with status 3" in client.status.detail
    assert client.num_restarts == 0  # as it never was ready
    await client.stop()


def test_an_engine_that_never_gets_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BACKOFF_SECONDS", 0.001)
    asyncio.run(_crash_loading())


def test_an_engine_that_was_never_started_can_be_stopped() -> None:
    client = make_client()
    asyncio.run(client.stop())
    assert client.status.phase == "stopped"


async def _no_process() -> None:
    client = EngineClient(EngineConfig(), command=("no-such-command",))
    await client.start(MODEL_PATH)
    await until(lambda: client.status.phase == "failed")
    assert "could not be started" in client.status.detail
    await client.stop()


def test_a_process_that_cannot_be_started_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BACKOFF_SECONDS", 0.001)
    asyncio.run(_no_process())


def test_a_failure_of_the_supervisor_itself_is_a_failed_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    too_long = tmp_path / ("x" * 100)  # for the address of a Unix socket
    too_long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(too_long))
    asyncio.run(_broken_supervisor())


async def _broken_supervisor() -> None:
    client = make_client()
    await client.start(MODEL_PATH)
    await until(lambda: client.status.phase == "failed")
    assert "ZMQError" in client.status.detail
    await client.stop()


async def _dies_often() -> None:
    async with running(make_client("die-after-3")) as client:
        tokens, last = await collect(client, request("long", [1, 2], max_tokens=60))
        assert last.finish_reason == "error"
        assert tokens == generate([1, 2], max_tokens=60)[: len(tokens)]
        assert len(tokens) > client_module.MOST_DEATHS


def test_a_request_is_not_resumed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MOST_DEATHS", 3)
    asyncio.run(_dies_often())


async def _unsupervised() -> None:
    async with running(make_client()) as client:
        assert client._supervisor is not None
        client._supervisor.cancel()
        await asyncio.wait({client._supervisor})
        client._heard -= client._patience
        assert client.status.phase == "stuck"
        assert "silent for more than 130 s" in client.status.detail


def test_a_silent_engine_that_nobody_restarts_is_stuck() -> None:
    asyncio.run(_unsupervised())


async def _stop() -> None:
    async with running(make_client()) as client:
        task = asyncio.create_task(collect(client, request("r", [1], max_tokens=60)))
        await until(lambda: client.stats.num_running == 1)
        pid = child_pid(client)
    _, last = await task
    assert (last.finish_reason, last.message) == ("unavailable", "the server is stopping")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_stop_ends_the_process_and_what_is_unfinished() -> None:
    asyncio.run(_stop())

"""One engine process from the outside: what is a death, and that none outlives its owner."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from service.config import EngineConfig
from service.engine import child as child_module
from service.engine.child import EngineChild, EngineDiedError, describe_exit, spawn
from service.engine.messages import Loading, Ready, StepReport

COMMAND = (sys.executable, "-m", "tests.fake_engine_process")


async def receive_until_ready(child: EngineChild) -> None:
    assert await child.receive(patience=30) == Loading(
        phase="weights", detail="some.gguf", fraction=0.5
    )
    assert isinstance(await child.receive(patience=30), Ready)


async def receive_until_death(child: EngineChild) -> None:
    while True:
        await child.receive(patience=0.1)


async def _stopped() -> int:
    async with spawn(Path("some.gguf"), EngineConfig(), command=COMMAND) as child:
        await receive_until_ready(child)
        os.kill(child.pid, signal.SIGSTOP)
        with pytest.raises(EngineDiedError, match=r"it was silent for 0\.1 s"):
            await receive_until_death(child)
        return child.pid


def test_a_stopped_process_is_dead_and_does_not_outlive_its_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_module, "GRACE_SECONDS", 0.1)
    pid = asyncio.run(_stopped())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def _cancelled_while_closing() -> int:
    pids = []

    async def hold() -> None:
        async with spawn(Path("some.gguf"), EngineConfig(), command=COMMAND) as child:
            await receive_until_ready(child)
            os.kill(child.pid, signal.SIGSTOP)
            pids.append(child.pid)

    task = asyncio.create_task(hold())
    while not pids:  # noqa: ASYNC110 - what is waited for happens in another process
        await asyncio.sleep(0.01)
    task.cancel()  # it is waiting for the stopped process by now
    await asyncio.wait({task})
    return pids[0]


def test_closing_that_is_cancelled_leaves_no_process() -> None:
    pid = asyncio.run(_cancelled_while_closing())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def _idle() -> None:
    async with spawn(Path("some.gguf"), EngineConfig(), command=COMMAND) as child:
        await receive_until_ready(child)
        heartbeat = await child.receive(patience=30)
        assert isinstance(heartbeat, StepReport)
        assert heartbeat.record is None


def test_an_idle_engine_sends_a_heartbeat() -> None:
    asyncio.run(_idle())


async def _garbage() -> None:
    script = (
        "import json, sys, zmq; spec = json.loads(sys.stdin.readline());"
        "socket = zmq.Context().socket(zmq.PUSH); socket.connect(spec['reports_address']);"
        "socket.send(bytes([0xC1])); sys.stdin.read()"
    )
    command = (sys.executable, "-c", script)
    async with spawn(Path("some.gguf"), EngineConfig(), command=command) as child:
        with pytest.raises(EngineDiedError, match="can't be read"):
            await child.receive(patience=30)


def test_a_report_that_cannot_be_read_is_a_death() -> None:
    asyncio.run(_garbage())


def test_exits_are_put_into_words() -> None:
    assert describe_exit(3) == "it ended with status 3"
    assert describe_exit(-9) == "it was ended by SIGKILL"

"""Two processes that share a model, behind the engine's client: tokens, deaths, restarts."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.batch import SamplingParams
from model.runner import load_runner
from service.config import EngineConfig
from service.engine.child import COMMAND
from service.engine.client import EngineClient
from service.engine.engine import Engine
from service.engine.messages import Request
from tests.families import KINDS
from tests.processes import ENGINE, children, command_of, wait_until
from tests.served import OCTAVO

SECONDS = 120
CONFIG = EngineConfig(
    tensor_parallel_size=2, threads=1, max_batch_tokens=16, max_sequences=4, step_timeout=60.0
)
GREEDY, DRAWN = SamplingParams(temperature=0), SamplingParams(temperature=0.9, top_k=20, seed=11)
SEVERAL = [
    Request(
        id=f"{length} {sampling.seed}",
        prompt_ids=[(5 * i + 3 * length) % 90 for i in range(length)],
        max_tokens=24,
        sampling=sampling,
    )
    for length in (3, 40)  # which takes three chunks
    for sampling in (GREEDY, DRAWN)
]
LONG = Request(id="long", prompt_ids=[1, 2, 3], max_tokens=100, sampling=DRAWN)

MODELS: dict[str, dict[str, Any]] = {
    "two key-value heads": {},
    "one key-value head for both ranks, head tied": {
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    },
}


def alone(folder: Path, requests: Sequence[Request]) -> list[list[int]]:
    """What one process answers."""
    runner = load_runner(
        folder,
        max_batch_tokens=CONFIG.max_batch_tokens,
        max_sequences=CONFIG.max_sequences,
        max_model_len=0,
        kv_cache_memory=0,
        threads=1,
        quantization="none",
        progress=lambda phase, detail, fraction: None,
    )
    engine = Engine(runner, max_batch_tokens=16, max_sequences=4)
    for request in requests:
        engine.add(request)
    ids: dict[str, list[int]] = {request.id: [] for request in requests}
    while engine.has_work:
        for event in engine.step():
            ids[event.request_id] += event.token_ids
    return list(ids.values())


@asynccontextmanager
async def together(folder: Path, command: Sequence[str] = COMMAND) -> AsyncIterator[EngineClient]:
    client = EngineClient(CONFIG, command=command)
    await client.start(folder)
    try:
        await reached(client, "ready")
        yield client
    finally:
        await client.stop()


async def reached(client: EngineClient, phase: str) -> None:
    async with asyncio.timeout(SECONDS):
        while client.status.phase != phase:
            assert client.status.phase != "failed", client.status.detail
            await asyncio.sleep(0.02)


async def answer(client: EngineClient, request: Request, kill: Sequence[Any] = ()) -> list[int]:
    """Its tokens; at every tenth of them, one of the processes is killed, unless the engine that
    the one before belonged to is still ending."""
    ids: list[int] = []
    victims, num_before = list(kill), client.num_restarts
    async with asyncio.timeout(SECONDS), client.submit(request) as events:
        async for event in events:
            assert event.finish_reason in (None, "length"), event.message
            ids += event.token_ids
            num_killed = len(kill) - len(victims)
            is_whole = client.num_restarts - num_before == num_killed
            if victims and is_whole and len(ids) % 10 == 0:
                os.kill(victims.pop(0)(), signal.SIGKILL)
    return ids


def engine_of(pid: int) -> int:
    """The engine process that is a child of this one."""
    (found,) = (p for p in children(pid) if re.search(ENGINE, command_of(p)))
    return found


def rank_0() -> int:
    return engine_of(os.getpid())


def rank_1() -> int:
    return engine_of(rank_0())


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_give_the_tokens_of_one(name: str, tmp_path: Path) -> None:
    KINDS["Llama"].make(**MODELS[name]).save_pretrained(tmp_path)
    expected = alone(tmp_path, SEVERAL)

    async def compare() -> int:
        async with together(tmp_path) as both:
            assert await asyncio.gather(*(answer(both, each) for each in SEVERAL)) == expected
            return rank_1()

    ended = asyncio.run(compare())
    wait_until(lambda: not Path(f"/proc/{ended}").exists())


def test_a_stream_goes_on_when_ranks_are_killed(tmp_path: Path) -> None:
    KINDS["Qwen3"].make().save_pretrained(tmp_path)
    expected = alone(tmp_path, [LONG])

    async def kill() -> None:
        async with together(tmp_path) as both:
            assert [await answer(both, LONG, kill=[rank_1, rank_0])] == expected
            assert both.num_restarts == 2

    asyncio.run(kill())


OVERLAPPING = (sys.executable, "-m", "tests.overlapping_engine_process")
CHOICES = [
    Request(
        id=f"choice {n}", prompt_ids=[7, 8, 9] * 9, max_tokens=50, sampling=replace(DRAWN, seed=n)
    )
    for n in range(3)
]
SCORED = Request(id="scored", prompt_ids=[5] * 30, max_tokens=9, num_prompt_logprobs=1)


def test_ranks_with_devices_launch_ahead_and_go_on_when_killed(tmp_path: Path) -> None:
    """Choices of a prompt share pages, some by copies, and the cache is too small for all."""
    KINDS["Llama"].make().save_pretrained(tmp_path)
    requests = [*SEVERAL, *CHOICES, SCORED]
    expected = alone(tmp_path, [*requests, LONG])

    async def compare() -> None:
        async with together(tmp_path, OVERLAPPING) as both:
            found = await asyncio.gather(*(answer(both, each) for each in requests))
            assert [*found, await answer(both, LONG, kill=[rank_1, rank_0])] == expected
            assert both.num_restarts == 2

    asyncio.run(compare())


def test_hosts_meet_by_torchruns_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And meet again when a rank of another host was killed."""
    KINDS["Llama"].make().save_pretrained(tmp_path)
    expected = alone(tmp_path, [LONG])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in (told | {"RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    command = (OCTAVO, "serve", str(tmp_path))
    options = ("--tensor-parallel-size", "2", "--threads", "1", "--max-batch-tokens", "64")

    async def serve(other: int) -> None:
        async with together(tmp_path) as both:
            assert [await answer(both, LONG, kill=[lambda: engine_of(other)])] == expected
            assert both.num_restarts == 1

    with subprocess.Popen([*command, *options], env=os.environ | {"RANK": "1"}) as process:
        try:
            asyncio.run(serve(process.pid))
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


@pytest.mark.usefixtures("measured")
def test_what_cannot_be_shared_out_ends_the_engine_by_name(tmp_path: Path) -> None:
    KINDS["Llama"].make(num_attention_heads=1, num_key_value_heads=1).save_pretrained(tmp_path)

    async def refused() -> str:
        client = EngineClient(CONFIG)
        await client.start(tmp_path)
        await reached(client, "failed")
        detail = client.status.detail
        await client.stop()
        return detail

    problem = "tensor_parallel_size is 2, but the model's 1 attention heads can't be shared out"
    assert asyncio.run(refused()).startswith(problem)

"""The server under pressure: its engine killed and stopped, clients that storm in and leave, or
that don't read. Whole processes; the fake engines where the model doesn't matter."""

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes import Server, num_open_files, resident_mib, serving, wait_until
from tests.served import OCTAVO, SECONDS, at_once, streamed_at_once

PATH = "/v1/completions"
STEP_TIMEOUT = 8.0
NUM_STREAMS, NUM_WHOLE = 12, 4
FAKE_VOCABULARY = 49
SHORT = {"prompt": [1, 2, 3], "max_tokens": 8, "seed": 0, "ignore_eos": True}
LONG = 100_000
"""Tokens that take longer than any test."""
UNREAD_TOKENS = 16 * 8000
UNREAD_MIB = 96
"""For three quarters of a kilobyte of each unread token; as events, they take half of it."""

Texts = list[str]


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With the default model."""
    command = [OCTAVO, "serve", str(smollm2_path), "--step-timeout", str(STEP_TIMEOUT)]
    with serving(command, tmp_path_factory.mktemp("served")) as server:
        yield server


def bodies() -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"{subject} number {index} went to the",
            "max_tokens": 160,  # so many that all are at work at once for a while
            "ignore_eos": True,
            "temperature": [0, 0.9][index % 2],
            "seed": index,
        }
        for index, subject in enumerate(["A dog", "The king", "My train", "Water"] * 4)
    ]


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> Texts:
    return at_once(server.url, bodies())


def ask_all(server: Server) -> tuple[Texts, Texts]:
    """The texts of the streams, and of those that come whole."""
    with ThreadPoolExecutor(2) as pool:
        streams = pool.submit(streamed_at_once, server.url, bodies()[:NUM_STREAMS])
        whole = pool.submit(at_once, server.url, bodies()[NUM_STREAMS:])
        return streams.result(), whole.result()


@contextmanager
def all_at_work(server: Server) -> Iterator[tuple[Texts, Texts]]:
    """Left when all have their texts, which are filled in then; what is done within happens while
    all are computed."""
    texts: tuple[Texts, Texts] = ([], [])
    before = server.metrics()["octavo_generation_tokens_total"]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_all, server)
        wait_until(lambda: server.metrics()["octavo_requests_running"] == len(bodies()))
        yield texts
        for got, texts_of_kind in zip(texts, asked.result(), strict=True):
            got += texts_of_kind
    after = server.metrics()["octavo_generation_tokens_total"]
    assert after - before == sum(body["max_tokens"] for body in bodies())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_no_answer_shows_that_the_engine_ended(
    server: Server, undisturbed: Texts, number: signal.Signals
) -> None:
    """A stopped engine is silent, and so ended after the step timeout."""
    restarts = server.metrics()["octavo_engine_restarts_total"]
    files = num_open_files(server.pid)
    with all_at_work(server) as (streams, whole):
        os.kill(server.engine_pid, number)
    assert streams + whole == undisturbed
    assert server.metrics()["octavo_engine_restarts_total"] == restarts + 1
    wait_until(server.is_idle)
    wait_until(lambda: num_open_files(server.pid) <= files)


@pytest.fixture
def fake_server(tmp_path: Path) -> Iterator[Server]:
    """So small that most of what comes at once is queued, chunked and preempted."""
    command = [sys.executable, "-m", "tests.fake_octavo", "none", "serve"]
    limits = ["--max-batch-tokens", "16", "--max-sequences", "12"]
    with serving([*command, *limits], tmp_path) as server:
        yield server


def storm_body(chance: random.Random) -> dict[str, Any]:
    prompt = [chance.randrange(FAKE_VOCABULARY) for _ in range(chance.randint(1, 40))]
    return {
        "prompt": prompt,
        "max_tokens": chance.randint(1, 20),
        "ignore_eos": True,
        "n": chance.choice([1, 1, 1, 3]),
        "stream": chance.random() < 0.6,
        "seed": chance.randrange(100),
    }


def raw_request(body: dict[str, Any]) -> bytes:
    content = json.dumps(body)
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n{content}".encode()


async def come_and_leave(url: httpx.URL, request: bytes, *, patience: float) -> bytes:
    """All of the answer, if it had the patience."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(request)
        async with asyncio.timeout(patience):
            return await reader.read()
    except TimeoutError:
        return b""
    finally:
        writer.transport.abort()


async def storm(server: Server) -> list[bytes]:
    """A hundred at a time; some stay, some leave before they have said all."""
    places = asyncio.Semaphore(100)

    async def client(chance: random.Random) -> bytes:
        request, patience = raw_request(storm_body(chance)), chance.random() ** 3
        kind = chance.random()
        if kind < 0.1:
            request = request[: chance.randrange(len(request))]
        elif kind < 0.3:
            patience = SECONDS
        async with places:
            return await come_and_leave(httpx.URL(server.url), request, patience=patience)

    return await asyncio.gather(*(client(random.Random(number)) for number in range(500)))


def test_a_storm_of_clients_who_leave_leaves_nothing_behind(fake_server: Server) -> None:
    before = at_once(fake_server.url, [SHORT])
    wait_until(fake_server.is_idle)
    files = num_open_files(fake_server.pid), num_open_files(fake_server.engine_pid)
    read = asyncio.run(storm(fake_server))
    assert {answer.split(b"\r\n")[0] for answer in read if answer} == {b"HTTP/1.1 200 OK"}
    assert sum(answer.endswith((b"[DONE]\n\n\r\n0\r\n\r\n", b"}")) for answer in read) >= 50
    assert at_once(fake_server.url, [SHORT]) == before
    wait_until(fake_server.is_idle)
    wait_until(lambda: num_open_files(fake_server.pid) <= files[0])
    assert num_open_files(fake_server.engine_pid) == files[1]
    now = fake_server.metrics()
    assert now['octavo_requests_total{outcome="error"}'] == 0
    assert now['octavo_requests_total{outcome="cancelled"}'] >= 50
    assert now["octavo_engine_restarts_total"] == 0


@pytest.fixture
def endless_server(tmp_path: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "tests.endless_octavo", "serve", "--max-sequences", "16"]
    with serving(command, tmp_path) as server:
        yield server


async def leave_all(server: Server) -> None:
    """Ask for very long answers, of each kind, and leave while they are computed, or wait to be."""
    clients = []
    for index in range(80):
        body = {"prompt": [index], "max_tokens": LONG, "ignore_eos": True}
        request = raw_request(body | {"n": 1 + index % 3, "stream": index % 2 == 0})
        clients.append(come_and_leave(httpx.URL(server.url), request, patience=index / 80))
    assert set(await asyncio.gather(*clients)) == {b""}


def test_what_nobody_waits_for_is_not_computed(endless_server: Server) -> None:
    asyncio.run(leave_all(endless_server))
    at_once(endless_server.url, [SHORT])  # comes after all that is still on its way
    wait_until(endless_server.is_idle)
    now = endless_server.metrics()
    assert now["octavo_engine_steps_total"] < LONG
    assert now['octavo_requests_total{outcome="cancelled"}'] > 80


@contextmanager
def unread(server: Server, bodies: Sequence[dict[str, Any]]) -> Iterator[None]:
    """While clients wait for these, and read nothing."""
    url = httpx.URL(server.url)
    connections = [socket.socket() for _ in bodies]
    try:
        for connection, body in zip(connections, bodies, strict=True):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((url.host, url.port))
            connection.sendall(raw_request(body))
        yield
    finally:
        for connection in connections:
            connection.close()


def test_a_client_who_reads_nothing_takes_little_memory(endless_server: Server) -> None:
    """No more than the ids of what it could read; and others are served."""
    greedy = {
        "prompt": [5],
        "max_tokens": UNREAD_TOKENS // 16,
        "n": 16,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    expected = at_once(endless_server.url, [SHORT])
    before = resident_mib(endless_server.pid)
    with unread(endless_server, [greedy]):
        wait_until(lambda: endless_server.metrics()["octavo_requests_running"] == 16)
        wait_until(endless_server.is_idle)
        assert at_once(endless_server.url, [SHORT]) == expected
        assert resident_mib(endless_server.pid) - before < UNREAD_MIB

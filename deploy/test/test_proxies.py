"""Two replicas behind each proxy of deploy/proxy: streams pass token by token, and no request is
lost that no replica had begun to answer, whether one is killed or drained.

Not part of `make test`, since it needs the proxies: `make test-proxy`.
"""

import asyncio
import csv
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.processes import ROOT

CONFIGS = Path(__file__).parents[1] / "proxy"
STEP_SECONDS = "0.02"
"""As of an engine that computes something, so that streams last."""
PROXIES = {
    "nginx": ("nginx.conf", ["-g", "daemon off;", "-p", "{folder}", "-c", "{config}"]),
    "haproxy": ("haproxy.cfg", ["-f", "{config}"]),
    "envoy": (
        "envoy.yaml",
        ["-c", "{config}", "--concurrency", "2", "--base-id", "71", "-l", "off"],
    ),
}
NUM_CLIENTS = 12
NUM_TOKENS = 20
SECONDS = 240
"""Far more than anything here takes."""

WHOLE, CUT, LOST = "whole", "cut", "lost"
"""How a request ended: as it should; after it had begun to be answered; before."""


class Replica:
    """An octavo that can be killed, drained and started anew on the same port."""

    def __init__(self, port: int, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        paced = [sys.executable, "-m", "tests.endless_octavo", STEP_SECONDS]
        self._command = [*paced, "serve", f"--port={port}"]
        self._log = folder / f"replica-{port}.log"
        self.start()

    def start(self) -> None:
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, cwd=ROOT, stderr=log)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        return answers(f"{self.url}/readyz")

    def num_requests(self) -> float:
        """Those that it took and ended."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        ends = (line for line in lines if line.startswith("octavo_requests_total{"))
        return sum(float(line.rpartition(" ")[2]) for line in ends)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def drain(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(SECONDS) == 0


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replica]]:
    folder = tmp_path_factory.mktemp("replicas")
    started = [Replica(free_port(), folder) for _ in range(2)]
    try:
        for replica in started:
            wait_until(replica.is_ready)
        yield started
    finally:
        for replica in started:
            replica.kill()


@pytest.fixture(scope="module", params=PROXIES)
def proxy(
    request: pytest.FixtureRequest,
    replicas: list[Replica],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """Its address, with our ports in place of those in its configuration."""
    name: str = request.param
    binary = shutil.which(name, path=f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin")
    if binary is None:
        pytest.skip(f"{name} isn't installed")
    folder, port = tmp_path_factory.mktemp(name), free_port()
    config = folder / PROXIES[name][0]
    config.write_text(with_ports((CONFIGS / config.name).read_text(), port, replicas))
    arguments = [each.format(folder=folder, config=config) for each in PROXIES[name][1]]
    with subprocess.Popen([binary, *arguments]) as process:
        try:
            wait_until(lambda: answers(f"http://127.0.0.1:{port}/livez"))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def with_ports(config: str, port: int, replicas: Sequence[Replica]) -> str:
    for written, actual in zip(
        ("8080", "8001", "8002"),
        (port, *(each.url.rpartition(":")[2] for each in replicas)),
        strict=True,
    ):
        assert written in config
        config = config.replace(written, str(actual))
    return config


def body(num_tokens: int = NUM_TOKENS) -> dict[str, object]:
    return {"prompt": [1, 2, 3], "max_tokens": num_tokens, "ignore_eos": True, "stream": True}


async def ask(client: httpx.AsyncClient) -> str:
    """How a streamed request ends."""
    try:
        async with client.stream("POST", "/v1/completions", json=body()) as response:
            if response.status_code != 200:
                return f"{LOST}: {response.status_code} {(await response.aread())[:100]!r}"
            try:
                lines = [line async for line in response.aiter_lines() if line]
            except httpx.TransportError:
                return CUT
            return WHOLE if lines[-1:] == ["data: [DONE]"] and is_complete(lines) else CUT
    except httpx.TransportError as error:
        return f"{LOST}: {error!r}"


def is_complete(lines: Sequence[str]) -> bool:
    events = [
        json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")
    ]
    return bool(events) and events[-1]["choices"][0]["finish_reason"] == "length"


async def load_during(url: str, act: Callable[[], None]) -> Counter[str]:
    """How requests of many clients ended, that never paused while `act` ran in a thread."""
    ends: Counter[str] = Counter()
    acting = asyncio.Event()

    async def go_on(client: httpx.AsyncClient) -> None:
        while not acting.is_set():
            ends[await ask(client)] += 1

    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as client:
        clients = [asyncio.create_task(go_on(client)) for _ in range(NUM_CLIENTS)]
        try:
            await asyncio.to_thread(act)
        finally:
            acting.set()
        await asyncio.gather(*clients)
    return ends


def test_a_stream_passes_token_by_token(proxy: str) -> None:
    num_tokens = 50
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=proxy, timeout=SECONDS))
        response = stack.enter_context(
            client.stream("POST", "/v1/completions", json=body(num_tokens))
        )
        pieces = [piece.count(b"data: ") for piece in response.iter_raw()]
    assert sum(pieces) >= num_tokens
    assert len(pieces) > 0.8 * sum(pieces), pieces  # two may meet on a busy machine


def test_both_replicas_are_used(proxy: str, replicas: list[Replica]) -> None:
    before = [replica.num_requests() for replica in replicas]
    ends = asyncio.run(load_during(proxy, lambda: time.sleep(2)))
    assert set(ends) == {WHOLE}
    shares = [each.num_requests() - old for each, old in zip(replicas, before, strict=True)]
    assert min(shares) > 0.25 * sum(shares), shares


def test_metrics_of_a_random_replica_are_not_shown(proxy: str) -> None:
    assert httpx.get(f"{proxy}/metrics").status_code == 404
    assert httpx.get(f"{proxy}/debug/steps").status_code == 404


def test_a_killed_replica_takes_only_what_it_had_begun(proxy: str, replicas: list[Replica]) -> None:
    def kill_and_start() -> None:
        time.sleep(1)
        replicas[0].kill()
        time.sleep(2)
        replicas[0].start()
        wait_until(replicas[0].is_ready)
        time.sleep(2)

    ends = asyncio.run(load_during(proxy, kill_and_start))
    assert set(ends) <= {WHOLE, CUT}, ends
    assert ends[CUT] <= NUM_CLIENTS
    assert ends[WHOLE] > NUM_CLIENTS


def test_a_rolling_restart_loses_nothing(proxy: str, replicas: list[Replica]) -> None:
    def restart_all() -> None:
        for replica in replicas:
            time.sleep(1)
            replica.drain()
            replica.start()
            wait_until(replica.is_ready)
            time.sleep(3)  # until every proxy has seen it

    ends = asyncio.run(load_during(proxy, restart_all))
    assert set(ends) == {WHOLE}, ends


def test_locusts_users_lose_nothing_either(
    proxy: str, replicas: list[Replica], tmp_path: Path
) -> None:
    """Of loadtests/, at work while one replica is killed, and later both are restarted in turn."""
    with locust(proxy, tmp_path / "killed") as killed:
        replicas[0].kill()
        replicas[0].start()
        wait_until(replicas[0].is_ready)
        time.sleep(3)
    assert set(killed) <= {"", "cut stream"}, killed
    assert killed["cut stream"] <= NUM_CLIENTS
    with locust(proxy, tmp_path / "restarted") as restarted:
        for replica in replicas:
            replica.drain()
            replica.start()
            wait_until(replica.is_ready)
            time.sleep(3)
    assert set(restarted) == {""}, restarted
    assert min(killed[""], restarted[""]) > NUM_CLIENTS


@contextmanager
def locust(url: str, tables: Path) -> Iterator[Counter[str]]:
    """In the end, how many requests had which fault, "" for none."""
    options = ["--headless", "-u", str(NUM_CLIENTS), "-t", f"{SECONDS}s", "--stop-timeout", "60"]
    options += ["--scenario", "completions", "--only-summary", "--csv", str(tables)]
    command = [sys.executable, "-m", "locust", "-f", "loadtests/locustfile.py", "--host", url]
    ends: Counter[str] = Counter()
    with tables.with_suffix(".log").open("w") as log:
        process = subprocess.Popen([*command, *options], cwd=ROOT, stdout=log, stderr=log)
    try:
        wait_until(lambda: num_ended(tables) > 0)
        yield ends
    finally:
        process.terminate()
        process.wait(SECONDS)
    for row in rows(tables, "failures"):
        fault = row["Error"].removeprefix("StreamError('").partition(":")[0]
        ends[fault] += int(row["Occurrences"])
    ends[""] = num_ended(tables) - ends.total()


def num_ended(tables: Path) -> int:
    """Requests that have ended, well or not."""
    requests = [row for row in rows(tables, "stats") if row["Type"] == "POST"]
    return sum(int(row["Request Count"]) for row in requests)


def rows(tables: Path, name: str) -> list[dict[str, str]]:
    path = tables.with_name(f"{tables.name}_{name}.csv")
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []

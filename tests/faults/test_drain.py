"""Signals while answers run: what they, probes and new work get, and how the process ends.

The engine is stopped meanwhile, so that nothing hangs on how fast it computes.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.launched import Launched, launched
from tests.processes import wait_until
from tests.served import SECONDS

NUM_STREAMS = 4
PATH = "/v1/completions"
NUM_TOKENS = 6000
BODY = {"prompt": [1, 2], "max_tokens": NUM_TOKENS, "ignore_eos": True}


def ask(server: Launched, **body: Any) -> httpx.Response:
    return httpx.post(server.url + PATH, json=BODY | body, timeout=SECONDS)


@contextmanager
def held(server: Launched, **body: Any) -> Iterator[list[Future[httpx.Response]]]:
    """Answers that have begun and don't get on, while the engine is stopped."""
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        answers = [pool.submit(ask, server, **body) for _ in range(NUM_STREAMS)]
        wait_until(lambda: server.metrics()["octavo_requests_running"] == NUM_STREAMS)
        os.kill(server.engine_pid, signal.SIGSTOP)
        yield answers


def assert_whole(answer: httpx.Response) -> None:
    assert answer.status_code == 200
    *events, last = answer.text.rstrip().split("\n\n")
    assert last == "data: [DONE]"
    chunks = [orjson.loads(event.removeprefix("data: ")) for event in events]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == NUM_TOKENS


def test_sigterm_under_load_loses_no_stream(tmp_path: Path) -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    with launched(tmp_path) as server, held(server, **asked) as answers:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        ready = httpx.get(f"{server.url}/readyz", timeout=SECONDS)
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        assert httpx.get(f"{server.url}/livez", timeout=SECONDS).status_code == 200
        refused = ask(server)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) > 0
        assert not any(answer.done() for answer in answers)
        os.kill(server.engine_pid, signal.SIGCONT)
        for answer in answers:
            assert_whole(answer.result())
        assert server.exit_code() == 0
        with pytest.raises(httpx.ConnectError):
            ask(server)


@pytest.mark.parametrize(("drain_timeout", "signals"), [("0.1", 1), ("600", 2)])
def test_what_has_no_time_left_ends_with_an_error_event(
    tmp_path: Path, drain_timeout: str, signals: int
) -> None:
    """Be it that the drain is over, or a second signal came."""
    with (
        launched(tmp_path, "--drain-timeout", drain_timeout) as server,
        held(server, stream=True) as answers,
    ):
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("draining")
        for answer in answers:
            *_, last, rest = answer.result().text.split("\n\n")
            assert rest == ""
            error = orjson.loads(last.removeprefix("data: "))["error"]
            assert (error["type"], error["code"]) == ("server_error", "engine_unavailable")
        assert server.exit_code() == 0


def test_what_comes_whole_is_then_503(tmp_path: Path) -> None:
    """Nothing of it was told, so that the client can send it again."""
    with launched(tmp_path, "--drain-timeout", "0") as server, held(server) as answers:
        server.process.send_signal(signal.SIGTERM)
        for answer in answers:
            assert answer.result().status_code == 503
            assert answer.result().headers["retry-after"]
        assert server.exit_code() == 0


def test_prompts_that_wait_are_drained_too(tmp_path: Path) -> None:
    """During prefill: no request has a token yet."""
    with launched(tmp_path) as server:
        os.kill(server.engine_pid, signal.SIGSTOP)
        with ThreadPoolExecutor(NUM_STREAMS) as pool:
            asked = {"prompt": [1] * 1000, "max_tokens": 3}
            answers = [pool.submit(ask, server, **asked) for _ in range(NUM_STREAMS)]
            wait_until(lambda: num_connections(server) == NUM_STREAMS)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("draining")
            os.kill(server.engine_pid, signal.SIGCONT)
            assert {answer.result().status_code for answer in answers} <= {200, 503}
            assert server.exit_code() == 0
        assert "Traceback" not in server.log.read_text()


def num_connections(server: Launched) -> int:
    """Those that are established to the server's port."""
    port = f":{int(server.url.rpartition(':')[2]):04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(port) and line.split()[3] == "01" for line in lines)


def test_an_idle_server_ends_at_once(tmp_path: Path) -> None:
    with launched(tmp_path, "--drain-timeout", "600") as server:
        httpx.get(f"{server.url}/livez")
        server.process.send_signal(signal.SIGINT)
        assert server.exit_code() == 0

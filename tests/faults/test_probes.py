"""Probes and scrapes while the engine does nothing else than compute, or not even that."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.launched import launched
from tests.processes import wait_until
from tests.served import SECONDS

ROUTES = ("/livez", "/readyz", "/health", "/metrics", "/version")


def test_nothing_that_probes_ask_waits_for_the_engine(tmp_path: Path) -> None:
    """It is stopped amid its work, so that whatever waited for it would wait for ever."""
    body = {"prompt": [1], "max_tokens": 6000, "ignore_eos": True}
    with launched(tmp_path) as server, ThreadPoolExecutor(4) as pool:
        url = f"{server.url}/v1/completions"
        asked = [pool.submit(httpx.post, url, json=body, timeout=SECONDS) for _ in range(4)]
        wait_until(lambda: server.metrics()["octavo_requests_running"] == 4)
        os.kill(server.engine_pid, signal.SIGSTOP)
        for route in ROUTES * 5:
            assert httpx.get(server.url + route, timeout=SECONDS).status_code == 200
        assert not any(answer.done() for answer in asked)
        os.kill(server.engine_pid, signal.SIGCONT)
        assert {answer.result().status_code for answer in asked} == {200}

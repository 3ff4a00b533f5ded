"""A running `octavo serve`, and requests to it alone, at once or streamed."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

OCTAVO = str(Path(sys.executable).parent / "octavo")
SECONDS = 240
"""Far more than anything here takes."""


@contextmanager
def serve(model: Path, *options: str) -> Iterator[str]:
    """The server's address, once it is ready."""
    command = [OCTAVO, "serve", str(model), "--port", "0", *options]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor(1) as reader,
    ):
        assert process.stderr is not None
        try:
            listening = next(line for line in process.stderr if "listening on" in line)
            found = re.search(r"http://127\.0\.0\.1:\d+", listening)
            assert found is not None
            next(line for line in process.stderr if "model: ready" in line)
            reader.submit(process.stderr.read)  # a full pipe would stop the server
            yield found[0]
        finally:
            process.send_signal(signal.SIGTERM)
            reader.submit(process.stderr.read)
    assert process.returncode == 0


def solo(url: str, bodies: Sequence[dict[str, Any]]) -> list[str]:
    """The texts of requests that each had the server to themselves."""
    with httpx.Client(base_url=url, timeout=SECONDS) as client:
        answers = [client.post("/v1/completions", json=body) for body in bodies]
    return [answer.json()["choices"][0]["text"] for answer in answers]


async def _at_once(url: str, bodies: Sequence[dict[str, Any]]) -> list[str]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS, limits=limits) as client:
        posts = (client.post("/v1/completions", json=body) for body in bodies)
        answers = await asyncio.gather(*posts)
    return [answer.json()["choices"][0]["text"] for answer in answers]


def at_once(url: str, bodies: Sequence[dict[str, Any]]) -> list[str]:
    return asyncio.run(_at_once(url, bodies))


def streamed(url: str, body: dict[str, Any]) -> Iterator[str]:
    """The texts of a stream's chunks, as they come."""
    with (
        httpx.Client(base_url=url, timeout=SECONDS) as client,
        client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response,
    ):
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]


def streamed_at_once(url: str, bodies: Sequence[dict[str, Any]]) -> list[str]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: "".join(streamed(url, body)), bodies))


def metric(url: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    assert found is not None, f"{name} isn't among the metrics"
    return float(found[1])

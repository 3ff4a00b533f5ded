"""The server under test: one that is started here and stopped again, or what a running one says.

Knows octavo's command line and OpenAI's list of models; octavo's own /version is optional.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from loadtests.errors import BenchError
from loadtests.stream import Target

OCTAVO = (str(Path(sys.executable).parent / "octavo"),)
POLL_SECONDS = 0.2
START_SECONDS = 600
"""A model may have to be fetched first."""
ASK_SECONDS = 10.0
STOP_SECONDS = 60


@contextmanager
def started(model: str, log: Path) -> Iterator[str]:
    """The address of an `octavo serve` that is ready, until the end of the block."""
    command = [*OCTAVO, "serve", *([model] if model else []), "--port", "0"]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdout=stderr, stderr=stderr) as process,
    ):
        try:
            yield _wait_until_ready(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)  # the second doesn't wait for answers
            process.wait(STOP_SECONDS)


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        text = log.read_text()
        url = re.search(r"listening on (http://\S+?)(?=[\"\s])", text)
        if url and "model: ready" in text:
            return url[1]
        time.sleep(POLL_SECONDS)
    last = (log.read_text().splitlines() or ["it said nothing"])[-1]
    raise BenchError(f"the server didn't become ready; see {log}: {last}")


def first_model(target: Target) -> str:
    """The name that requests give, unless told otherwise."""
    models = get(target, "/v1/models").get("data")
    if not models:
        raise BenchError(f"{target.url} serves no model: name one with --model")
    return str(models[0]["id"])


def describe(target: Target, model: str) -> dict[str, str]:
    """What a reader of the report needs to know of the server."""
    found = {"url": target.url, "model": model}
    models = get(target, "/v1/models").get("data", [])
    for each in models:
        if each.get("id") == model and "max_model_len" in each:
            found["max_model_len"] = str(each["max_model_len"])
    try:
        found["version"] = str(get(target, "/version").get("version", "not told"))
    except BenchError:
        found["version"] = "not told"
    return found


def knobs() -> dict[str, str]:
    """Of a server that is started here."""
    return {name: value for name, value in os.environ.items() if name.startswith("OCTAVO_")}


def get(target: Target, route: str) -> dict[str, Any]:
    try:
        status, body = fetch(target, route)
        answer = json.loads(body)
    except (OSError, HTTPException, ValueError) as error:
        raise BenchError(f"{target.url}{route} can't be asked: {error}") from None
    if status != 200 or not isinstance(answer, dict):
        raise BenchError(f"{target.url}{route} answered with {status}: {body[:200]!r}")
    return answer


def fetch(target: Target, route: str) -> tuple[int, bytes]:
    with closing(target.connect(ASK_SECONDS)) as connection:
        connection.request("GET", target.path(route), headers=target.headers)
        with connection.getresponse() as response:
            return response.status, response.read()

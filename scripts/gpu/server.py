"""A load through `octavo serve`, which is started for it, and stopped whatever happens."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from scripts.gpu.client import HttpError, ask
from scripts.gpu.loads import Load, Scale, Way
from scripts.gpu.report import Measured

OCTAVO = str(Path(sys.executable).parent / "octavo")
START_SECONDS, STOP_SECONDS, ASK_SECONDS, POLL_SECONDS = 600, 60, 30, 0.05
PHASE = re.compile(r'octavo_step_seconds_sum\{phase="([\w-]+)"\}')


def measure(folder: Path, load: Load, way: Way, scale: Scale) -> Measured:
    with _serving(folder, options(load, way, scale)) as port:
        ask(port, load.warming)
        before = _metrics(port)
        answered = ask(port, load.requests)
        after = _metrics(port)
        version = json.loads(_get(port, "/version"))
    spent = {name: after[name] - before[name] for name in after}
    host = sum(s for name, s in spent.items() if (p := PHASE.fullmatch(name)) and p[1] != "wait")
    return Measured(
        answered.num_tokens,
        answered.seconds,
        round(spent["octavo_engine_steps_total"]),
        host,
        answered.latencies,
        f"{version['device']}, {version['attention']}",
    )


def options(load: Load, way: Way, scale: Scale) -> list[str]:
    switches = {"--no-graphs": way.graphs, "--no-overlap": way.overlap}
    off = [switch for switch, is_on in switches.items() if not is_on]
    sizes = "--max-batch-tokens", scale.max_batch_tokens, "--max-sequences", len(load.requests)
    return [*map(str, sizes), *off]


@contextmanager
def _serving(folder: Path, options: list[str]) -> Iterator[int]:
    """Its port, once it is ready."""
    command = [OCTAVO, "serve", str(folder), "--port", "0", "--host", "127.0.0.1", *options]
    names = [name for name in os.environ if not name.startswith("OCTAVO_")]
    environment = {name: os.environ[name] for name in names} | {"HF_HUB_OFFLINE": "1"}
    log = folder / "server.log"
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stdout=file, stderr=file, env=environment) as process,
    ):
        try:
            yield _wait_until_ready(process, log)
        finally:
            _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", log.read_text())
        if found and _is_ready(int(found[1])):
            return int(found[1])
        time.sleep(POLL_SECONDS)
    raise HttpError(f"the server didn't become ready: {' '.join(log.read_text()[-600:].split())}")


def _is_ready(port: int) -> bool:
    try:
        return bool(_get(port, "/readyz"))
    except (OSError, HttpError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """A second signal doesn't wait for answers."""
    for number in (signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)  # does nothing once it has ended
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # its engine ends with it


def _metrics(port: int) -> dict[str, float]:
    """By name, with labels as they are written."""
    lines = _get(port, "/metrics").decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def _get(port: int, route: str) -> bytes:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=ASK_SECONDS)) as connection:
        connection.request("GET", route)
        answer = connection.getresponse()
        body = answer.read()
    if answer.status != 200:
        raise HttpError(f"{route} has status {answer.status}: {body[:300]!r}")
    return body

"""A server that may be killed: its processes, what the system knows of them, and its metrics.

Its log goes to a file, since a pipe that nobody reads would hold it up.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.served import SECONDS

ROOT = Path(__file__).parent.parent
ENGINE = rb"service\.engine\.process|engine_process|endless_octavo"


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    pid: int
    log: Path

    @property
    def engine_pid(self) -> int:
        """Of the process that is there now."""
        (engine,) = (pid for pid in children(self.pid) if re.search(ENGINE, command_of(pid)))
        return engine

    def metrics(self) -> dict[str, float]:
        """By name, with labels as they are written."""
        lines = httpx.get(f"{self.url}/metrics", timeout=SECONDS).text.splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def is_ready(self) -> bool:
        return httpx.get(f"{self.url}/readyz", timeout=SECONDS).status_code == 200

    def is_idle(self) -> bool:
        """It computes nothing, nothing waits, and no page is in use."""
        now = self.metrics()
        names = ("requests_running", "requests_waiting", "kv_cache_usage_ratio")
        return all(now[f"octavo_{name}"] == 0 for name in names)


@contextmanager
def serving(command: Sequence[str], folder: Path) -> Iterator[Server]:
    """The server that this command starts, once it is ready; ended in the end whatever it does."""
    log = folder / "server.log"
    with (
        log.open("w") as file,
        subprocess.Popen([*command, "--port", "0"], cwd=ROOT, stderr=file) as process,
    ):
        try:
            wait_until(lambda: process.poll() is not None or "listening on" in log.read_text())
            found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
            assert found is not None, log.read_text()
            server = Server(found[0], process.pid, log)
            wait_until(server.is_ready)
            yield server
        finally:
            if process.poll() is None:
                for pid in [process.pid, *children(process.pid)]:  # an engine may be stopped
                    os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def num_open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024

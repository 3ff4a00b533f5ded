"""One server, from its start to its end: when it was ready, what it reached, what memory it took.

The load is `octavo bench`, a process of its own that knows no server. Each workload has prompts of
its own, so that no cache of prefixes has seen another's.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from benchmarks.peers.errors import PeerError
from benchmarks.peers.peer import Launch
from loadtests.results import Report
from tests.processes import children

START_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 600, 300, 20
READY_POLL_SECONDS, MEMORY_POLL_SECONDS = 0.05, 0.2
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    prompt_tokens: int
    output_tokens: int
    users: tuple[int, ...]
    """At once, level by level."""
    requests: int
    """Of each level, or two for each of its users if that is more."""

    def cell(self, users: int) -> str:
        """What a level is called in tables."""
        return f"{self.name} c{users}"


WORKLOADS = (
    Workload("A", 64, 64, (1, 4, 16, 32), requests=16),
    Workload("B", 512, 16, (1, 8), requests=16),
    Workload("C", 32, 256, (1, 16), requests=8),
)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Of a workload at one concurrency. Prompt and output tokens are means of a request."""

    tokens_per_second: float
    first_token_p50: float
    """In seconds, as all times."""
    prompt_tokens: float
    output_tokens: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    ready_seconds: float
    """From the start of the process to the end of its first answer, of one token."""
    peak_bytes: int
    """Resident, of the server and all its descendants together."""
    cells: dict[str, Cell]
    """By Workload.cell()."""


def measure(launch: Launch, *, seed: int, seconds: float, out: Path) -> Run:
    """seconds: after which no request of a level begins. Raises PeerError."""
    out.mkdir(parents=True, exist_ok=True)
    with started(launch, out / "server.log") as server, watching(server.pid) as peak:
        cells: dict[str, Cell] = {}
        for index, workload in enumerate(WORKLOADS):
            folder, part = out / workload.name, f"{seed}{index}"
            ask(launch, server.url, workload, seed=part, seconds=seconds, out=folder)
            cells |= read(folder / "report.json", workload)
    return Run(ready_seconds=server.ready_seconds, peak_bytes=peak.bytes, cells=cells)


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    pid: int
    ready_seconds: float


@contextmanager
def started(launch: Launch, log: Path) -> Iterator[Server]:
    """Ready, until the end of the block. What it starts in turn is ended with it."""
    port = free_port()
    begun = time.monotonic()
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*launch.command, "--port", str(port)],
            env=os.environ | launch.variables,
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(process, url, launch.model, log)
            yield Server(url, process.pid, time.monotonic() - begun)
        finally:
            stop(process)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def wait_until_ready(process: subprocess.Popen[bytes], url: str, model: str, log: Path) -> None:
    """Until it answers: what servers call ready is not the same with all."""
    deadline = time.monotonic() + START_SECONDS
    while not answers(url, model):
        if process.poll() is not None or time.monotonic() > deadline:
            last = (log.read_text(errors="replace").splitlines() or ["it said nothing"])[-1]
            raise PeerError(f"it didn't start; see {log}: {last}")
        time.sleep(READY_POLL_SECONDS)


def answers(url: str, model: str) -> bool:
    message = {"role": "user", "content": "Hello"}
    body = {"model": model, "messages": [message], "temperature": 0, "max_tokens": 1}
    body["stream"] = True
    try:
        with httpx.stream(
            "POST",
            f"{url}/v1/chat/completions",
            json=body,
            timeout=ANSWER_SECONDS,
        ) as answer:
            return answer.status_code == 200 and bool(answer.read())
    except httpx.TransportError:
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """All of its session, which the server began."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(slots=True)
class Peak:
    bytes: int = 0


@contextmanager
def watching(pid: int) -> Iterator[Peak]:
    peak, over = Peak(), threading.Event()

    def watch() -> None:
        while not over.wait(MEMORY_POLL_SECONDS):
            peak.bytes = max(peak.bytes, resident_bytes(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def resident_bytes(pid: int) -> int:
    """Of a process and its descendants; 0: it has ended."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
        return own + sum(map(resident_bytes, children(pid)))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def ask(
    launch: Launch, url: str, workload: Workload, *, seed: str, seconds: float, out: Path
) -> None:
    command = (
        *(sys.executable, "-m", "loadtests", "--url", url, "--model-name", launch.model),
        *("--prompt-tokens", str(workload.prompt_tokens)),
        *("--output-tokens", str(workload.output_tokens)),
        *("--concurrency", ",".join(map(str, workload.users))),
        *("--requests", str(workload.requests), "--seconds", str(seconds), "--seed", seed),
        *("--warmup", "4", "--out", str(out)),
        *launch.bench_options,
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerError(f"{workload.name}: {done.stderr.strip()}")


def read(file: Path, workload: Workload) -> dict[str, Cell]:
    """Raises PeerError if any request failed: the others had less to share the server with."""
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    cells = {}
    for level in report.levels:
        name = workload.cell(round(level.load))
        if level.errors:
            raise PeerError(f"{name}: {level.first_error}")
        assert level.ttft is not None
        cells[name] = Cell(
            tokens_per_second=level.output_tokens_per_second,
            first_token_p50=level.ttft.p50,
            prompt_tokens=level.prompt_tokens,
            output_tokens=level.output_tokens,
        )
    return cells

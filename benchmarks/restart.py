"""How long a stream pauses when the engine process is killed under it.

    .venv/bin/python -m benchmarks.restart [MODEL] [--runs 5]

Starts `octavo serve`, and in each run streams a completion, kills the engine process with SIGKILL,
and takes the time from the kill to the first token of the engine process that follows. Prints that
pause, and what the new process has taken of CPU time and, at most, of memory by then.
"""

import argparse
import os
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from service import cli, hub
from tests.served import serve, streamed

TOKENS_BEFORE, TOKENS_AFTER = 8, 8


@dataclass(frozen=True, slots=True)
class Restart:
    pause_seconds: float
    cpu_seconds: float
    peak_mib: float


def main() -> None:
    arguments = parse_arguments()
    with serve(hub.resolve(arguments.model)) as url:
        restarts = [show(measure(url)) for _ in range(arguments.runs)]
    pauses = [restart.pause_seconds for restart in restarts]
    print(f"median {statistics.median(pauses):.2f} s, at most {max(pauses):.2f} s")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pauses of a stream whose engine is killed.")
    parser.add_argument("model", nargs="?", default=cli.DEFAULT_MODEL)
    parser.add_argument("--runs", type=int, default=5)
    return parser.parse_args()


def measure(url: str) -> Restart:
    body = {"prompt": "Once upon a time", "max_tokens": 1000, "ignore_eos": True, "temperature": 0}
    stream = streamed(url, body)
    for _ in range(TOKENS_BEFORE):
        next(stream)
    os.kill(engine_pid(), signal.SIGKILL)
    pause_seconds = pause(stream)
    return Restart(pause_seconds, cpu_seconds(engine_pid()), peak_mib(engine_pid()))


def pause(stream: Iterator[str]) -> float:
    """Until the token that was waited for the longest: some were on their way when it died."""
    killed = last = time.monotonic()
    longest, resumed = 0.0, killed
    for _ in range(TOKENS_AFTER):
        next(stream)
        now = time.monotonic()
        if now - last > longest:
            longest, resumed = now - last, now
        last = now
    return resumed - killed


def show(restart: Restart) -> Restart:
    print(
        f"pause {restart.pause_seconds:.2f} s, CPU {restart.cpu_seconds:.2f} s, "
        f"peak memory {restart.peak_mib:.0f} MiB",
        flush=True,
    )
    return restart


def engine_pid() -> int:
    """Of the server's children, which is ours."""
    (server,) = children(os.getpid())
    (engine,) = (pid for pid in children(server) if b"service.engine.process" in command(pid))
    return engine


def children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]  # man 5 proc_pid_stat, counted from the state
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kib) / 1024


if __name__ == "__main__":
    main()

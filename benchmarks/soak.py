"""Keeps a server busy with everything at once, and looks whether anything is left behind.

    .venv/bin/python -m benchmarks.soak [MODEL] [--minutes 10] [--clients 16] [--faults]

Clients stream and don't, ask for several choices, send long, short and shared prompts, leave at
any time, and make mistakes. Fails if a client's request got a 5xx or an error in its stream, if
something runs, waits or holds pages afterwards, if the engine was restarted, or if the memory of
either process grew by MOST_GROWTH from the middle third of the time to the last; the first is for
warming up. The cache is small, so that all of its pages are in use by then.

With --faults, what benchmarks.faults does goes wrong meanwhile. Then the engine is restarted as
often as it was killed, with what memory it likes; and clients are told to come back (503) while it
is, and do. Nothing else may show.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.faults import GOOD_KEYS, KEY, Faults
from benchmarks.peers.measure import resident_bytes
from benchmarks.streams import words
from service import cli, hub
from tests.processes import (
    Server,
    children,
    num_open_files,
    resident_mib,
    serving,
    wait_until,
)
from tests.served import OCTAVO, SECONDS

MIB = 1 << 20
MOST_GROWTH = 0.03
SAMPLE_SECONDS = 2.0
NUM_ROWS = 12
LIMITS = ("--kv-cache-memory", str(128 << 20), "--max-sequences", "24")
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SYSTEM = words(250)
KEY_HEADER = {"authorization": f"Bearer {KEY}"}
COME_BACK = "503"
SPARE_FILES = 8
"""Such as those of the scrape that tells whether it is idle."""

Call = tuple[str, dict[str, Any]]
"""A path and a body."""


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    api_mib: float
    engine_mib: float
    running: float
    waiting: float


def main() -> None:
    arguments = parse_arguments()
    command = [OCTAVO, "serve", str(hub.resolve(arguments.model)), *LIMITS]
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        keys.write_text(GOOD_KEYS)
        command += ["--api-key-file", str(keys)]
        with serving(command, Path(folder)) as server:
            faults = Faults(server, keys) if arguments.faults else None
            soak = Soak(server, faults)
            asyncio.run(soak.run(seconds=60 * arguments.minutes, num_clients=arguments.clients))
            wait_until(lambda: server.is_ready() and server.is_idle())
            soak.show()
            problems = soak.problems()
    print("\n".join(problems) or "nothing is left behind")
    sys.exit(bool(problems))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Everything at once, for a long time.")
    parser.add_argument("model", nargs="?", default=cli.DEFAULT_MODEL)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--faults", action="store_true", help="much goes wrong meanwhile")
    return parser.parse_args()


class Soak:
    def __init__(self, server: Server, faults: Faults | None) -> None:
        self.server = server
        self.faults = faults
        self.files_before = num_open_files(server.pid)
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """By kind of request, and what came of it."""
        self.samples: list[Sample] = []

    async def run(self, *, seconds: float, num_clients: int) -> None:
        ends = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(
                base_url=self.server.url, timeout=SECONDS, limits=limits, headers=KEY_HEADER
            ) as client,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._sample(ends))
            if self.faults:
                group.create_task(self.faults.run(ends))
            for _ in range(num_clients):
                group.create_task(self._ask(client, ends))

    async def _ask(self, client: httpx.AsyncClient, ends: float) -> None:
        names = list(KINDS)
        while time.monotonic() < ends:
            name = random.choice(names)
            path, body = KINDS[name]()
            patience = 3 * random.random() ** 2 if random.random() < 0.25 else SECONDS
            try:
                async with asyncio.timeout(patience):
                    outcome = await self._ask_until_taken(client, path, body)
            except TimeoutError:
                outcome = "left"
            self.outcomes[name, outcome] += 1

    async def _ask_until_taken(
        self, client: httpx.AsyncClient, path: str, body: dict[str, Any]
    ) -> str:
        """Comes back for as long as the engine is being restarted."""
        while True:
            outcome = await ask(client, path, body)
            if outcome != COME_BACK or self.faults is None:
                return outcome
            await asyncio.sleep(1)

    async def _sample(self, ends: float) -> None:
        started = time.monotonic()
        while time.monotonic() < ends:
            await asyncio.sleep(SAMPLE_SECONDS)
            now = await asyncio.to_thread(self.server.metrics)
            self.samples.append(
                Sample(
                    seconds=time.monotonic() - started,
                    api_mib=resident_mib(self.server.pid),
                    engine_mib=sum(map(resident_bytes, children(self.server.pid))) / MIB,
                    running=now["octavo_requests_running"],
                    waiting=now["octavo_requests_waiting"],
                )
            )

    def growth(self, of: Callable[[Sample], float]) -> float:
        """From the middle third to the last, as a share."""
        third = len(self.samples) // 3
        middle, last = self.samples[third : 2 * third], self.samples[2 * third :]
        return statistics.median(map(of, last)) / statistics.median(map(of, middle)) - 1

    def problems(self) -> list[str]:
        found = [
            f"{num} of {name}: {outcome}"
            for (name, outcome), num in self.outcomes.items()
            if outcome.startswith(("5", "error")) or (outcome, name) == ("200", "mistake")
        ]
        log = self.server.log.read_text().splitlines()
        found += [line for line in log if "ended by the engine" in line or "Traceback" in line]
        restarts = self.server.metrics()["octavo_engine_restarts_total"]
        kills = self.faults.num_kills if self.faults else 0
        if restarts != kills:
            found.append(f"the engine was restarted {restarts:g} times, and killed {kills} times")
        if (files := num_open_files(self.server.pid)) > self.files_before + SPARE_FILES:
            found.append(f"{files} files are open, {self.files_before} were")
        for name, of in self._steady.items():
            if (growth := self.growth(of)) >= MOST_GROWTH:
                found.append(f"the {name} grew by {growth:.1%}")
        return found

    @property
    def _steady(self) -> dict[str, Callable[[Sample], float]]:
        """Whose memory should stay as it is."""
        return {API: MEMORY[API]} if self.faults else MEMORY

    def show(self) -> None:
        print("seconds  API MiB  engine MiB  running  waiting")
        for sample in self.samples[:: max(1, len(self.samples) // NUM_ROWS)]:
            print(
                f"{sample.seconds:7.0f}  {sample.api_mib:7.1f}  {sample.engine_mib:10.1f}  "
                f"{sample.running:7.0f}  {sample.waiting:7.0f}"
            )
        for (name, outcome), num in sorted(self.outcomes.items()):
            print(f"{name:15} {outcome:6} {num:6}")
        if self.faults:
            print(f"the engine was killed {self.faults.num_kills} times")
        for name, of in MEMORY.items():
            print(f"growth of the {name}: {self.growth(of):+.2%}")


API = "API process"
MEMORY: dict[str, Callable[[Sample], float]] = {
    API: lambda sample: sample.api_mib,
    "engine process": lambda sample: sample.engine_mib,
}


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str:
    """The status, or that the stream ended with an error."""
    async with client.stream("POST", path, json=body) as response:
        whole = b""
        async for part in response.aiter_bytes():
            whole += part
    is_cut = response.status_code == 200 and body.get("stream") and b"[DONE]" not in whole
    return "error" if is_cut else str(response.status_code)


def text(num_words: int, **fields: Any) -> Call:
    settled = {"max_tokens": random.randint(1, 48), "temperature": random.choice([0, 0.8])}
    return TEXT, {"prompt": words(num_words), **settled, **fields}


def chat(**fields: Any) -> Call:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": words(random.randint(1, 30))},
    ]
    return CHAT, {"messages": messages, "max_tokens": 32, **fields}


def mistake() -> Call:
    return random.choice(
        [
            text(3, temperature=-1),
            text(3, max_tokens="many"),
            text(3, model="nobody's"),
            text(6000),
            chat(messages=[]),
            chat(n=0),
            ("/v1/nowhere", {}),
        ]
    )


KINDS: dict[str, Callable[[], Call]] = {
    "stream": lambda: text(random.randint(1, 60), stream=True),
    "whole": lambda: text(random.randint(1, 60)),
    "choices": lambda: text(random.randint(1, 60), n=3, stream=random.random() < 0.5),
    "long": lambda: text(random.randint(300, 1000), stream=True, max_tokens=4),
    "shared": lambda: chat(stream=True, logprobs=True, top_logprobs=3),
    "shared, choices": lambda: chat(n=2),
    "stop": lambda: text(20, stop=["e", "\n"]),
    "mistake": mistake,
}


if __name__ == "__main__":
    main()

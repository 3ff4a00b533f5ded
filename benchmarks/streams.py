"""What the scripts here share: a server to measure, and streams with the time of each chunk.

A stream is read from a plain socket, so that this process takes little of the cores that the engine
needs. Knows of the API what any OpenAI-compatible server has, and octavo's own only as options.
"""

import argparse
import asyncio
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pydoc_data.topics import topics
from typing import Any
from urllib.parse import urlsplit

from service import cli, hub
from tests.served import serve

SECONDS = 600
"""Far more than any stream takes."""
WORDS = sorted(set(re.findall(r"\b[a-z]{3,5}\b", " ".join(topics.values()))))

Body = dict[str, Any]


@dataclass(slots=True)
class Answer:
    """A stream's chunks, each with the time it came at, as far as they have come."""

    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)

    @property
    def first_token_seconds(self) -> float:
        return self.times[0] - self.sent

    @property
    def usage(self) -> dict[str, Any]:
        """The last chunk's, of a stream that asked for it."""
        found: dict[str, Any] = json.loads(self.lines[-1].removeprefix(b"data: "))["usage"]
        return found

    def gaps(self, start: float, end: float) -> list[float]:
        """Between chunks of which the later one came from start to end."""
        return [after - before for before, after in pairwise(self.times) if start <= after <= end]


async def stream(url: str, path: str, body: Body, answer: Answer) -> None:
    """Fill an answer. Left early, the connection is closed, which cancels the request."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(_request(path, body | {"stream": True}))
        answer.sent = time.monotonic()
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status.decode().strip()}: {(await reader.read(2000)).decode()}")
        async for line in reader:
            if line.startswith(b"data: [DONE]"):
                return
            if line.startswith(b"data: "):
                answer.times.append(time.monotonic())
                answer.lines.append(line)
    finally:
        writer.close()


def _request(path: str, body: Body) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: octavo\r\ncontent-type: application/json\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


async def answers(url: str, path: str, bodies: Sequence[Body]) -> list[Answer]:
    """All at once, each to its end."""
    found = [Answer() for _ in bodies]
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        for body, answer in zip(bodies, found, strict=True):
            group.create_task(stream(url, path, body, answer))
    return found


def words(num: int) -> str:
    """Fresh text, of somewhat more tokens than words."""
    return " ".join(random.choices(WORDS, k=num))


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("model", nargs="?", default=cli.DEFAULT_MODEL, help="what to serve")
    made.add_argument("--base-url", help="a running server, instead of one that is started")
    return made


@contextmanager
def server(arguments: argparse.Namespace) -> Iterator[str]:
    """Its address."""
    if arguments.base_url:
        yield arguments.base_url
    else:
        with serve(hub.resolve(arguments.model)) as url:
            yield url

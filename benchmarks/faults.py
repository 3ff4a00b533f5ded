"""What goes wrong around a server that is kept busy, at random, all the time: for benchmarks.soak.

The engine is killed; the key file is read again, every other time one that can't be; clients read
nothing for a while, or send what isn't HTTP, isn't whole or is too much.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
import orjson

from tests.processes import Server

KEY = "sk-soak"
GOOD_KEYS = f'[[key]]\nname = "soak"\nkey = "{KEY}"\n'
BAD_KEYS = "[[key]\n"
HOSTILE = (
    b"rubbish\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n{",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nfffffffff\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS, where there is none
)
UNREAD = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}


class Faults:
    def __init__(self, server: Server, key_file: Path) -> None:
        self.num_kills = 0
        self._patience = 0.0
        """Requests that end before the engine is killed again."""
        self._server = server
        self._key_file = key_file

    async def run(self, ends: float) -> None:
        async with asyncio.TaskGroup() as group:
            for fault, seconds in (
                (self._kill, 15.0),
                (self._reload, 0.5),
                (self._read_nothing, 1.0),
                (self._attack, 0.1),
            ):
                group.create_task(self._repeat(fault, ends, seconds))

    async def _repeat(
        self, fault: Callable[[], Awaitable[None]], ends: float, seconds: float
    ) -> None:
        """Again and again, with pauses of so many seconds in the mean."""
        while (pause := seconds * 2 * random.random()) < ends - time.monotonic():
            await asyncio.sleep(pause)
            await fault()

    async def _kill(self) -> None:
        """Not while it loads, and not until those that saw the last death may have ended: a request
        without a token at three deaths in a row is taken for their reason."""
        if not await asyncio.to_thread(self._server.is_ready):
            return
        now = await asyncio.to_thread(self._server.metrics)
        num_ended = sum(now[name] for name in now if name.startswith("octavo_requests_total"))
        if num_ended >= self._patience:
            in_flight = now["octavo_requests_running"] + now["octavo_requests_waiting"]
            self._patience = num_ended + 2 * in_flight
            os.kill(self._server.engine_pid, signal.SIGKILL)
            self.num_kills += 1

    async def _reload(self) -> None:
        self._key_file.write_text(random.choice([GOOD_KEYS, BAD_KEYS]))
        os.kill(self._server.pid, signal.SIGHUP)

    async def _read_nothing(self) -> None:
        body = orjson.dumps(UNREAD)
        await self._send(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n%s"
            % (KEY.encode(), len(body), body),
            patience=10 * random.random(),
        )

    async def _attack(self) -> None:
        await self._send(random.choice(HOSTILE), patience=random.random())

    async def _send(self, content: bytes, *, patience: float) -> None:
        """And leave after so many seconds, whatever comes back."""
        url = httpx.URL(self._server.url)
        _, writer = await asyncio.open_connection(url.host, url.port, limit=1024)
        with suppress(ConnectionError):
            writer.write(content)
            await writer.drain()
        await asyncio.sleep(patience)
        writer.transport.abort()

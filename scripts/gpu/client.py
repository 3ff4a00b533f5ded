"""Requests to POST /v1/completions, all at once and streamed, and when their tokens came.

Takes little of a core: a connection each, read by uvloop and httptools. Counts tokens by usage.
"""

import asyncio
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

import httptools
import orjson
import uvloop

from scripts.gpu.report import Latencies
from service.engine.messages import Request

SECONDS = 1800
"""Far more than all of them take."""
DONE = b"data: [DONE]"


class HttpError(RuntimeError):
    """The server didn't do what it was asked."""


class Answered(NamedTuple):
    num_tokens: int
    seconds: float
    latencies: Latencies


class Stream(asyncio.Protocol):
    """What comes of a request. `done` once its last byte is there, or when something failed."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.times: list[float] = []
        """Of its events with text."""
        self.done = asyncio.get_running_loop().create_future()
        self._rest, self._is_whole = b"", False
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except Exception as error:
            self._fail(f"an answer can't be read: {error!r} of {data[:300]!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"a connection was lost before its answer was whole: {exc}")

    def on_body(self, body: bytes) -> None:
        """By httptools, as the next one."""
        now = perf_counter()
        *events, self._rest = (self._rest + body).split(b"\n\n")
        for event in events:
            self._take(event, now)

    def on_message_complete(self) -> None:
        if not self._is_whole:
            self._fail(f"status {self._parser.get_status_code()}: {self._rest[:300]!r}")
        elif not self.done.done():
            self.done.set_result(None)

    def _take(self, event: bytes, now: float) -> None:
        if event == DONE:
            self._is_whole = True
            return
        chunk = orjson.loads(event.removeprefix(b"data: "))
        if "error" in chunk:
            self._fail(str(chunk["error"]))
        elif chunk["choices"] and chunk["choices"][0]["text"]:
            self.times.append(now)
        if usage := chunk.get("usage"):
            self.num_tokens = usage["completion_tokens"]

    def _fail(self, problem: str) -> None:
        if not self.done.done():
            self.done.set_exception(HttpError(problem))


def ask(port: int, requests: list[Request]) -> Answered:
    return uvloop.run(_ask(port, requests))


async def _ask(port: int, requests: list[Request]) -> Answered:
    messages = [_message(request) for request in requests]
    started = perf_counter()
    async with asyncio.timeout(SECONDS):
        answers = await asyncio.gather(*(_answer(port, message) for message in messages))
    seconds = perf_counter() - started
    for (stream, _), request in zip(answers, requests, strict=True):
        if stream.num_tokens != request.max_tokens or not stream.times:
            raise HttpError(f"usage is {stream.num_tokens} tokens of {request.max_tokens}")
    between = [after - before for stream, _ in answers for before, after in pairwise(stream.times)]
    first = [stream.times[0] - sent for stream, sent in answers]
    num_tokens = sum(stream.num_tokens for stream, _ in answers)
    return Answered(num_tokens, seconds, Latencies(first, between))


async def _answer(port: int, message: bytes) -> tuple[Stream, float]:
    """With when it was asked for."""
    loop = asyncio.get_running_loop()
    transport, stream = await loop.create_connection(Stream, "127.0.0.1", port)
    sent = perf_counter()
    transport.write(message)
    try:
        await stream.done
    finally:
        transport.close()
    return stream, sent


def _message(request: Request) -> bytes:
    body = orjson.dumps(
        {
            "prompt": request.prompt_ids,
            "max_tokens": request.max_tokens,
            "temperature": request.sampling.temperature,
            "seed": request.sampling.seed,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    head = "POST /v1/completions HTTP/1.1\r\nhost: octavo\r\ncontent-type: application/json\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

"""Server-sent events over raw ASGI, and what happens when the client goes away.

Knows bytes and connections, nothing of what is streamed. The response starts with its first event,
so that whatever fails before can still be answered with a status of its own; or with a keep-alive
after KEEP_ALIVE_SECONDS of silence, and from then on a failure can only be an event.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.errors import as_api_error

KEEP_ALIVE_SECONDS = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

Result = TypeVar("Result")
Write = Callable[[bytes], Awaitable[None]]


def event(content: Any) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


async def while_connected(work: Coroutine[Any, Any, Result], receive: Receive) -> Result:
    """The work's result. A client that leaves cancels it, and ClientDisconnect is raised; who
    cancels from outside is told of that, whether the client has left or not."""
    outside = asyncio.current_task()
    assert outside is not None
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_until_disconnect(receive))
    watcher.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if watcher.done() and not outside.cancelling():
            raise ClientDisconnect from None
        raise
    finally:
        watcher.cancel()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends what `produce` writes, then [DONE].

    If that fails midway, the last event is {"error": …} and there is no [DONE]: a client knows a
    whole answer by it.
    """

    media_type = "text/event-stream"

    def __init__(self, produce: Callable[[Write], Coroutine[Any, Any, None]]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(self._run(_Writer(send, self)), receive)

    async def _run(self, writer: "_Writer") -> None:
        keep_alive = asyncio.create_task(writer.keep_alive())
        try:
            await self._produce(writer.write)
            await writer.write(DONE)
        except Exception as error:
            if not writer.started:
                raise
            await writer.write(event(as_api_error(error).body))
        finally:
            keep_alive.cancel()
        await writer.end()


class _Writer:
    """The sending end of one response. Waits while a slow client has enough to read."""

    def __init__(self, send: Send, response: Response) -> None:
        self.started = False
        self._send = send
        self._response = response
        self._lock = asyncio.Lock()  # between events and keep-alives
        self._last = time.monotonic()

    async def write(self, data: bytes) -> None:
        async with self._lock:
            if not self.started:
                await self._start()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self._last = time.monotonic()

    async def _start(self) -> None:
        self.started = True
        await self._send(
            {
                "type": "http.response.start",
                "status": self._response.status_code,
                "headers": self._response.raw_headers,
            }
        )

    async def keep_alive(self) -> None:
        """Runs beside the events, so that they cost no timer each."""
        while True:
            silence = time.monotonic() - self._last
            if silence >= KEEP_ALIVE_SECONDS:
                await self.write(KEEP_ALIVE)
            else:
                await asyncio.sleep(KEEP_ALIVE_SECONDS - silence)

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

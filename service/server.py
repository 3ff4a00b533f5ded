"""Runs the app on a socket until a signal ends it, or its model can't be served. Knows no route.

first SIGTERM or SIGINT     no new connections; running answers have DRAIN_SECONDS to end
then, or at a second one    the app is told to shut down, which ends them with an error event
STUCK_SECONDS later         what still runs, as nobody reads it, is cancelled
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp

from model.errors import ModelError
from service.engine.protocol import EngineStatus
from service.errors import CommandError
from service.http_protocol import HttpProtocol

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30
STUCK_SECONDS = 5
POLL_SECONDS = 0.1


class ListenError(CommandError):
    """The address can't be listened on."""


class Server(uvicorn.Server):
    """uvicorn's, but answers end in order, and a signal ends it with exit code 0."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._hurried = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the first signal and every further one; uvicorn's would raise it anew."""
        self._hurried = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets is not None
        log.info("listening on %s", url(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping: running answers have %d s to end", DRAIN_SECONDS)
        ending = asyncio.create_task(self._end_answers())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_answers(self) -> None:
        """Shut the app down under running answers, once they had their time."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while not self._hurried and time.monotonic() < deadline:  # noqa: ASYNC110 set by a signal
            await asyncio.sleep(POLL_SECONDS)
        await self.lifespan.shutdown()


def bind(host: str, port: int) -> socket.socket:
    """Claim the address. Nobody can connect before the server listens on it."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        return claim(socket.socket(family, kind, protocol), address)
    except OSError as error:
        raise ListenError(
            f"can't listen on {host}:{port} ({error.strerror}): take another --port or --host, or "
            "stop what listens there"
        ) from None


def claim(listener: socket.socket, address: tuple[Any, ...]) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def make_config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        log_config=None,
        log_level="warning",
        timeout_graceful_shutdown=DRAIN_SECONDS + STUCK_SECONDS,
    )


def run(app: ASGIApp, listener: socket.socket, status: Callable[[], EngineStatus]) -> None:
    """Serve until told to stop. Raises ModelError once the status is that it failed, and whatever
    `status` raises."""
    uvloop.run(serve(Server(make_config(app)), listener, status))


async def serve(
    server: Server, listener: socket.socket, status: Callable[[], EngineStatus]
) -> None:
    watching = asyncio.create_task(watch(server, status))
    await server.serve(sockets=[listener])
    if watching.done():
        raise ModelError(watching.result())
    watching.cancel()


async def watch(server: Server, status: Callable[[], EngineStatus]) -> str:
    """Log what is being loaded. When that failed, end the server and return the reason."""
    logged = ""
    try:
        while (now := status()).phase != "failed":
            if (line := milestone(now)) != logged:
                log.info("model: %s", line)
                logged = line
            await asyncio.sleep(POLL_SECONDS)
    finally:
        server.should_exit = True
    return now.detail


def milestone(status: EngineStatus) -> str:
    """Changes with every quarter of what is being loaded, not with every tensor."""
    if status.phase != "loading":
        return status.phase
    what, quarters = status.detail.partition(" ")[0], int(status.fraction * 4)
    if what == "fetching":  # how far it is, only the one who fetches knows
        return status.detail
    return f"loading {what} {quarters * 25}%"


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

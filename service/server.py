"""Runs the app on a socket until a signal ends it, or its model can't be served. Knows no route.

first SIGTERM or SIGINT     no new connections; running answers get DRAIN_SECONDS to end
second                      stop at once
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
import uvloop
from starlette.types import ASGIApp

from model.errors import ModelError
from service.engine.client import EngineStatus

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30
POLL_SECONDS = 0.1


class ListenError(RuntimeError):
    """The address can't be listened on; the message says why and what to do."""


class Server(uvicorn.Server):
    """uvicorn's, but a signal ends it with exit code 0 instead of being raised anew at the end."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        log.info("%s: stopping", signal.Signals(sig).name)
        self.force_exit = self.should_exit
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """Claim the address. Nobody can connect before the server listens on it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ListenError(
            f"can't listen on {host}:{port} ({error.strerror}): take another --port or --host, or "
            "stop what listens there"
        ) from None
    return listener


def run(app: ASGIApp, listener: socket.socket, status: Callable[[], EngineStatus]) -> None:
    """Serve until told to stop. Raises ModelError once the status is that it failed."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        log_config=None,
        log_level="warning",
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    uvloop.run(serve(Server(config), listener, status))


async def serve(
    server: Server, listener: socket.socket, status: Callable[[], EngineStatus]
) -> None:
    log.info("listening on %s", url(listener))
    watching = asyncio.create_task(watch(server, status))
    await server.serve(sockets=[listener])
    if watching.done():
        raise ModelError(watching.result())
    watching.cancel()


async def watch(server: Server, status: Callable[[], EngineStatus]) -> str:
    """Log what is being loaded. When that failed, end the server and return the reason."""
    logged = ""
    while (now := status()).phase != "failed":
        line = f"{now.phase} {now.detail}".strip()
        if line != logged:
            log.info("model: %s", line)
            logged = line
        await asyncio.sleep(POLL_SECONDS)
    server.should_exit = True
    return now.detail


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

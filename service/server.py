"""Runs the app on a socket until a signal ends it, or its model can't be served. Knows no route.

first SIGTERM or SIGINT     draining: work that comes is refused, probes say so, what runs may end
then all is done, or        the listener is closed, and the app told to shut down, which ends what
the drain timeout over,     still runs with an error event
or a second signal comes
STUCK_SECONDS later         what still runs, as nobody reads it, is cancelled
SIGHUP                      keys and certificates are read again
"""

import asyncio
import logging
import signal
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn
import uvloop
from starlette.types import ASGIApp

from model.errors import ModelError
from service.auth import KeyRing, read_keys
from service.config import ConfigError, ServerConfig
from service.drain import begin_drain
from service.engine.protocol import EngineStatus
from service.http_protocol import HttpProtocol
from service.sockets import is_for_others, load_certificate, raise_file_limit, tls_context, url
from service.startup import seconds_since_start

log = logging.getLogger(__name__)

STUCK_SECONDS = 5
POLL_SECONDS = 0.1


class Server(uvicorn.Server):
    """uvicorn's, but answers end in order, and a signal ends it with exit code 0."""

    def __init__(self, config: uvicorn.Config, *, where: str, drain_seconds: float) -> None:
        super().__init__(config)
        self._where = where
        self._drain_seconds = drain_seconds
        self._drained_at: float | None = None
        """Set once it drains: when that ends at the latest."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the first signal and every further one; uvicorn's would raise it anew."""
        if self.should_exit:
            self._drain_seconds, self._drained_at = 0, 0.0
        self.should_exit = True

    def abandon(self) -> None:
        """End at once: what runs can't come to its end."""
        self._drain_seconds = 0
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        log.info("listening on %s", self._where)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second. True, once there is nothing to wait for any longer."""
        if not await super().on_tick(counter):
            return False
        if self._drained_at is None:
            self._begin_drain()
        assert self._drained_at is not None
        return not self.server_state.tasks or time.monotonic() >= self._drained_at

    def _begin_drain(self) -> None:
        log.info("draining: what runs has %g s to end, and no more is taken", self._drain_seconds)
        begin_drain(self.lifespan.state)
        self._drained_at = time.monotonic() + self._drain_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping: %d answers are unfinished", len(self.server_state.tasks))
        ending = asyncio.create_task(self.lifespan.shutdown())
        await super().shutdown(sockets)
        await ending


def make_config(
    app: ASGIApp, config: ServerConfig, tls: ssl.SSLContext | None = None
) -> uvicorn.Config:
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
        backlog=4096,
        timeout_keep_alive=config.keep_alive_timeout,
        timeout_graceful_shutdown=STUCK_SECONDS,
        ssl_context_factory=(lambda *_: tls) if tls else None,
    )


def run(
    app: ASGIApp,
    listener: socket.socket,
    status: Callable[[], EngineStatus],
    config: ServerConfig,
    keys: KeyRing | None = None,
) -> None:
    """Serve until told to stop. Raises ModelError once the status is that it failed, and whatever
    `status` raises."""
    raise_file_limit()
    if keys is None and is_for_others(listener):
        log.warning("whoever can connect can use this server: --api-key-file names who may")
    tls = tls_context(config)
    server = Server(
        make_config(app, config, tls),
        where=url(listener, config),
        drain_seconds=config.drain_timeout,
    )
    reloads: list[Callable[[], None]] = []
    if keys is not None:
        reloads.append(lambda: keys.renew(read_keys(config.api_key_file)))
    if tls is not None:
        reloads.append(lambda: load_certificate(tls, config))
    uvloop.run(serve(server, listener, status, reloads))


async def serve(
    server: Server,
    listener: socket.socket,
    status: Callable[[], EngineStatus],
    reloads: Sequence[Callable[[], None]],
) -> None:
    watching = asyncio.create_task(watch(server, status))
    if reloads:  # else it ends the process, as it does when a terminal is closed
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload, reloads)
    await server.serve(sockets=[listener])
    if watching.done():
        raise ModelError(watching.result())
    watching.cancel()


def reload(reloads: Sequence[Callable[[], None]]) -> None:
    """What can't be read doesn't take the place of what could."""
    for each in reloads:
        try:
            each()
        except ConfigError as error:
            log.error("not reloaded: %s", error)
        else:
            log.info("reloaded")


async def watch(server: Server, status: Callable[[], EngineStatus]) -> str:
    """Log what is being loaded. When that failed, end the server and return the reason."""
    logged = ""
    try:
        while (now := status()).phase != "failed":
            if (line := milestone(now)) != logged:
                log.info("model: %s", line, extra=elapsed())
                logged = line
            await asyncio.sleep(POLL_SECONDS)
    finally:
        server.abandon()
    return now.detail


def elapsed() -> dict[str, dict[str, float]]:
    return {"fields": {"seconds": round(seconds_since_start(), 2)}}


def milestone(status: EngineStatus) -> str:
    """Changes with every quarter of what is being loaded, not with every tensor."""
    if status.phase != "loading":
        return status.phase
    what, quarters = status.detail.partition(" ")[0], int(status.fraction * 4)
    if what == "fetching":  # how far it is, only the one who fetches knows
        return status.detail
    return f"loading {what} {quarters * 25}%"

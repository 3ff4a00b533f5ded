"""Running an app until it can't be served or is to end, and how it drains."""

import asyncio
import logging
import signal
import socket

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from model.errors import ModelError
from service import server
from service.auth import KeyRing
from service.config import ConfigError, ServerConfig
from service.drain import is_draining
from service.engine.protocol import EngineStatus
from service.sockets import bind

CONFIG = ServerConfig(port=0)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Starts up and shuts down, and has no routes."""
    assert scope["type"] == "lifespan"
    for event in ("startup", "shutdown"):
        assert (await receive())["type"] == f"lifespan.{event}"
        await send({"type": f"lifespan.{event}.complete"})


def test_a_failed_model_ends_the_server_with_its_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetching = EngineStatus("loading", "fetching tiny")
    loading = [EngineStatus("loading", f"weights tensor-{n}", n / 10) for n in range(6)]
    statuses = iter([EngineStatus("starting"), fetching, *loading, EngineStatus("failed", "cut")])
    monkeypatch.setattr(server, "POLL_SECONDS", 0.001)
    with (
        caplog.at_level(logging.INFO, "service.server"),
        bind(CONFIG) as listener,
        pytest.raises(ModelError, match="cut"),
    ):
        server.run(app, listener, lambda: next(statuses), CONFIG)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line.startswith("model")] == [
        "model: starting",
        "model: fetching tiny",
        "model: loading weights 0%",
        "model: loading weights 25%",
        "model: loading weights 50%",
    ]


def test_a_status_that_cannot_be_told_ends_the_server_with_its_error() -> None:
    def status() -> EngineStatus:
        raise ZeroDivisionError

    with bind(CONFIG) as listener, pytest.raises(ZeroDivisionError):
        server.run(app, listener, status, CONFIG)


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("keys", [None, KeyRing({})])
def test_a_server_open_to_everybody_says_so(
    others: bool,
    keys: KeyRing | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "is_for_others", lambda listener: others)
    with bind(CONFIG) as listener, pytest.raises(ModelError):
        server.run(app, listener, lambda: EngineStatus("failed", "cut"), CONFIG, keys)
    assert ("--api-key-file" in caplog.text) == (others and keys is None)


class SlowApp:
    """Answers /slow only once it may, or is told to shut down; all else at once, with whether the
    server drains."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.ending = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            self.ending.set()
            return
        body = b"draining" if is_draining(scope["state"]) else b"serving"
        if scope["path"] == "/slow":
            self.asked.set()
            await self.ending.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


class Running:
    """A server with a slow app, on which /slow is being asked."""

    def __init__(self, listener: socket.socket, *, drain_seconds: float) -> None:
        self.app = SlowApp()
        config = server.make_config(self.app, CONFIG)
        self.server = server.Server(config, where="here", drain_seconds=drain_seconds)
        self._address = listener.getsockname()
        self._listener = listener

    async def __aenter__(self) -> "Running":
        self._serving = asyncio.create_task(self.server.serve(sockets=[self._listener]))
        self._listener.listen()
        self._reader, self._writer = await self._ask("/slow")
        await self.app.asked.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving

    async def _ask(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self._address)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: octavo\r\n\r\n".encode())
        return reader, writer

    async def ask(self) -> bytes:
        """What a new client gets, until the connection closes or no more comes."""
        reader, writer = await self._ask("/")
        response = await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        return response

    async def slow_answer(self) -> bytes:
        response = await self._reader.read()
        self._writer.close()
        return response

    def signal(self) -> None:
        self.server.handle_exit(signal.SIGTERM, None)


def test_while_it_drains_what_runs_goes_on_and_others_hear_of_it() -> None:
    async def scenario(listener: socket.socket) -> None:
        async with Running(listener, drain_seconds=60) as running:
            before = await running.ask()
            assert b"serving" in before
            assert b"connection: close" not in before
            running.signal()
            while b"draining" not in (told := await running.ask()):
                pass
            assert b"connection: close" in told
            assert not running.app.ending.is_set()
            running.app.ending.set()
            assert b"serving" in await running.slow_answer()

    with bind(CONFIG) as listener:
        uvloop.run(scenario(listener))
        with pytest.raises(OSError, match="Bad file descriptor"):
            listener.getsockname()


@pytest.mark.parametrize(("drain_seconds", "num_signals"), [(0.0, 1), (600.0, 2)])
def test_after_its_time_or_a_second_signal_the_app_ends_what_runs(
    drain_seconds: float, num_signals: int
) -> None:
    async def scenario(listener: socket.socket) -> None:
        async with Running(listener, drain_seconds=drain_seconds) as running:
            for _ in range(num_signals):
                running.signal()
            assert (await running.slow_answer()).endswith(b"0\r\n\r\n")

    with bind(CONFIG) as listener:
        uvloop.run(scenario(listener))


def test_a_reload_that_fails_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fail() -> None:
        raise ConfigError("--api-key-file is bad")

    with caplog.at_level(logging.INFO, "service.server"):
        server.reload([fail, lambda: done.append("second")])
    assert done == ["second"]
    assert "not reloaded: --api-key-file is bad" in caplog.text

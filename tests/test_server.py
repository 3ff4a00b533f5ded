"""Claiming an address, and running an app on it until it can't be served."""

import asyncio
import logging
import socket

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from model.errors import ModelError
from service import server
from service.engine.protocol import EngineStatus


def test_any_free_port() -> None:
    with server.bind("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        assert port > 0
        assert server.url(listener) == f"http://127.0.0.1:{port}"


def test_a_claimed_address_is_not_listened_on_yet() -> None:
    with server.bind("127.0.0.1", 0) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname()).close()


def test_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(server.ListenError, match=rf"127\.0\.0\.1:{port} \(Address already"):
            server.bind("127.0.0.1", port)


def test_unknown_host() -> None:
    with pytest.raises(server.ListenError, match=r"no such host.*:80 \(.*\): take another --port"):
        server.bind("no such host", 80)


def test_urls_put_brackets_around_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    with server.bind("127.0.0.1", 0) as listener:
        monkeypatch.setattr(socket.socket, "getsockname", lambda self: ("::1", 80, 0, 0))
        assert server.url(listener) == "http://[::1]:80"
        monkeypatch.undo()


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
        server.bind("127.0.0.1", 0) as listener,
        pytest.raises(ModelError, match="cut"),
    ):
        server.run(app, listener, lambda: next(statuses))
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

    with server.bind("127.0.0.1", 0) as listener, pytest.raises(ZeroDivisionError):
        server.run(app, listener, status)


class SlowApp:
    """Answers only once it is told to shut down."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.ending = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            self.ending.set()
        else:
            self.asked.set()
            await self.ending.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ended"})


async def ask_and_stop(listener: socket.socket, slow: SlowApp) -> bytes:
    """What a client gets whose answer takes longer than a stopping server gives it."""
    running = server.Server(server.make_config(slow))
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    listener.listen()
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: octavo\r\n\r\n")
    await slow.asked.wait()
    running.should_exit = True
    response = await reader.read()
    writer.close()
    await serving
    return response


def test_answers_that_take_too_long_are_ended_by_the_app(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "DRAIN_SECONDS", 0)
    with server.bind("127.0.0.1", 0) as listener:
        response = uvloop.run(ask_and_stop(listener, SlowApp()))
    assert response.startswith(b"HTTP/1.1 200 OK")
    assert response.endswith(b"ended\r\n0\r\n\r\n")

"""Connections that are lost while requests wait on them, on a real socket."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson
import uvicorn

from service.http_protocol import HttpProtocol
from tests.fakes import Client, FakeEngine, hang_after, say

BODY = orjson.dumps({"prompt": "Hi"})
REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
)


@contextmanager
def serving(engine: FakeEngine) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(Client(engine).app, http=HttpProtocol, log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def test_pipelined_requests_of_a_client_that_left_are_cancelled() -> None:
    engine = FakeEngine(hang_after("a"))
    with serving(engine) as address:
        with socket.create_connection(address) as connection:
            connection.sendall(REQUEST * 3)
            wait_until(lambda: len(engine.running) == 1)
        wait_until(lambda: not engine.running)
    assert len(engine.submitted) == len(engine.cancelled) == 1


def test_pipelined_requests_are_answered_in_order() -> None:
    engine = FakeEngine(say("a"))
    with serving(engine) as address, socket.create_connection(address) as connection:
        connection.sendall(REQUEST * 3)
        received = b""
        while received.count(b'"text":"a"') < 3:
            received += connection.recv(65536)
        assert received.count(b"HTTP/1.1 200 OK") == 3

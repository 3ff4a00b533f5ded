"""Connections that are lost while requests wait on them, on a real socket."""

import socket
import time
from collections.abc import Callable

import orjson

from tests.fakes import Client, FakeEngine, hang_after, listening, say

BODY = orjson.dumps({"prompt": "Hi"})
REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def test_pipelined_requests_of_a_client_that_left_are_cancelled() -> None:
    engine = FakeEngine(hang_after("a"))
    with listening(Client(engine)) as address:
        with socket.create_connection(address) as connection:
            connection.sendall(REQUEST * 3)
            wait_until(lambda: len(engine.running) == 1)
        wait_until(lambda: not engine.running)
    assert len(engine.submitted) == len(engine.cancelled) == 1


def test_pipelined_requests_are_answered_in_order() -> None:
    engine = FakeEngine(say("a"))
    with listening(Client(engine)) as address, socket.create_connection(address) as connection:
        connection.sendall(REQUEST * 3)
        received = b""
        while received.count(b'"text":"a"') < 3:
            received += connection.recv(65536)
        assert received.count(b"HTTP/1.1 200 OK") == 3

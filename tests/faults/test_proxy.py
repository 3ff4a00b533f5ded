"""A proxy that cuts connections on which nothing has come for a while."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import orjson
import pytest

from service.api import sse
from service.engine.messages import Event, Request
from service.threads import start_daemon
from tests.fakes import Client, FakeEngine, listening
from tests.security.wire import Address, exchange, request

PATIENCE = 0.5
"""The proxy's, in seconds."""
SILENCE = 4 * PATIENCE


class SilentEngine(FakeEngine):
    """Says nothing for longer than the proxy waits, before the first token and before the last."""

    async def _events(self, asked: Request) -> AsyncIterator[Event]:
        await asyncio.sleep(SILENCE)
        yield Event(request_id=asked.id, token_ids=[97])
        await asyncio.sleep(SILENCE)
        self.running.remove(asked.id)
        yield Event(request_id=asked.id, token_ids=[98], finish_reason="length")


@contextmanager
def proxy_of(address: Address) -> Iterator[Address]:
    """For one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        start_daemon(lambda: relay(listener, address))
        yield listener.getsockname()


def relay(listener: socket.socket, address: Address) -> None:
    client, _ = listener.accept()
    with client, socket.create_connection(address, timeout=PATIENCE) as server:
        server.sendall(client.recv(65536))
        try:
            while piece := server.recv(65536):
                client.sendall(piece)
        except TimeoutError:
            pass


def stream_through_proxy() -> bytes:
    body = orjson.dumps({"prompt": "Hi", "stream": True})
    with listening(Client(SilentEngine())) as address, proxy_of(address) as proxy:
        return exchange(proxy, request(body=body))


def test_a_silent_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", PATIENCE / 10)
    answer = stream_through_proxy()
    assert (
        answer.index(sse.KEEP_ALIVE) < answer.index(b'"text":"a"') < answer.rindex(sse.KEEP_ALIVE)
    )
    assert b'"text":"b"' in answer
    assert sse.DONE in answer


def test_without_comments_it_would_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above tests something."""
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 60.0)
    assert stream_through_proxy() == b""

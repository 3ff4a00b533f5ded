"""Heads, bodies and waits of hostile size, on a real socket (CVE-2025-48956, slow requests)."""

import socket
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httptools
import orjson
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from service import http_protocol
from tests.fakes import Client, FakeEngine, hang_after, listening, say
from tests.processes import resident_mib, serving, wait_until
from tests.security.wire import (
    Address,
    connected,
    error_of,
    exchange,
    json_of,
    read_all,
    request,
    status_of,
)

MIB = 1 << 20
HI = orjson.dumps({"prompt": "Hi"})
CHUNKED = request(transfer_encoding="chunked")


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    with listening(Client(FakeEngine(say("Hello.")))) as address:
        yield address


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "LINGER_SECONDS", 0.1)


def test_a_head_of_just_the_size_is_taken(address: Address) -> None:
    name_and_path = len("connectionclosehostoctavopad/livez")
    pad = "x" * (http_protocol.MAX_HEAD_BYTES - name_and_path)
    assert status_of(exchange(address, request("GET", "/livez", pad=pad))) == 200
    refused = exchange(address, request("GET", "/livez", pad=pad + "x"))
    assert error_of(refused) == (431, "headers_too_large")


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /livez HTTP/1.1\r\n", b"a: b\r\n" * 1000),
        (b"GET /livez HTTP/1.1\r\na: ", b"b" * 6000),
        (b"GET /livez HTTP/1.1\r\n", b"a" * 6000),
        (b"GET /", b"a" * 6000),
        (b"", b"\r\n" * 3000),
        (CHUNKED + b"0\r\n", b"a: b\r\n" * 1000),
        (CHUNKED + b"0\r\na: ", b"b" * 6000),
        (CHUNKED + b"1;", b"b" * 6000),
    ],
    ids=[
        *("many", "long value", "long name", "long path", "empty lines"),
        *("trailers", "long trailer", "chunk extension"),
    ],
)
def test_48_mb_of_head_are_cut_with_flat_memory(
    address: Address, begin: bytes, piece: bytes
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConnectionError):
            send_slowly(address, begin, piece, 48 * MIB // len(piece))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


def send_slowly(address: Address, begin: bytes, piece: bytes, times: int) -> None:
    """No faster than the server reads."""
    with connected(address) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        connection.sendall(begin)
        for _ in range(times):
            connection.sendall(piece)


def test_no_more_than_a_head_and_one_read_is_parsed(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []

    class Counting(http_protocol.HttpProtocol):
        def _feed(self, data: bytes) -> None:
            fed.append(len(data))
            super()._feed(data)

    monkeypatch.setattr("tests.fakes.HttpProtocol", Counting)
    with listening(Client()) as address:
        refused = exchange(address, b"GET /livez HTTP/1.1\r\na: " + b"b" * 400_000)
    assert error_of(refused)[0] == 431
    assert sum(fed) < MIB


def test_trailers_add_no_header(address: Address) -> None:
    """They come once the app has read the head; a key, say, mustn't be told afterwards."""
    length = f"{len(HI):x}\r\n".encode()
    body = length + HI + b"\r\n0\r\nx-request-id: trailer\r\n\r\n"
    response = exchange(address, CHUNKED + body)
    assert status_of(response) == 200
    assert b"trailer" not in response


@pytest.mark.parametrize("begin", [b"G", b"GET /livez HTTP/1.1\r\nhost: x\r\n", b"\r\n"])
def test_a_slow_head_is_timed_out(
    address: Address, begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.1)
    assert error_of(exchange(address, begin)) == (408, "request_timeout")


def test_a_byte_now_and_then_gives_a_head_no_more_time(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.3)
    with connected(address) as connection:
        connection.settimeout(0.01)
        connection.sendall(b"GET /livez HTTP/1.1\r\na: ")
        received = b""
        for _ in range(6000):
            try:
                received = connection.recv(65536)
                break
            except TimeoutError:
                connection.sendall(b"b")
    assert error_of(received) == (408, "request_timeout")


@pytest.mark.parametrize("stream", [False, True])
def test_a_slow_body_is_timed_out(
    address: Address, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.1)
    body = orjson.dumps({"prompt": "Hi", "stream": stream})
    assert error_of(exchange(address, request(body=body)[:-1])) == (408, "request_timeout")


def test_a_body_that_comes_fast_enough_gets_more_time(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.1)
    monkeypatch.setattr(http_protocol, "BODY_BYTES_PER_SECOND", 1)
    body = orjson.dumps({"prompt": "Hi", "pad": "x" * 1000})
    with connected(address) as connection:
        connection.sendall(request(body=body)[:-1])
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(60)
        connection.sendall(body[-1:])
        assert status_of(read_all(connection)) == 200


def test_an_idle_connection_is_closed_after_its_time() -> None:
    """One that never asked, and one that was answered."""
    with listening(Client(), timeout_keep_alive=1) as address:
        assert exchange(address) == b""
        response = exchange(address, request("GET", "/livez", connection="keep-alive"))
        assert status_of(response) == 200
        assert b"connection: close" not in response


def test_so_is_one_whose_body_ended_after_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "LINGER_SECONDS", 60)
    late = request(path="/none", connection="keep-alive", body=b"{}")
    with listening(Client(), timeout_keep_alive=1) as address, connected(address) as connection:
        connection.sendall(late[:-1])
        response = b""
        while not response.endswith(b"}}"):
            response += connection.recv(65536)
        connection.sendall(late[-1:])
        connection.settimeout(20)
        assert connection.recv(1) == b""


def test_what_comes_of_a_body_after_its_answer_is_passed_over(address: Address) -> None:
    body = b"x" * 100_000
    with connected(address) as connection:
        connection.sendall(request(path="/none", connection="keep-alive", body=body)[:-1])
        assert status_of(connection.recv(65536)) == 404
        connection.sendall(b"x" + request("GET", "/livez"))
        assert status_of(read_all(connection)) == 200


def test_a_body_that_goes_on_after_its_answer_ends_the_connection() -> None:
    begun = request(path="/none", connection="keep-alive", content_length=str(10**12))
    with listening(Client(), timeout_keep_alive=1000) as address, connected(address) as connection:
        connection.sendall(begun)
        connection.settimeout(15)
        assert error_of(read_all(connection)) == (404, "not_found")


def test_an_answered_body_that_stalls_does_not_hurt_the_next_request(address: Address) -> None:
    begun = request(body=HI, connection="keep-alive")
    assert status_of(exchange(address, begun, request("GET", "/livez"))) == 200


@pytest.mark.no_cover
def test_tiny_chunks_are_read_once_each(address: Address) -> None:
    """A body's bytes are never copied for each of the chunks that it comes in."""
    size = 3 * MIB
    seen: list[int] = []

    class Counting(http_protocol.HttpProtocol):
        def _start_asgi_task(self, cycle: object, app: object) -> None:
            async def counting(scope: object, receive: object, send: object) -> None:
                async def counted() -> object:
                    message = await receive()  # type: ignore[operator]
                    seen.append(len(message.get("body", b"")))
                    return message

                await app(scope, counted, send)  # type: ignore[operator]

            super()._start_asgi_task(cycle, counting)  # type: ignore[arg-type]

    prompt = b'{"prompt": "Hi", "pad": "' + b"x" * size + b'"}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in prompt) + b"0\r\n\r\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.fakes.HttpProtocol", Counting)
        with listening(Client()) as address:
            assert status_of(exchange(address, CHUNKED, chunks)) == 200
    assert sum(seen) == len(prompt)
    assert len(seen) < 10_000


@pytest.mark.parametrize(
    "wire",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /livez HTTP/3.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET \xff HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"CONNECT octavo:80 HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\na\x00: b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\na: \x00\r\n\r\n",
        b"GET /livez HTTP/1.1\r\na: b\r\n folded\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n",
        CHUNKED + b"xyz\r\n",
        CHUNKED + b"ffffffffffffffffff\r\n",
        CHUNKED + b"2\r\nabc\r\n",
    ],
)
def test_what_is_not_http_is_refused_in_json(address: Address, wire: bytes) -> None:
    assert error_of(exchange(address, wire)) == (400, "invalid_http")


def test_rubbish_after_a_request_does_not_cost_its_answer(address: Address) -> None:
    response = exchange(address, request(body=HI, connection="keep-alive") + b"rubbish\r\n\r\n")
    assert status_of(response) == 200
    assert response.endswith(b"}}}")
    assert b"invalid_http" not in response


def test_rubbish_in_the_body_of_a_second_request_ends_the_connection() -> None:
    engine = FakeEngine(hang_after("a"))
    first, second = request(body=HI, connection="keep-alive"), CHUNKED
    with listening(Client(engine)) as address:
        assert exchange(address, first + second + b"rubbish\r\n") == b""
        wait_until(lambda: not engine.running)


def test_rubbish_in_a_body_that_is_being_answered_ends_the_connection() -> None:
    """Its answer has begun, so that no status can be told any more."""
    stream = orjson.dumps({"prompt": "Hi", "stream": True})

    class Impatient(http_protocol.HttpProtocol):
        """Says that a body is whole which isn't."""

        def on_body(self, body: bytes) -> None:
            super().on_body(body)
            if body.endswith(b"}"):
                self.cycle.more_body = False
                self.loop.call_later(0.2, setattr, self.cycle, "more_body", True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.fakes.HttpProtocol", Impatient)
        with listening(Client(FakeEngine(hang_after("a")))) as address, connected(address) as conn:
            conn.sendall(CHUNKED + b"%x\r\n%s\r\n" % (len(stream), stream))
            received = b""
            while b'"text":"a"' not in received:
                received += conn.recv(65536)
            conn.settimeout(0.5)
            with pytest.raises(TimeoutError):
                conn.recv(1)
            conn.settimeout(60)
            conn.sendall(b"rubbish\r\n")
            assert b"invalid_http" not in read_all(conn)


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
def test_an_offer_to_upgrade_is_declined(address: Address, upgrade: str) -> None:
    """As Java's client makes it with each request."""
    offered = request(body=HI, upgrade=upgrade, connection="upgrade, http2-settings")
    again = request(body=HI)
    for pieces in ([offered + again], [offered[:-5], offered[-5:], again]):
        response = exchange(address, *pieces)
        assert response.count(b"HTTP/1.1 200 OK") == 2
        assert response.count(b'"text":"Hello."') == 2


@pytest.mark.parametrize("version", ["1.0", "0.9"])
@pytest.mark.parametrize("stream", [False, True])
def test_old_http_gets_bodies_without_chunks(address: Address, version: str, stream: bool) -> None:
    body = orjson.dumps({"prompt": "Hi", "stream": stream})
    response = exchange(
        address, request(body=body).replace(b"HTTP/1.1", b"HTTP/" + version.encode())
    )
    head, _, content = response.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert content.endswith(b"data: [DONE]\n\n" if stream else b"}}}")
    assert not stream or content.startswith(b"data: {")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics", "/v1/models"])
def test_head_is_get_without_a_body(address: Address, path: str) -> None:
    head, _, body = exchange(address, request("HEAD", path)).partition(b"\r\n\r\n")
    assert status_of(head) == 200
    assert b"content-length: " in head
    assert body == b""


def test_expect_100_continue(address: Address) -> None:
    with connected(address) as connection:
        asked = request(body=HI, expect="100-continue")
        connection.sendall(asked.removesuffix(HI))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(HI)
        assert json_of(read_all(connection))["choices"][0]["text"] == "Hello."


@pytest.fixture(scope="module")
def impatient() -> Iterator[Address]:
    """Of a server that waits for nothing."""
    with pytest.MonkeyPatch.context() as patch, listening(Client(), timeout_keep_alive=0) as served:
        for name in ("HEAD_SECONDS", "BODY_SECONDS", "LINGER_SECONDS"):
            patch.setattr(http_protocol, name, 0.05)
        yield served


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_requests_are_answered_or_refused(impatient: Address, data: st.DataObject) -> None:
    """Never a 5xx, whatever bytes come and however they are cut."""
    wire = bytearray(request(body=HI) + request("GET", "/livez"))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(wire) - 1))
        wire[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    cut = data.draw(st.integers(0, len(wire)))
    with connected(impatient) as connection:
        with suppress(ConnectionError):
            connection.sendall(wire[:cut])
            connection.sendall(wire[cut:])
        assert b"HTTP/1.1 5" not in read_all(connection)


def test_the_parser_still_tells_where_a_head_ended() -> None:
    """Declined upgrades go by its exception's offset."""
    parser = httptools.HttpRequestParser(object())
    head = b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as caught:
        parser.feed_data(head + b"rest")
    assert caught.value.args == (len(head),)


def test_a_thousand_idle_connections_and_many_active_ones(tmp_path: Path) -> None:
    """Connections that wait cost little, and hold nobody up."""
    command = [sys.executable, "-m", "tests.fake_octavo", "none", "serve"]
    with serving(command, tmp_path) as server:
        host, port = server.url.removeprefix("http://").split(":")
        address = (host, int(port))
        before = resident_mib(server.pid)
        idle = [socket.create_connection(address, timeout=60) for _ in range(1000)]
        asked = orjson.dumps({"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True})
        active = [socket.create_connection(address, timeout=60) for _ in range(500)]
        for connection in active:
            connection.sendall(request(body=asked))
        answers = {status_of(read_all(connection)) for connection in active}
        idle[-1].sendall(request("GET", "/readyz"))
        assert status_of(read_all(idle[-1])) == 200
        after = resident_mib(server.pid)
        for connection in (*idle, *active):
            connection.close()
    assert answers == {200}
    assert after - before < 100

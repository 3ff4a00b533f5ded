"""Bytes to a served app and back, below what any HTTP client would send."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

Address = tuple[str, int]
SECONDS = 60
"""Far more than anything here takes."""


@contextmanager
def connected(address: Address) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=SECONDS) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes the connection, be it by a reset."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def exchange(address: Address, *pieces: bytes) -> bytes:
    """All that comes back for these, sent one after the other."""
    with connected(address) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return read_all(connection)


def request(
    method: str = "POST", path: str = "/v1/completions", body: bytes = b"", **headers: str
) -> bytes:
    """With `connection: close`, unless told otherwise; names with _ for -."""
    fields = {"host": "octavo", "connection": "close"}
    fields |= {"content-length": str(len(body))} if body else {}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def status_of(response: bytes) -> int:
    version, status, *_ = response.split(maxsplit=2)
    assert version == b"HTTP/1.1"
    return int(status)


def json_of(response: bytes) -> Any:
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    assert b"x-request-id: " in head
    return orjson.loads(body)


def error_of(response: bytes) -> tuple[int, str]:
    """The status and the code of an error, which has OpenAI's shape."""
    error = json_of(response)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return status_of(response), error["code"]

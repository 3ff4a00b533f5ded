"""What rank 0 tells the other ranks: messages, by a connection to each, apart from tensors.

So a step can be told of while another is computed, without a word between the messages' order and
the sums'. And no message waits for whom it is for, as gloo's broadcasts do.

A message goes as its length in eight bytes, the lowest first, and then its own. Whoever connects
shows that it is a rank by a secret, which is there in the ranks' store. Knows no torch.
"""

import socket
from collections.abc import Callable, Sequence
from secrets import compare_digest, token_bytes

SECRET_LEN, LENGTH_LEN = 16, 8
SECRET_SECONDS = 5.0


class Wire:
    """Raises OSError where another end is gone, or holds out for longer than the timeout."""

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        """Rank 0's to each of the others, or the one that another has to rank 0."""
        self._connections = connections

    def tell(self, message: bytes) -> None:
        for connection in self._connections:
            connection.sendall(len(message).to_bytes(LENGTH_LEN, "little") + message)

    def hear(self) -> bytes:
        """The next message."""
        (connection,) = self._connections
        length = int.from_bytes(_read(connection, LENGTH_LEN), "little")
        return _read(connection, length)


def gather(
    address: str, *, num_others: int, seconds: float, publish: Callable[[str], None]
) -> Wire:
    """Rank 0's. publish: brings the others what `connect` takes."""
    secret, connections = token_bytes(SECRET_LEN), list[socket.socket]()
    family, *_, there = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with socket.create_server(there[:2], family=family, backlog=num_others) as server:
        server.settimeout(seconds)
        publish(f"{server.getsockname()[1]} {secret.hex()}")
        while len(connections) < num_others:
            connection, _ = server.accept()
            if _is_rank(connection, secret):
                connections.append(_ready(connection, seconds))
            else:
                connection.close()
    return Wire(connections)


def connect(address: str, *, published: str, seconds: float) -> Wire:
    """Another rank's."""
    port, secret = published.split()
    connection = socket.create_connection((address, int(port)), timeout=seconds)
    connection.sendall(bytes.fromhex(secret))
    return Wire([_ready(connection, seconds)])


def _ready(connection: socket.socket, seconds: float) -> socket.socket:
    connection.settimeout(seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _is_rank(connection: socket.socket, secret: bytes) -> bool:
    connection.settimeout(SECRET_SECONDS)
    try:
        return compare_digest(_read(connection, SECRET_LEN), secret)
    except OSError:
        return False


def _read(connection: socket.socket, length: int) -> bytes:
    data, num_read = bytearray(length), 0
    while num_read < length:
        num = connection.recv_into(memoryview(data)[num_read:])
        if num == 0:
            raise ConnectionError("the other end has closed the connection")
        num_read += num
    return bytes(data)

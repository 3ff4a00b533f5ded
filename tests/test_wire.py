"""Messages come whole and in order, whatever their size, and from ranks alone."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from model import wire as module
from model.wire import Wire, connect, gather

ADDRESS, SECONDS = "127.0.0.1", 30.0
MESSAGES = [b"", b"a step", bytes(range(256)) * 40_000, b"", b"the next"]


class Meeting:
    """Rank 0 waits for two others on a thread of its own."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self._is_published = threading.Event()
        self._pool = ThreadPoolExecutor(3)
        self.first = self._pool.submit(
            gather, ADDRESS, num_others=2, seconds=seconds, publish=self._publish
        )

    def _publish(self, published: str) -> None:
        self._text = published
        self._is_published.set()

    @property
    def published(self) -> str:
        assert self._is_published.wait(SECONDS)
        return self._text

    def join(self) -> Wire:
        return connect(ADDRESS, published=self.published, seconds=SECONDS)


def closed(wire: Wire) -> None:
    for connection in wire._connections:
        connection.close()


def test_each_of_the_others_hears_all_that_is_told() -> None:
    meeting = Meeting()
    others = [meeting.join(), meeting.join()]
    first = meeting.first.result()
    with ThreadPoolExecutor(2) as pool:
        heard = [pool.submit(lambda wire: [wire.hear() for _ in MESSAGES], o) for o in others]
        for message in MESSAGES:
            first.tell(message)
        assert [each.result() for each in heard] == [MESSAGES] * 2
    closed(first)
    for other in others:
        with pytest.raises(OSError, match="has closed the connection"):
            other.hear()
        closed(other)


@pytest.mark.parametrize("said", [b"", b"not the secret", bytes(16)])
def test_whoever_is_no_rank_is_sent_away(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when it says nothing and stays."""
    monkeypatch.setattr(module, "SECRET_SECONDS", 0.2)
    meeting = Meeting()
    port = int(meeting.published.split()[0])
    with socket.create_connection((ADDRESS, port), timeout=SECONDS) as stranger:
        stranger.sendall(said)
        others = [meeting.join(), meeting.join()]
        meeting.first.result().tell(b"for ranks")
        assert [other.hear() for other in others] == [b"for ranks"] * 2
        assert stranger.recv(1) == b""
    for wire in (meeting.first.result(), *others):
        closed(wire)


def test_whoever_listens_in_vain_or_speaks_to_nobody_notices() -> None:
    first, other = socket.socketpair()
    other.settimeout(0.05)
    with first, other, pytest.raises(OSError, match="timed out"):
        Wire([other]).hear()
    with first, pytest.raises(OSError, match=r"[Bb]roken pipe|[Bb]ad file"):
        Wire([first]).tell(b"too late")


def test_ranks_that_do_not_come_are_not_awaited_for_ever() -> None:
    meeting = Meeting(seconds=0.2)
    with pytest.raises(OSError, match="timed out"):
        meeting.first.result()

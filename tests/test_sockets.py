"""Claiming an address, TCP's or a Unix socket's, and reading certificates."""

import os
import resource
import socket
import stat
from pathlib import Path

import pytest

from service import sockets
from service.config import ConfigError, ServerConfig

ANY_PORT = ServerConfig(port=0)


def test_any_free_port() -> None:
    with sockets.bind(ANY_PORT) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        assert port > 0
        assert sockets.url(listener, ANY_PORT) == f"http://127.0.0.1:{port}"


def test_a_claimed_address_is_not_listened_on_yet() -> None:
    with sockets.bind(ANY_PORT) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname()).close()


def claim(config: ServerConfig) -> None:
    with sockets.bind(config):
        pass


def test_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(sockets.ListenError, match=rf"127\.0\.0\.1:{port} \(Address already"):
            claim(ServerConfig(port=port))


def test_unknown_host() -> None:
    with pytest.raises(sockets.ListenError, match=r"no such host.*:80 \(.*\): take another --port"):
        claim(ServerConfig(host="no such host", port=80))


def test_urls_put_brackets_around_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    with sockets.bind(ANY_PORT) as listener:
        monkeypatch.setattr(socket.socket, "getsockname", lambda self: ("::1", 80, 0, 0))
        assert sockets.url(listener, ANY_PORT) == "http://[::1]:80"
        assert sockets.url(listener, ServerConfig(ssl_certfile="x")) == "https://[::1]:80"
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("address", "others"),
    [("127.0.0.1", False), ("127.8.8.8", False), ("::1", False), ("0.0.0.0", True), ("::", True)],
)
def test_whether_others_can_reach_it(
    address: str, others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sockets.bind(ANY_PORT) as listener:
        monkeypatch.setattr(socket.socket, "getsockname", lambda self: (address, 80))
        assert sockets.is_for_others(listener) is others
        monkeypatch.undo()


def test_a_unix_socket_is_for_its_owner_and_group_and_goes_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    config = ServerConfig(uds=str(path))
    with sockets.bind(config) as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert sockets.url(listener, config) == f"unix:{path}"
        assert not sockets.is_for_others(listener)
    assert not path.exists()


def test_a_unix_socket_that_somebody_moved_away_is_no_matter(tmp_path: Path) -> None:
    with sockets.bind(ServerConfig(uds=str(tmp_path / "octavo.sock"))):
        (tmp_path / "octavo.sock").unlink()


def test_a_stale_unix_socket_is_taken_over_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "octavo.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with sockets.bind(ServerConfig(uds=path)) as listener:
        listener.listen()
        with pytest.raises(sockets.ListenError, match=r"octavo.sock \(Address already"):
            claim(ServerConfig(uds=path))
        assert os.path.exists(path)


def test_a_file_is_no_unix_socket_to_take_over(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("kept")
    with pytest.raises(sockets.ListenError, match="take another --uds"):
        claim(ServerConfig(uds=str(path)))
    assert path.read_text() == "kept"


def test_without_a_certificate_there_is_no_tls() -> None:
    assert sockets.tls_context(ANY_PORT) is None


@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\nxx\n"])
def test_a_certificate_that_cannot_be_used(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "cert.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"--ssl-certfile .*cert\.pem.*: name PEM files"):
        sockets.tls_context(ServerConfig(ssl_certfile=str(path)))


def test_the_file_limit_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    sockets.raise_file_limit()
    assert asked == [(4096, 4096)]

"""Claims the address to listen on, and reads what TLS needs. Knows no protocol above that."""

import ipaddress
import os
import resource
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from service.config import ConfigError, ServerConfig
from service.errors import CommandError

UDS_MODE = 0o660
"""Of a Unix socket: its owner and group may connect."""


class ListenError(CommandError):
    """The address can't be listened on."""


@contextmanager
def bind(config: ServerConfig) -> Iterator[socket.socket]:
    """The address, claimed: nobody can connect before the server listens on it."""
    listener = bind_unix(config.uds) if config.uds else bind_tcp(config.host, config.port)
    try:
        yield listener
    finally:
        listener.close()
        if config.uds:
            with suppress(FileNotFoundError):
                os.unlink(config.uds)


def bind_tcp(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _claim(listener, address)
    except OSError as error:
        raise ListenError(
            f"can't listen on {host}:{port} ({error.strerror}): take another --port or --host, or "
            "stop what listens there"
        ) from None


def bind_unix(path: str) -> socket.socket:
    try:
        remove_stale(path)
        listener = _claim(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)
        os.chmod(path, UDS_MODE)
        return listener
    except OSError as error:
        raise ListenError(
            f"can't listen on {path} ({error.strerror}): take another --uds, or stop what listens "
            "there"
        ) from None


def remove_stale(path: str) -> None:
    """A socket's file outlives a process that was killed, and nobody listens on it any more."""
    with suppress(FileNotFoundError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)


def _claim(listener: socket.socket, address: Any) -> socket.socket:
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """TLS 1.2 or newer; None where none is asked for."""
    if not config.ssl_certfile:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, config)
    return context


def load_certificate(context: ssl.SSLContext, config: ServerConfig) -> None:
    """Into a context that may be in use: connections from here on get it."""
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile or None)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigError(
            f"--ssl-certfile {config.ssl_certfile}, --ssl-keyfile {config.ssl_keyfile}: "
            f"{error.strerror if isinstance(error, OSError) else error}: name PEM files, the "
            "certificate's chain and the key that belongs to it"
        ) from None


def url(listener: socket.socket, config: ServerConfig) -> str:
    if config.uds:
        return f"unix:{config.uds}"
    scheme = "https" if config.ssl_certfile else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_for_others(listener: socket.socket) -> bool:
    """Whether other machines may be able to connect."""
    if listener.family == socket.AF_UNIX:
        return False
    return not ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def raise_file_limit() -> None:
    """To as many connections as may be had: shells most often give a process 1,024 files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

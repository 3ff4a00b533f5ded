"""uvicorn's HTTP/1.1 protocol on guard: bounded heads, bounded waiting, errors in the API's shape.

    idle --first byte--> head --its end--> body --its end--> nothing more is awaited
    75 s                 5 s               20 s, and a second more for each 16 KB that came

It differs from uvicorn's in what a client can see:
- a head or trailers beyond MAX_HEAD_BYTES end the connection, with 431, before they are stored;
- so does, with 408, a head or a body that doesn't come; a connection is never held for nothing;
- what isn't HTTP gets its 400 in JSON, and not in the midst of another request's answer;
- an offer to upgrade (HTTP/2, by many a Java client) is declined as RFC 9110 7.8 has it: the
  request is served. uvicorn's parser would lose its body;
- HTTP/1.0 gets bodies without chunks, of which it knows nothing;
- every request learns that its client is gone, not the newest of a connection only;
- while the server drains, each answer says that its connection closes.

Knows bytes, timers and connections; nothing of routes.
"""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import httptools
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.api.errors import ApiError
from service.drain import is_draining

log = logging.getLogger("octavo.access")

MAX_HEAD_BYTES = 64 << 10
HEAD_SECONDS = 5.0
BODY_SECONDS = 20.0
BODY_BYTES_PER_SECOND = 16 << 10
LINGER_SECONDS = 2.0
LINGER_BYTES = 512 << 10
"""What is read, and thrown away, of a client that was refused: closed at once, the connection would
be reset, and the client would most often not see why."""

Awaited = Literal["head", "body"]


class RefusedError(ApiError):
    """What came can't be answered by the app."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(status, message, code=code)
        self.id = uuid.uuid4().hex

    def written(self) -> bytes:
        body = orjson.dumps(self.body)
        return STATUS_LINE[self.status] + (
            b"content-type: application/json\r\n"
            b"content-length: %d\r\n"
            b"connection: close\r\n"
            b"x-request-id: %s\r\n\r\n%s" % (len(body), self.id.encode(), body)
        )


class HttpProtocol(HttpToolsProtocol):
    transport: asyncio.Transport

    def connection_made(self, transport: object) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._unanswered: deque[RequestResponseCycle] = deque()  # the first is being answered
        self._awaited: Awaited | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._body_began = 0.0
        self._body_len = 0
        self._head_len = 0
        """Bytes since the parser last told of a head's end or a piece of body. That many may be
        part of one head, or of trailers."""
        self._refused = False
        self._num_ignored = 0
        self._begin_idle()

    def _begin_idle(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        self._unset_keepalive_if_required()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    # What comes, byte by byte

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._ignore(len(data))
            return
        self._unset_keepalive_if_required()
        if self._awaited is None:
            self._await("head")
        self._head_len += len(data)
        try:
            self._feed(data)
            if self._head_len > MAX_HEAD_BYTES:
                raise head_too_large()
        except RefusedError as refusal:
            self._refuse(refusal)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            (offset,) = upgrade.args
            self._decline_upgrade(data[offset:])
        except httptools.HttpParserError as error:
            cause = error.__context__  # what a callback of ours raised
            raise cause if isinstance(cause, RefusedError) else not_http(cause or error) from None

    def _decline_upgrade(self, rest: bytes) -> None:
        """Begin the request anew, as if it had not been offered."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            raise RefusedError(400, "CONNECT is for proxies, and this is none.", "invalid_http")
        kept = [(name, value) for name, value in self.headers if name != b"upgrade"]
        lines = b"".join(b"%s: %s\r\n" % header for header in kept)
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"%s %s HTTP/%s\r\n%s\r\n%s" % (method, self.url, version, lines, rest))

    # What the parser tells of it

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await("head")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of a head. Trailers, which come after the app has begun, count for nothing."""
        if self._awaited == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        head_len = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if head_len > MAX_HEAD_BYTES:
            raise head_too_large()
        super().on_headers_complete()
        self._head_len = 0
        self._unanswered.append(self.cycle)
        if is_draining(self.app_state):
            self.cycle.keep_alive = False
        self._body_began, self._body_len = self.loop.time(), 0
        self._await("body")

    def on_chunk_header(self) -> None:
        self._head_len = 0

    def on_body(self, body: bytes) -> None:
        self._head_len = 0
        self._body_len += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._await(None)
        super().on_message_complete()
        if not self._unanswered:  # it was answered before it was whole
            self._begin_idle()

    # What is answered

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] != "1.1":
            app = partial(unchunked, cycle, app)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        cycle = self._unanswered.popleft()
        super().on_response_complete()
        if cycle.more_body or (self._refused and not self._unanswered):
            self._close_soon()  # unless the rest of the body, which is for nothing, comes soon too

    def _refuse(self, refusal: RefusedError) -> None:
        """Hear no more, and tell why, unless the client is to get the answer to a whole request."""
        self._await(None)
        self._refused = True
        cycle = self._unanswered[-1] if self._unanswered else None
        if cycle is not None and not cycle.more_body:
            return
        if cycle is not None:  # its body will never be whole
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or len(self._unanswered) > 1:
                self.transport.close()
                return
            self._unanswered.clear()
        log_refusal(refusal)
        self.transport.write(refusal.written())
        self._close_soon()

    # What isn't waited for

    def _await(self, what: Awaited | None) -> None:
        self._awaited = what
        if what is None:
            self._stop_timer()
        else:
            self._start_timer(HEAD_SECONDS if what == "head" else BODY_SECONDS, self._on_timer)

    def _start_timer(self, seconds: float, do: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, do)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        left = self._body_seconds_left() if self._awaited == "body" else 0.0
        if left > 0:
            self._start_timer(left, self._on_timer)
        else:
            message = f"The request's {self._awaited} took too long."
            self._refuse(RefusedError(408, message, "request_timeout"))

    def _body_seconds_left(self) -> float:
        """A client isn't to blame while it is us who don't read."""
        if self.flow.read_paused:
            self._body_began = self.loop.time()
        allowed = BODY_SECONDS + self._body_len / BODY_BYTES_PER_SECOND
        return self._body_began + allowed - self.loop.time()

    def _close_soon(self) -> None:
        self._start_timer(LINGER_SECONDS, self.transport.close)

    def _ignore(self, num_bytes: int) -> None:
        self._num_ignored += num_bytes
        if self._num_ignored > LINGER_BYTES and not self._unanswered:
            self.transport.abort()


async def unchunked(
    cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    """A body that ends where its connection does."""
    cycle.chunked_encoding = False

    async def send_plain(message: Message) -> None:
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_plain)


def log_refusal(refusal: RefusedError) -> None:
    fields = {"status": refusal.status, "request_id": refusal.id}
    log.info("no request: %s", refusal, extra={"fields": fields})


def head_too_large() -> RefusedError:
    message = f"The headers have more than {MAX_HEAD_BYTES} bytes, which is all that is taken."
    return RefusedError(431, message, "headers_too_large")


def not_http(error: BaseException) -> RefusedError:
    return RefusedError(400, f"This isn't HTTP as it is spoken here: {error}.", "invalid_http")

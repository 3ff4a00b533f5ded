"""The app's outermost middleware: a request's id, its line in the log, its trace, the last resort.

Pure ASGI, so that the events of a stream pass through it one by one.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from starlette._utils import get_route_path
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import as_api_error
from service.api.gate import PUBLIC
from service.logs import begin_request
from service.tracing import Tracer, begin_trace

log = logging.getLogger("octavo.access")

SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for the log line of a client that left; nobody is there to receive it."""
MAX_PATH_LEN = 200


Account = Callable[[Scope, Mapping[str, Any]], None]


def _nobody(scope: Scope, notes: Mapping[str, Any]) -> None:
    """Takes the place of whoever keeps accounts, where nobody does."""


class RequestContext:
    def __init__(
        self, app: ASGIApp, account: Account = _nobody, tracer: Tracer | None = None
    ) -> None:
        """`account` gets each request that has ended, with what was noted of it."""
        self._app = app
        self._account = account
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send, self._tracer)
        if scope["method"] == "HEAD":  # in a copy: the server's own leaves the body out by it
            scope = {**scope, "method": "GET"}
        try:
            await self._app(scope, receive, exchange.send)
        except ClientDisconnect:
            exchange.status = CLIENT_CLOSED_REQUEST
        except Exception as error:
            await exchange.fail(error, scope, receive)
        finally:
            exchange.end()
            self._account(scope, exchange.notes)


class _Exchange:
    """One request and its answer, as far as they concern log and trace."""

    def __init__(self, scope: Scope, send: Send, tracer: Tracer | None) -> None:
        asked_id = Headers(scope=scope).get("x-request-id", "")
        self.id = asked_id if SANE_ID.fullmatch(asked_id) else uuid.uuid4().hex
        self.status = 0
        self.notes = begin_request(self.id)
        self._method = scope["method"]
        self._path = quote(scope["path"])[:MAX_PATH_LEN]
        self._is_probe = get_route_path(scope) in PUBLIC
        self._send = send
        self._started = time.monotonic()
        self._trace = begin_trace(None if self._is_probe else tracer, scope)
        if self._trace is not None:
            self.notes["trace_id"] = self._trace.id

    @property
    def _is_routine(self) -> bool:
        """A probe or a scrape that found all well. They come many times a second."""
        return self._is_probe and self.status < 400

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.id
            if self._trace is not None:
                headers["traceparent"] = self._trace.traceparent
        await self._send(message)

    async def fail(self, error: Exception, scope: Scope, receive: Receive) -> None:
        """Nobody handled it: say 500 if something can still be said, else cut the connection."""
        if self.status:
            raise error
        await as_api_error(error).response()(scope, receive, self.send)

    def end(self) -> None:
        self._log()
        if self._trace is not None:
            self._trace.end(self.id, self.status, self.notes)

    def _log(self) -> None:
        fields: dict[str, Any] = {
            "method": self._method,
            "path": self._path,
            "status": self.status,
            "seconds": round(time.monotonic() - self._started, 4),
            **self.notes,
        }
        level = logging.DEBUG if self._is_routine else logging.INFO
        log.log(level, "%s %s %d", self._method, self._path, self.status, extra={"fields": fields})

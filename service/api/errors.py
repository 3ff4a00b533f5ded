"""Errors in OpenAI's shape: one exception that the routes raise, one place that makes JSON of any.

    {"error": {"message", "type", "param", "code"}}      all four keys, always

Knows HTTP statuses and OpenAI's words for them; a failure of ours never tells more than the
request's id, which the log has the rest under.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service.api.responses import JsonResponse
from service.engine.protocol import EngineUnavailableError
from service.limits import QueueFullError
from service.logs import current_request_id
from service.quota import QuotaExceededError

log = logging.getLogger(__name__)

RETRY_AFTER = {"retry-after": "5"}
MAX_SHOWN_LEN = 80


class ApiError(Exception):
    """An answer other than the one asked for. The message is for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": type, "param": param, "code": code}
        }

    def response(self) -> Response:
        return JsonResponse(self.body, self.status, self.headers)


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def model_not_found(name: str, served: Sequence[str]) -> ApiError:
    message = f"There is no model {shown(name)} here; ask for {' or '.join(served)}."
    return ApiError(404, message, param="model", code="model_not_found")


def unavailable(message: str, *, code: str) -> ApiError:
    return ApiError(503, message, type="server_error", code=code, headers=RETRY_AFTER)


def queue_full(error: QueueFullError) -> ApiError:
    what = error.bound.removeprefix("queue_")
    return _rate_limited(f"The queue is full: {error}.", what, error.retry_after)


def quota_exceeded(error: QuotaExceededError) -> ApiError:
    return _rate_limited(f"Too many {error.quota}: {error}.", error.quota, error.retry_after)


def _rate_limited(problem: str, what: str, retry_after: int) -> ApiError:
    """The type says what there is too much of, as OpenAI's does."""
    return ApiError(
        429,
        f"{problem} Try again in {retry_after} s.",
        type=what,
        code="rate_limit_exceeded",
        headers={"retry-after": str(retry_after)},
    )


def deadline_exceeded() -> ApiError:
    message = "The deadline passed before there was a first token; allow more time."
    return ApiError(504, message, type="timeout_error", code="deadline_exceeded")


def internal_error() -> ApiError:
    message = f"The server failed on this request. Its id is {current_request_id()}."
    return ApiError(500, message, type="server_error", code="internal_error")


def shown(value: object) -> str:
    """A value as the client wrote it, or the beginning of it."""
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # it writes 254 levels at most, though it reads 1,024
        return "a deeply nested value"
    return text if len(text) <= MAX_SHOWN_LEN else f"{text[:MAX_SHOWN_LEN]}…"


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an exception; what it isn't told is logged."""
    match error:
        case ApiError():
            return error
        case EngineUnavailableError():
            return unavailable(f"{error}; try again in a moment.", code="engine_unavailable")
        case QueueFullError():
            return queue_full(error)
        case _:
            log.error("unexpected error", exc_info=error)
            return internal_error()


async def _handle(request: Request, error: Exception) -> Response:
    return as_api_error(error).response()


async def _handle_routing(request: Request, error: HTTPException) -> Response:
    """No such route (404), or not with this method (405)."""
    status = HTTPStatus(error.status_code)
    message = f"{request.method} {shown(request.url.path)}: {status.phrase}. See /docs."
    code = status.name.lower()
    return ApiError(status, message, code=code, headers=error.headers).response()


HANDLERS: Mapping[
    int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]
] = {
    ApiError: _handle,
    EngineUnavailableError: _handle,
    QueueFullError: _handle,
    HTTPException: _handle_routing,
}
"""Any other exception reaches RequestContext, which answers 500 in the same shape."""

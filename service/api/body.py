"""A body's bytes to a request: its type, its size, its JSON, its shape.

Of a key that an object has twice the last value counts, as in most JSON readers. NaN, infinities,
lone surrogates, a byte order mark, invalid UTF-8 and nesting beyond 1,024 levels aren't JSON here.
"""

from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.requests import Request

from service.api.errors import ApiError, bad_request, shown
from service.api.unsupported import find_unsupported

Model = TypeVar("Model", bound=BaseModel)


async def read_json(request: Request, model: type[Model], *, max_bytes: int) -> Model:
    """The request's body as what the route expects of it."""
    _check_content_type(request.headers)
    _check_encoding(request.headers.get("content-encoding", "identity"))
    return parse(await _read_body(request, max_bytes), model)


def _check_content_type(headers: Headers) -> None:
    """Refuses what a web page may send across origins without asking. Absence is let pass, unless
    there is an Origin, by which browsers tell that it comes from a page."""
    assumed = "" if "origin" in headers else "application/json"
    value = headers.get("content-type") or assumed
    media_type = value.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(
            415,
            f"The content-type is {shown(media_type)}; send application/json.",
            code="unsupported_media_type",
        )


def _check_encoding(value: str) -> None:
    if value.strip().lower() != "identity":
        raise ApiError(
            415,
            f"The content-encoding is {shown(value)}; send the JSON as it is.",
            code="unsupported_media_type",
        )


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """The body, of which no more than the limit is ever held."""
    _check_len(int(request.headers.get("content-length", 0)), max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        _check_len(len(body) + len(chunk), max_bytes)
        body += chunk
    return bytes(body)


def _check_len(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise ApiError(
            413,
            f"The body has more than {max_bytes} bytes, which is all that is taken.",
            code="request_too_large",
        )


def parse(body: bytes, model: type[Model]) -> Model:
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The body isn't JSON: {error}.", code="invalid_json") from None
    if not isinstance(raw, dict):
        raise bad_request(f"The body is {shown(raw)}; send a JSON object.")
    if (name := find_unsupported(raw, model)) is not None:
        raise bad_request(
            f"{name} is not supported yet with the value {shown(raw[name])}; leave it out.",
            param=name,
            code="unsupported_parameter",
        )
    return _validate(raw, model)


def _validate(raw: dict[str, Any], model: type[Model]) -> Model:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise _shape_error(error.errors(include_url=False)[0]) from None


def _shape_error(details: ErrorDetails) -> ApiError:
    """Pydantic's first complaint, with the value it is about."""
    param = _join_location(details["loc"])
    code = "unsupported_parameter" if details["type"] == "unsupported_parameter" else None
    if details["type"] == "missing":
        return bad_request(f"{param} is required.", param=param)
    said = str(details["ctx"]["error"]) if details["type"] == "value_error" else details["msg"]
    message = f"{param} is {shown(details['input'])}: {said[0].lower()}{said[1:]}."
    return bad_request(message, param=param, code=code)


def _join_location(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") is written messages[0].role."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")

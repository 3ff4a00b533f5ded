"""Bodies that are too big, of the wrong type, no JSON, or no object."""

import asyncio
from collections.abc import Iterable, Sequence

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from service.api.body import parse, read_json
from service.api.errors import ApiError
from service.api.schema import CompletionRequest

GOOD = b'{"prompt": "Hi"}'


def read(
    messages: Iterable[Message],
    *,
    content_type: str | None = "application/json",
    limit: int = 100,
    other_headers: Sequence[tuple[bytes, bytes]] = (),
) -> CompletionRequest:
    received = iter(messages)

    async def receive() -> Message:
        return next(received)

    headers = [] if content_type is None else [(b"content-type", content_type.encode())]
    request = Request({"type": "http", "headers": [*headers, *other_headers]}, receive)
    return asyncio.run(read_json(request, CompletionRequest, max_bytes=limit))


def chunks(*bodies: bytes) -> list[Message]:
    return [
        {"type": "http.request", "body": body, "more_body": number < len(bodies)}
        for number, body in enumerate(bodies, start=1)
    ]


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json", None],
)
def test_json_of_any_name_is_taken(content_type: str | None) -> None:
    assert read(chunks(GOOD), content_type=content_type).prompt == ["Hi"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "x"])
def test_other_content_types_are_refused(content_type: str) -> None:
    with pytest.raises(ApiError, match=content_type) as caught:
        read(chunks(GOOD), content_type=content_type)
    assert caught.value.status == 415


def test_a_body_in_pieces_is_put_together() -> None:
    assert read(chunks(*(bytes([byte]) for byte in GOOD))).prompt == ["Hi"]


def test_nothing_is_read_beyond_the_limit() -> None:
    endless = ({"type": "http.request", "body": b" " * 60, "more_body": True} for _ in range(10))
    with pytest.raises(ApiError, match="100 bytes") as caught:
        read(endless)
    assert caught.value.status == 413
    assert len(list(endless)) == 8


def test_what_is_declared_too_large_is_refused_unread() -> None:
    with pytest.raises(ApiError, match="100 bytes") as caught:
        read([], other_headers=[(b"content-length", b"101")])
    assert caught.value.status == 413


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
def test_encoded_bodies_are_refused(encoding: str) -> None:
    with pytest.raises(ApiError, match=f"content-encoding is .{encoding}") as caught:
        read(chunks(GOOD), other_headers=[(b"content-encoding", encoding.encode())])
    assert caught.value.status == 415


def test_the_identity_encoding_is_taken() -> None:
    assert read(chunks(GOOD), other_headers=[(b"content-encoding", b"identity")]).prompt == ["Hi"]


def test_a_body_of_just_the_limit_is_taken() -> None:
    assert read(chunks(GOOD), limit=len(GOOD)).prompt == ["Hi"]


def test_a_client_that_leaves_amid_its_body() -> None:
    with pytest.raises(ClientDisconnect):
        read([*chunks(b"{", b"")[:1], {"type": "http.disconnect"}])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"prompt": "Hi"} x',
        b'{"prompt": "\xff\xfe"}',
        b"\xef\xbb\xbf" + GOOD,
        GOOD.decode().encode("utf-16"),
        b'{"prompt": "a \\ud800 b"}',
        b'{"prompt": "Hi", "temperature": NaN}',
        b'{"prompt": "Hi", "temperature": 1e400}',
        b'{"prompt": "Hi", "temperature": -Infinity}',
        b'{"prompt": "\x00"}',
        b"[" * 100_000,
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="isn't JSON") as caught:
        parse(body, CompletionRequest)
    assert caught.value.status == 400
    assert caught.value.body["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("body", [b'"hello"', b"null", b"[1,2,3]", b"5", b"true"])
def test_json_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="JSON object"):
        parse(body, CompletionRequest)


def test_the_last_of_two_equal_keys_counts() -> None:
    assert parse(b'{"prompt": "a", "prompt": "b"}', CompletionRequest).prompt == ["b"]


def test_huge_values_are_shown_in_part() -> None:
    with pytest.raises(ApiError) as caught:
        parse(b'{"prompt": "Hi", "n": "' + b"9" * 100_000 + b'"}', CompletionRequest)
    assert len(str(caught.value)) < 300

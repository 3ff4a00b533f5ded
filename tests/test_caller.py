"""The headers that say whose a call is and until when an answer is of use."""

import asyncio
import time
from typing import Any

import pytest
from starlette.requests import Request

from service.api.caller import Caller, get_caller
from service.api.errors import ApiError
from service.auth import Tenant

HEADER = b"x-request-deadline-ms"


def read(*values: bytes, **fields: Any) -> Caller:
    scope = {"type": "http", "headers": [(HEADER, value) for value in values]} | fields
    return asyncio.run(get_caller(Request(scope)))


def test_nothing_said_is_anybodys_and_may_take_for_ever() -> None:
    assert read() == Caller(Tenant(""), None)


def test_the_tenant_is_the_one_whose_key_was_shown() -> None:
    assert read(tenant=Tenant("a", 2)).tenant == Tenant("a", 2)


@pytest.mark.parametrize(
    ("value", "seconds"), [(b"1", 0.001), (b"0250", 0.25), (b"86400000", 86400)]
)
def test_a_deadline_counts_from_arrival(value: bytes, seconds: float) -> None:
    before = time.monotonic()
    deadline = read(value).deadline
    assert deadline is not None
    assert before <= deadline - seconds <= time.monotonic()


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"0", b"-1", b"+1", b"1.5", b"1e3", b"nan", b"NaN", b"inf", b"0x10", b" ", b"1 2"),
        *(b"86400001", b"9" * 5000, b"1,2", b"1_000", "٣".encode(), b"\xff", b"true", b"ten"),
    ],
)
def test_any_other_deadline_is_refused_by_name(value: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read(value)
    assert caught.value.status == 400
    error = caught.value.body["error"]
    assert error["param"] == HEADER.decode()
    assert "send one number of milliseconds, 1 to 86400000" in error["message"]
    assert len(error["message"]) < 250


def test_two_deadlines_are_refused() -> None:
    with pytest.raises(ApiError, match="is there 2 times"):
        read(b"100", b"100")

"""What the headers of a call say of it: whose it is, and until when an answer is of use."""

import re
import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from service.api.errors import ApiError, bad_request, shown
from service.auth import Tenant

DEADLINE_HEADER = "x-request-deadline-ms"
MAX_DEADLINE_MS = 24 * 3600 * 1000
DIGITS = re.compile(r"[0-9]{1,8}")
ANYBODY = Tenant()


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: Tenant = ANYBODY
    deadline: float | None = None
    """On the monotonic clock."""


async def get_caller(request: Request) -> Caller:
    arrived = time.monotonic()
    tenant = request.scope.get("tenant", ANYBODY)
    values = request.headers.getlist(DEADLINE_HEADER)
    return Caller(tenant, arrived + _seconds(values) if values else None)


def _seconds(values: list[str]) -> float:
    if len(values) > 1:
        raise _bad_deadline(f"is there {len(values)} times")
    if not DIGITS.fullmatch(values[0]) or not 0 < int(values[0]) <= MAX_DEADLINE_MS:
        raise _bad_deadline(f"is {shown(values[0])}")
    return int(values[0]) / 1000


def _bad_deadline(problem: str) -> ApiError:
    return bad_request(
        f"{DEADLINE_HEADER} {problem}: send one number of milliseconds, 1 to {MAX_DEADLINE_MS}.",
        param=DEADLINE_HEADER,
    )


Calling = Annotated[Caller, Depends(get_caller)]

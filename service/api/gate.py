"""Who may pass, where there are API keys: whoever shows one, and everybody at the probes.

Pure ASGI, below RequestContext, which gives a refusal too its id and its line in the log. It
decides on the very path that routes are chosen by, and what isn't known to be public is not.
"""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.errors import ApiError
from service.auth import KeyRing
from service.logs import note

PUBLIC = frozenset({"/livez", "/readyz", "/health", "/version", "/metrics"})
"""Kubelets, routers and Prometheus ask these, without a key; they tell no text of anybody."""


class Gate:
    def __init__(self, app: ASGIApp, keys: KeyRing, count_refusal: Callable[[], None]) -> None:
        self._app = app
        self._keys = keys
        self._count_refusal = count_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in PUBLIC:
            await self._app(scope, receive, send)
        elif (tenant := self._keys.find(shown_key(scope))) is not None:
            scope["tenant"] = tenant
            note(tenant=tenant.name)
            await self._app(scope, receive, send)
        else:
            self._count_refusal()
            await _unauthorized().response()(scope, receive, send)


def shown_key(scope: Scope) -> bytes:
    """Nothing, which is nobody's, unless there is one header and it is a bearer's."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, key = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return bytes(key.strip(b" ")) if scheme.lower() == b"bearer" else b""


def _unauthorized() -> ApiError:
    return ApiError(
        401,
        "This server takes requests with a key of its own: send Authorization: Bearer KEY.",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )

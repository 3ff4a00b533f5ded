"""Who may pass: by the name that the server is asked by, by API key, and by what is left to it.

Pure ASGI, below RequestContext, which gives a refusal too its id and its line in the log. It
decides on the very path that routes are chosen by, and what isn't known to be public is not.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.errors import ApiError, quota_exceeded, shown
from service.auth import KeyRing, Tenant
from service.logs import note
from service.quota import QuotaExceededError, Quotas

PUBLIC = frozenset({"/livez", "/readyz", "/health", "/version", "/metrics"})
"""Kubelets, routers and Prometheus ask these, without a key, and by an address rather than a name;
they tell no text of anybody."""
ADMIN = "/debug"

Refusal = Literal["api_key", "quota_requests", "quota_tokens"]


class Gate:
    """Where there are API keys."""

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        quotas: Quotas,
        count_refusal: Callable[[Refusal], None],
    ) -> None:
        self._app = app
        self._keys = keys
        self._quotas = quotas
        self._count_refusal = count_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and (path := get_route_path(scope)) not in PUBLIC:
            try:
                self._let_in(scope, path)
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _let_in(self, scope: Scope, path: str) -> None:
        if _is_preflight(scope):
            raise _no_pages()
        tenant = self._keys.find(shown_key(scope))
        if tenant is None:
            self._count_refusal("api_key")
            raise _unauthorized()
        note(tenant=tenant.name)
        if (path == ADMIN or path.startswith(f"{ADMIN}/")) and not tenant.admin:
            raise _forbidden()
        if scope["method"] == "POST":
            self._take_request(tenant)
        scope["tenant"] = tenant

    def _take_request(self, tenant: Tenant) -> None:
        try:
            self._quotas.admit(tenant, time.monotonic())
        except QuotaExceededError as error:
            self._count_refusal("quota_requests" if error.quota == "requests" else "quota_tokens")
            raise quota_exceeded(error) from None


class Hosts:
    """Answers only to its own names, so that no web page reaches it by another that its maker has
    pointed at this address (DNS rebinding)."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or get_route_path(scope) in PUBLIC or self._is_ours(scope):
            await self._app(scope, receive, send)
        else:
            await _misdirected(scope).response()(scope, receive, send)

    def _is_ours(self, scope: Scope) -> bool:
        names = _values(scope, b"host")
        host = names[0].decode("latin-1").lower() if len(names) == 1 else ""
        name = host if host.endswith("]") else host.rpartition(":")[0] or host  # [::1] has colons
        return any(_fits(name, allowed) for allowed in self._allowed)


def _fits(name: str, allowed: str) -> bool:
    """*.example.org is every name below example.org."""
    if allowed.startswith("*."):
        return name.endswith(allowed[1:].lower())
    return name == allowed.lower()


def shown_key(scope: Scope) -> bytes:
    """Nothing, which is nobody's, unless there is one header and it is a bearer's."""
    values = _values(scope, b"authorization")
    scheme, _, key = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return bytes(key.strip(b" ")) if scheme.lower() == b"bearer" else b""


def _is_preflight(scope: Scope) -> bool:
    """A browser's question before a page's request. It never has a key
    (https://fetch.spec.whatwg.org/#cors-preflight-fetch); where pages may call, CORSMiddleware has
    answered it before it comes here."""
    return scope["method"] == "OPTIONS" and bool(_values(scope, b"access-control-request-method"))


def _values(scope: Scope, header: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == header]


def charge(
    quotas: Quotas, count: Callable[[str, int, int], None], scope: Scope, notes: Mapping[str, Any]
) -> None:
    """For what a request took, by the line that the log has of it; its tenant, if it has one."""
    tenant = scope.get("tenant")
    if isinstance(tenant, Tenant):
        prompt_tokens = notes.get("prompt_tokens", 0)
        generation_tokens = notes.get("completion_tokens", 0)
        quotas.charge(tenant, prompt_tokens + generation_tokens)
        count(tenant.name, prompt_tokens, generation_tokens)


def _unauthorized() -> ApiError:
    return ApiError(
        401,
        "This server takes requests with a key of its own: send Authorization: Bearer KEY.",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def _no_pages() -> ApiError:
    message = "No page may call this server from a browser: --cors-origins names those that may."
    return ApiError(400, message, code="cors_disabled")


def _forbidden() -> ApiError:
    message = "This is for operators: their keys have admin = true in the server's key file."
    return ApiError(403, message, code="admin_key_required")


def _misdirected(scope: Scope) -> ApiError:
    names = [name.decode("latin-1") for name in _values(scope, b"host")]
    message = f"The host is {shown(', '.join(names))}, which isn't a name of this server."
    return ApiError(421, message, code="unknown_host")

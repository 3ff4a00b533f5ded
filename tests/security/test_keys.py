"""API keys over HTTP: who passes, who doesn't, and that no way around the gate is left."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import httpx
import pytest
from starlette.types import Message, Scope

from service.api.gate import PUBLIC
from service.auth import KeyRing, Tenant
from tests.fakes import Client, listening, read_metric

KEYS = KeyRing({sha256(b"sk-a").digest(): Tenant("a"), sha256(b"sk-b").digest(): Tenant("b", 3.0)})
A = {"authorization": "Bearer sk-a"}
BODY = {"prompt": "Hi"}


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with listening(Client(keys=KEYS)) as address:
        yield address


def complete(client: Client, headers: Any) -> httpx.Response:
    return client.post("/v1/completions", BODY, headers=headers)


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]


def test_a_key_is_known_by_its_owner() -> None:
    client = Client(keys=KEYS)
    assert complete(client, A).status_code == 200
    assert complete(client, {"authorization": "bearer  sk-b"}).status_code == 200
    assert [(r.tenant, r.weight) for r in client.engine.submitted] == [("a", 1.0), ("b", 3.0)]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "sk-a"},
        {"authorization": "Bearer sk-c"},
        {"authorization": "Bearer sk-a sk-b"},
        {"authorization": "Bearer\tsk-a"},
        {"authorization": "Basic c2stYTo="},
        {"authorization": "Basic sk-a"},
        {"authorization": "Bearer sk-ä".encode()},
        {"authorization": b"Bearer sk-a\xff"},
        {"authorization": "Bearer " + "x" * 60_000},
        {"x-api-key": "sk-a"},
        [("authorization", "Bearer sk-a"), ("authorization", "Bearer sk-a")],
        [("authorization", "Bearer sk-a"), ("authorization", "Basic x")],
    ],
)
def test_what_is_no_key_is_refused(headers: Any) -> None:
    client = Client(keys=KEYS)
    assert_refused(complete(client, headers))
    assert not client.engine.submitted
    assert read_metric(client.app.state.served.metrics, "rejections_total", reason="api_key") == 1


def test_a_stream_is_refused_by_its_status() -> None:
    assert_refused(Client(keys=KEYS).complete(stream=True))


@pytest.mark.parametrize("path", sorted(PUBLIC))
def test_probes_need_no_key(path: str) -> None:
    assert Client(keys=KEYS).get(path).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/docs", "/openapi.json", "/no/such/route", "/debug/steps", "/v1/models"),
        *("//v1/models", "/v1//models", "/v1/models/tiny", "/livez/", "//livez", "/livez/../docs"),
        *("/LIVEZ", "/health%3F", "/livez%2F..%2Fdocs", "/%2e/docs", "/livez%00", "/livez%0A"),
        *("/docs?/livez", "/docs#/livez", "/metrics%2fx"),
    ],
)
@pytest.mark.parametrize("host", ["octavo", "x/livez?", "localhost:8000/livez?x=", ""])
def test_all_else_needs_one(path: str, host: str) -> None:
    assert_refused(Client(keys=KEYS, debug_endpoints=True).get(path, headers={"host": host}))


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE", "BREW"])
def test_no_method_passes_by(method: str) -> None:
    answer = Client(keys=KEYS).request(method, "/v1/completions")
    assert answer.status_code == 401


def scope_of(path: str, **fields: Any) -> Scope:
    base = {"type": "http", "method": "GET", "query_string": b"", "headers": []}
    return base | {"path": path} | fields


async def status_of(app: Any, scope: Scope) -> int:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize(
    "fields",
    [
        {"raw_path": b"/livez"},
        {"query_string": b"/livez"},
        {"headers": [(b"x-forwarded-prefix", b"/livez"), (b"x-original-url", b"/livez")]},
    ],
)
def test_the_path_that_routes_are_chosen_by_decides(fields: dict[str, Any]) -> None:
    app = Client(keys=KEYS).app
    assert asyncio.run(status_of(app, scope_of("/v1/models", **fields))) == 401
    assert asyncio.run(status_of(app, scope_of("/livez", raw_path=b"/v1/models"))) == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        *(("/livez", 200), ("/livez?key=x", 200), ("http://evil/livez", 200)),
        *(("/v1/models", 401), ("//v1/models", 401), ("http://livez/v1/models", 401)),
        *(("/%76%31/models", 401), ("/v1%2Fmodels", 401), ("/%2e/livez", 401)),
        *(("/livez/%2e%2e/v1/models", 401), ("/livez/../v1/models", 401), ("/livez;/docs", 401)),
        *(("/v1/models?/livez", 401), ("/v1/models#/livez", 401), ("*", 401)),
    ],
)
def test_targets_on_the_wire(address: tuple[str, int], target: str, status: int) -> None:
    for host in ("octavo", "x/livez?", "127.0.0.1/livez#"):
        with socket.create_connection(address, timeout=30) as connection:
            head = f"GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
            connection.sendall(head.encode())
            first_line = connection.makefile("rb").readline()
        assert int(first_line.split()[1]) == status


def test_keys_are_compared_by_digest_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, whichever it is (CVE-2025-59425)."""
    compared: list[int] = []

    def compare(known: bytes, shown: bytes) -> bool:
        compared.extend(map(len, (known, shown)))
        return known == shown

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert KEYS.find(b"sk-a") == Tenant("a")
    assert KEYS.find(b"x" * 10_000) is None
    assert compared == [sha256().digest_size] * 8


def test_keys_are_in_no_log_line_but_their_names_are(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(keys=KEYS)
    with caplog.at_level(logging.DEBUG):
        complete(client, A)
        complete(client, {"authorization": "Bearer sk-wrong"})
    lines = [vars(r)["fields"] for r in caplog.records if r.name == "octavo.access"]
    assert [(line["status"], line.get("tenant")) for line in lines] == [(200, "a"), (401, None)]
    assert "sk-" not in caplog.text + str(lines)


def test_without_keys_all_are_one_tenant_and_a_header_means_nothing() -> None:
    client = Client()
    for headers in ({}, A, {"authorization": "Basic x"}):
        assert complete(client, headers).status_code == 200
    assert {(r.tenant, r.weight, r.cache_salt) for r in client.engine.submitted} == {("", 1.0, "")}

"""By which names, from which pages and with what left to a key the server is reached."""

import asyncio
from hashlib import sha256
from typing import Any

import httpx
import pytest

from service.auth import KeyRing, Tenant
from service.drain import begin_drain
from tests.fakes import Client, FakeEngine, read_metric, say

BODY = {"prompt": "Hi"}


def ring(**limits: Any) -> KeyRing:
    return KeyRing({sha256(b"sk-a").digest(): Tenant("a", **limits)})


A = {"authorization": "Bearer sk-a"}


def complete(client: Client, **headers: str) -> httpx.Response:
    return client.post("/v1/completions", BODY, headers=A | headers)


def metric(client: Client, name: str, **labels: str) -> float:
    return read_metric(client.app.state.served.metrics, name, **labels)


def test_requests_beyond_a_keys_limit_are_429() -> None:
    client = Client(keys=ring(requests_per_minute=1))
    assert complete(client).status_code == 200
    answer = complete(client)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert len(client.engine.submitted) == 1
    assert metric(client, "rejections_total", reason="quota_requests") == 1
    assert client.get("/v1/models", headers=A).status_code == 200, "it takes nothing"


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_prompt_and_answer_are_charged(stream: bool) -> None:
    client = Client(FakeEngine(say("Hello.")), keys=ring(tokens_per_minute=8))
    asked = BODY | {"stream": stream}
    assert client.post("/v1/completions", asked, headers=A).status_code == 200
    answer = complete(client)
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "tokens"
    assert metric(client, "rejections_total", reason="quota_tokens") == 1


def test_a_tenants_use_is_counted_under_their_name() -> None:
    client = Client(FakeEngine(say("Hello.")), keys=ring())
    assert metric(client, "tenant_requests_total", tenant="a") == 0
    complete(client)
    client.get("/v1/models", headers=A)
    client.get("/v1/models", headers={"authorization": "Bearer sk-other"})
    assert metric(client, "tenant_requests_total", tenant="a") == 2
    assert metric(client, "tenant_prompt_tokens_total", tenant="a") == len("Hi")
    assert metric(client, "tenant_generation_tokens_total", tenant="a") == len("Hello.") + 1
    assert metric(client, "generation_tokens_total") == len("Hello.") + 1


@pytest.mark.parametrize("path", ["/debug/steps", "/debug", "/debug/none"])
def test_debug_is_for_admins(path: str) -> None:
    refused = Client(keys=ring(), debug_endpoints=True).get(path, headers=A)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "admin_key_required"
    admin = Client(keys=ring(admin=True), debug_endpoints=True).get(path, headers=A)
    assert admin.status_code == (200 if path == "/debug/steps" else 404)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("octavo.example", 200), ("OCTAVO.example:8000", 200), ("a.b.internal", 200)),
        *(("[::1]:8000", 200), ("[::1]", 200)),
        *(("evil.example", 421), ("octavo.example.evil", 421), ("internal", 421), ("", 421)),
        *(("xoctavo.example", 421), ("octavo.example:80:80", 421), ("octavo.example/", 421)),
    ],
)
def test_only_its_own_names_are_answered_to(host: str, status: int) -> None:
    client = Client(allowed_hosts="octavo.example, *.internal, [::1]")
    answer = client.post("/v1/completions", BODY, headers={"host": host})
    assert answer.status_code == status
    if status == 421:
        assert answer.json()["error"]["code"] == "unknown_host"
        assert not client.engine.submitted


def test_two_hosts_are_none() -> None:
    headers = [("host", "octavo"), ("host", "octavo")]
    client = Client(allowed_hosts="octavo")
    assert client.request("GET", "/v1/models", headers=headers).status_code == 421


def test_probes_are_answered_under_any_name() -> None:
    """A kubelet asks by the pod's address."""
    client = Client(allowed_hosts="octavo")
    assert client.get("/readyz", headers={"host": "10.0.0.7:8000"}).status_code == 200


ORIGIN = {"origin": "https://app.example"}
PREFLIGHT = ORIGIN | {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type",
}


def test_web_pages_get_nothing_unless_they_are_listed() -> None:
    client = Client(keys=ring())
    refused = client.request("OPTIONS", "/v1/completions", headers=PREFLIGHT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "cors_disabled")
    assert client.request("OPTIONS", "/v1/completions", headers=ORIGIN).status_code == 401
    assert "access-control-allow-origin" not in complete(client, **ORIGIN).headers


@pytest.mark.parametrize("origins", ["https://app.example, https://b.example", "*"])
def test_listed_pages_may_call(origins: str) -> None:
    client = Client(keys=ring(), cors_origins=origins)
    allowed = client.request("OPTIONS", "/v1/completions", headers=PREFLIGHT)
    assert allowed.status_code == 200
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    answer = complete(client, **ORIGIN)
    assert answer.headers["access-control-allow-origin"] in ("https://app.example", "*")
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    refused = client.post("/v1/completions", BODY, headers=ORIGIN)
    assert refused.status_code == 401
    assert "access-control-allow-origin" in refused.headers, "so that the page can read why"


def test_pages_that_are_not_listed_may_not() -> None:
    client = Client(cors_origins="https://b.example")
    assert client.request("OPTIONS", "/v1/completions", headers=PREFLIGHT).status_code == 400
    answer = client.post("/v1/completions", BODY, headers=ORIGIN)
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("headers", [{}, {"content-type": ""}, {"content-type": "text/plain"}])
def test_a_page_must_say_that_it_sends_json(headers: dict[str, str]) -> None:
    """What browsers let any page send without asking isn't taken."""
    client = Client()
    sent = client.request(
        "POST", "/v1/completions", content=b'{"prompt": "Hi"}', headers=ORIGIN | headers
    )
    assert sent.status_code == 415
    assert not client.engine.submitted


@pytest.mark.parametrize("prefix", ["", "/octavo"])
def test_a_proxy_may_leave_its_prefix_or_take_it_off(prefix: str) -> None:
    client = Client(root_path="/octavo", keys=ring())
    assert client.get(f"{prefix}/livez").status_code == 200
    assert client.get(f"{prefix}/v1/models").status_code == 401
    assert client.get(f"{prefix}/v1/models", headers=A).status_code == 200
    description = client.get(f"{prefix}/openapi.json", headers=A).json()
    assert description["servers"] == [{"url": "/octavo"}]


@pytest.mark.parametrize("path", ["/octavo/octavo/livez", "/octavolivez", "/octavo", "/v1/livez"])
def test_a_prefix_opens_no_way_around_the_gate(path: str) -> None:
    assert Client(root_path="/octavo", keys=ring()).get(path).status_code == 401


def drained(client: Client, method: str, path: str, **request: Any) -> httpx.Response:
    """The answer of a server that is draining."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {}
        begin_drain(scope["state"])
        await client.app(scope, receive, send)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as asking:
            return await asking.request(method, path, **request)

    return asyncio.run(ask())


def test_a_draining_server_is_alive_but_not_ready() -> None:
    client = Client()
    assert drained(client, "GET", "/livez").status_code == 200
    for path in ("/readyz", "/health"):
        answer = drained(client, "GET", path)
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")
    assert drained(client, "GET", "/metrics").status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"])
def test_a_draining_server_takes_no_work(path: str) -> None:
    client = Client()
    answer = drained(client, "POST", path, json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert int(answer.headers["retry-after"]) > 0
    assert not client.engine.submitted
    assert metric(client, "rejections_total", reason="draining") == 1

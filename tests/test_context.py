"""The app's outermost middleware: ids, access lines, the last resort."""

import asyncio
import logging
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.api.context import RequestContext
from service.engine.protocol import EngineStatus
from tests.fakes import Client, Connection, FakeEngine, fail_after, hang_after, say


def access_fields(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    [record] = [record for record in caplog.records if record.name == "octavo.access"]
    fields: dict[str, Any] = vars(record)["fields"]
    return fields


def test_a_sane_id_is_the_clients_own() -> None:
    client = Client()
    for path in ("/livez", "/no/such/route"):
        answer = client.get(path, headers={"x-request-id": "My-id_1.2"})
        assert answer.headers["x-request-id"] == "My-id_1.2"


@pytest.mark.parametrize("given", ["", "a b", "a/b", "x" * 129, "é", "a\x00", "a:b"])
def test_any_other_id_is_replaced(given: str) -> None:
    answer = Client().get("/livez", headers={"x-request-id": given.encode()})
    assert answer.headers["x-request-id"] != given
    assert len(answer.headers["x-request-id"]) == 32


def test_the_engine_never_sees_a_clients_id() -> None:
    client = Client()
    client.request(
        "POST", "/v1/completions", json={"prompt": "Hi"}, headers={"x-request-id": "theirs"}
    )
    assert "theirs" not in client.engine.submitted[0].id


@pytest.mark.parametrize("stream", [False, True])
def test_one_line_of_each_request(caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    client = Client(FakeEngine(say("the answer")))
    with caplog.at_level(logging.INFO):
        client.complete(prompt="the prompt", stream=stream)
    fields = access_fields(caplog)
    assert fields.pop("seconds") >= fields.pop("first_token_seconds") >= 0
    assert fields == {
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "completion_tokens": 11,
        "finish_reason": "stop",
    }
    assert "the prompt" not in caplog.text
    assert "the answer" not in caplog.text


def test_a_path_cannot_forge_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Client().get("/a%0Ab" + "x" * 1000)
    path = access_fields(caplog)["path"]
    assert path.startswith("/a%0Abxxx")
    assert len(path) == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_left_is_logged_as_such(
    caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    client = Client(FakeEngine(hang_after("")))

    async def scenario() -> None:
        body = {"prompt": "Hi", "stream": stream}
        connection = Connection(client.app, "/v1/completions", body)
        running = asyncio.create_task(connection.run())
        while not client.engine.running:  # noqa: ASYNC110 - each turn lets the app get on
            await asyncio.sleep(0)
        connection.disconnect()
        await running
        assert connection.sent.empty()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    fields = access_fields(caplog)
    assert (fields["status"], fields["finish_reason"]) == (499, "unfinished")


async def drive(app: Any, scope: Scope) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await RequestContext(app)(scope, asyncio.Queue[Message]().get, send)
    return sent


HTTP: Scope = {"type": "http", "method": "GET", "path": "/", "headers": []}


def test_a_bug_midway_cuts_the_connection() -> None:
    """Half an answer that ended well would look whole."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("bug")

    with pytest.raises(KeyError):
        asyncio.run(drive(app, HTTP))


def test_other_scopes_pass_through() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    asyncio.run(drive(app, {"type": "lifespan"}))
    assert seen == [{"type": "lifespan"}]


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
def test_probes_that_find_all_well_are_no_news(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Client().get(path)
    assert [record for record in caplog.records if record.name == "octavo.access"] == []


def test_probes_that_fail_are(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Client(FakeEngine(status=EngineStatus("restarting"))).get("/readyz")
    assert access_fields(caplog)["status"] == 503


def test_a_call_without_a_token_has_no_time_of_its_first(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Client(FakeEngine(fail_after(""))).complete()
    assert "first_token_seconds" not in access_fields(caplog)

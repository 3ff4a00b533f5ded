"""A full queue over HTTP: who is refused and how, and that every place is given back."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from starlette.types import Message

from service.engine.messages import Request
from service.engine.protocol import EngineStatus
from tests.fakes import (
    READY,
    Client,
    Connection,
    FakeEngine,
    fail_after,
    hang_after,
    read_metric,
    say,
)

COMPLETIONS = "/v1/completions"
HI = {"prompt": "Hi"}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - each turn lets the app get on
            await asyncio.sleep(0)


@asynccontextmanager
async def calls(client: Client, *bodies: dict[str, Any]) -> AsyncIterator[Sequence[Connection]]:
    """Calls that are under way, until their clients leave."""
    num_before = len(client.engine.running)
    connections = [Connection(client.app, COMPLETIONS, body) for body in bodies]
    running = [asyncio.create_task(connection.run()) for connection in connections]
    num_choices = sum(body.get("n", 1) for body in bodies)
    await until(lambda: len(client.engine.running) == num_before + num_choices)
    try:
        yield connections
    finally:
        for connection in connections:
            connection.disconnect()
        await asyncio.gather(*running)


async def ask(client: Client, **body: Any) -> tuple[int, dict[str, str], Any]:
    connection = Connection(client.app, COMPLETIONS, HI | body)
    async with asyncio.timeout(10):
        await connection.run()
    messages: list[Message] = [connection.sent.get_nowait() for _ in range(connection.sent.qsize())]
    headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
    content = b"".join(message.get("body", b"") for message in messages)
    return messages[0]["status"], headers, orjson.loads(content) if content else None


def num_waiting(client: Client) -> tuple[int, int]:
    admission = client.app.state.served.serving().admission
    return admission.num_requests, admission.num_tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("knobs", "kind"),
    [({"max_queued_requests": 1}, "requests"), ({"max_queued_tokens": 3}, "tokens")],
)
def test_past_the_limit_it_is_429_with_when_to_come_back(
    stream: bool, knobs: dict[str, Any], kind: str
) -> None:
    client = Client(FakeEngine(hang_after("")), **knobs)

    async def scenario() -> None:
        async with calls(client, HI):
            status, headers, body = await ask(client, stream=stream)
        assert (status, headers["retry-after"]) == (429, "1")
        assert headers["content-type"] == "application/json"
        assert body["error"].keys() == {"message", "type", "param", "code"}
        assert (body["error"]["type"], body["error"]["code"]) == (kind, "rate_limit_exceeded")
        assert "Try again in 1 s" in body["error"]["message"]

    asyncio.run(scenario())
    metrics = client.app.state.served.metrics
    assert read_metric(metrics, "rejections_total", reason=f"queue_{kind}") == 1
    assert len(client.engine.submitted) == 1
    assert num_waiting(client) == (0, 0)


def test_while_there_is_room_for_nobody_nothing_is_tokenized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(FakeEngine(hang_after("")), max_queued_requests=1)

    async def scenario() -> None:
        async with calls(client, HI):
            tokenizer = client.app.state.served.serving().text.tokenizer
            monkeypatch.setattr(tokenizer, "encode", None)
            assert (await ask(client))[0] == 429

    asyncio.run(scenario())


def test_a_call_of_many_is_refused_whole() -> None:
    client = Client(FakeEngine(hang_after("")), max_queued_requests=4)

    async def scenario() -> None:
        async with calls(client, HI):
            assert (await ask(client, n=4))[0] == 429
            assert len(client.engine.submitted) == 1
            assert num_waiting(client) == (1, 2)

    asyncio.run(scenario())


def test_what_has_a_token_waits_no_longer() -> None:
    client = Client(FakeEngine(hang_after("a")), max_queued_requests=1)

    async def scenario() -> None:
        async with calls(client, HI):
            await until(lambda: num_waiting(client) == (0, 0))
            async with calls(client, HI):
                assert len(client.engine.submitted) == 2

    asyncio.run(scenario())


def test_a_call_beyond_the_limits_is_taken_by_an_empty_queue() -> None:
    client = Client(max_queued_requests=1, max_queued_tokens=1)
    assert client.complete(n=5).status_code == 200
    assert num_waiting(client) == (0, 0)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("script", [say("ab"), fail_after(""), fail_after("a"), hang_after("")])
def test_places_are_given_back_however_a_call_ends(script: Any, n: int) -> None:
    client = Client(FakeEngine(script))
    body = {"prompt": ["Hi", "you"], "n": n}
    client.post(COMPLETIONS, body, headers={"x-request-deadline-ms": "100"})
    assert num_waiting(client) == (0, 0)


def test_places_are_given_back_when_the_client_leaves_or_the_engine_is_away() -> None:
    client = Client(FakeEngine(hang_after("")))

    async def leave() -> None:
        async with calls(client, HI | {"n": 3}, HI):
            assert num_waiting(client) == (4, 4)

    asyncio.run(leave())
    assert num_waiting(client) == (0, 0)

    class GoesAway(FakeEngine):
        """Restarts once it has been asked whether it is ready."""

        def submit(self, request: Request) -> Any:
            self.status = EngineStatus("restarting")
            return super().submit(request)

    client = Client(GoesAway())
    answer = client.complete(n=3)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    client.engine.status = READY
    assert num_waiting(client) == (0, 0)


def test_a_task_that_never_began_gives_its_place_back_too() -> None:
    client = Client(FakeEngine(hang_after("")))

    async def scenario() -> None:
        connection = Connection(client.app, COMPLETIONS, HI | {"n": 3})
        running = asyncio.create_task(connection.run())
        await until(lambda: num_waiting(client) == (3, 2))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    assert num_waiting(client) == (0, 0)

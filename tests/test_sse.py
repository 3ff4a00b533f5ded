"""Streams over raw ASGI: framing, silence, failures midway, clients that leave or read slowly."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import orjson
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from service.api import sse
from service.api.errors import bad_request
from service.api.sse import EventStream, Write, event, while_connected
from service.engine.protocol import EngineUnavailableError
from tests.fakes import Client, Connection, FakeEngine, fail_after, hang_after, say

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}


def finish(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await work

    asyncio.run(bounded())


async def play(stream: EventStream, *, until: bytes = b"") -> list[Message]:
    """All that the response sends; the client leaves once it has seen the marker."""
    left: asyncio.Queue[Message] = asyncio.Queue()
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if until and until in message.get("body", b""):
            left.put_nowait({"type": "http.disconnect"})

    async with asyncio.timeout(10):
        await stream({"type": "http"}, left.get, send)
    return sent


def body_of(messages: list[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in messages)


def test_a_stream_is_what_is_written_and_done() -> None:
    async def produce(write: Write) -> None:
        await write(event({"a": "é"}))
        await write(event({"b": 1}))

    start, first, second, done, end = asyncio.run(play(EventStream(produce)))
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert (b"content-type", b"text/event-stream; charset=utf-8") in start["headers"]
    assert not any(name == b"content-length" for name, _ in start["headers"])
    assert first["body"] == 'data: {"a":"é"}\n\n'.encode()
    assert second["body"] == b'data: {"b":1}\n\n'
    assert done["body"] == b"data: [DONE]\n\n"
    assert [m["more_body"] for m in (first, second, done, end)] == [True, True, True, False]


def test_silence_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)

    async def produce(write: Write) -> None:
        await asyncio.Event().wait()

    with pytest.raises(ClientDisconnect):
        asyncio.run(play(EventStream(produce), until=b": keep-alive\n\n"))


def test_a_comment_starts_the_response_if_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)

    async def scenario() -> None:
        commented = asyncio.Event()

        async def produce(write: Write) -> None:
            await commented.wait()
            raise bad_request("too late for a status")

        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)
            if message.get("body") == b": keep-alive\n\n":
                commented.set()

        await EventStream(produce)({"type": "http"}, asyncio.Queue[Message]().get, send)
        assert sent[0]["status"] == 200
        assert b"too late" in body_of(sent)
        assert b"[DONE]" not in body_of(sent)

    finish(scenario())


def test_a_failure_before_the_first_byte_is_raised() -> None:
    async def produce(write: Write) -> None:
        raise bad_request("no")

    async def scenario() -> None:
        with pytest.raises(Exception, match="no"):
            await play(EventStream(produce))

    asyncio.run(scenario())


def test_a_failure_midway_is_the_last_event_and_there_is_no_done() -> None:
    client = Client(FakeEngine(fail_after("ab")))
    answer = client.chat(stream=True)
    assert answer.status_code == 200
    *_, last, rest = answer.text.split("\n\n")
    assert rest == ""
    error = orjson.loads(last.removeprefix("data: "))["error"]
    assert error["type"] == "server_error"
    assert answer.headers["x-request-id"] in error["message"]
    assert "[DONE]" not in answer.text
    assert "secret" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_has_its_status(stream: bool) -> None:
    answer = Client(FakeEngine(fail_after(""))).chat(stream=stream)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_leaves_between_check_and_submit_is_503(stream: bool) -> None:
    def script(request: Any) -> Any:
        raise EngineUnavailableError("the engine is restarting")

    answer = Client(FakeEngine(script)).chat(stream=stream)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert "restarting" in answer.json()["error"]["message"]


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_cancelled_at_once(stream: bool, n: int) -> None:
    client = Client(FakeEngine(hang_after("ab")))

    async def scenario() -> None:
        connection = Connection(client.app, CHAT, HI | {"stream": stream, "n": n})
        running = asyncio.create_task(connection.run())
        if stream:
            await connection.body_until(b'"b"')
        while len(client.engine.running) < n:  # noqa: ASYNC110 - each turn lets the app get on
            await asyncio.sleep(0)
        connection.disconnect()
        await running

    finish(scenario())
    assert not client.engine.running
    assert len(client.engine.cancelled) == n
    metrics = client.get("/metrics").text
    assert f'octavo_requests_total{{outcome="cancelled"}} {n}.0' in metrics


def test_who_cancels_from_outside_is_told_so_even_if_the_client_has_left_too() -> None:
    """Else a timeout around the app would be mistaken for the client's leaving."""

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def slow_to_stop() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    async def scenario() -> None:
        async with asyncio.timeout(0.05):
            await while_connected(slow_to_stop(), gone)

    with pytest.raises(TimeoutError):
        asyncio.run(scenario())


def test_a_slow_reader_holds_its_stream_back() -> None:
    """Nothing is taken from the engine that the client has no room for."""
    taken = 0

    def script(request: Any) -> Any:
        nonlocal taken
        for one in say("x" * 1000)(request):
            taken += 1
            yield one

    client = Client(FakeEngine(script))

    async def scenario() -> None:
        connection = Connection(client.app, CHAT, HI | {"stream": True})
        connection.sent = asyncio.Queue(maxsize=3)
        running = asyncio.create_task(connection.run())
        while not connection.sent.full():  # noqa: ASYNC110 - each turn lets the app get on
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert taken < 10
        connection.disconnect()
        await running

    finish(scenario())


def test_work_of_a_connected_client_is_done() -> None:
    async def scenario() -> None:
        never: asyncio.Queue[Message] = asyncio.Queue()
        never.put_nowait({"type": "http.request", "body": b""})
        assert await while_connected(asyncio.sleep(0, "result"), never.get) == "result"

    finish(scenario())


def test_cancelled_from_outside_is_not_a_client_that_left() -> None:
    async def scenario() -> None:
        started = asyncio.Event()

        async def work() -> None:
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(while_connected(work(), asyncio.Queue[Message]().get))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    finish(scenario())

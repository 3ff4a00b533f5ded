"""Deadlines: what a call that meets its own ends with, and that it ends once, whatever it has."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import orjson
import pytest

from service.api import clock, sse
from service.engine.messages import Event, Request
from tests.fakes import Client, Connection, FakeEngine, events_of, hang_after, read_metric, say

FAR = 1000.0
"""Seconds, which a test's clock skips."""


class SkippingTime:
    """Stands for the module `time`, and can be put ahead."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def skipping(monkeypatch: pytest.MonkeyPatch) -> SkippingTime:
    skipping = SkippingTime()
    monkeypatch.setattr(clock, "time", skipping)
    return skipping


def run_out(skipping: SkippingTime, texts: dict[str, str]) -> Callable[[Request], Any]:
    """By their number, what sequences say before the deadline has passed for all."""
    started: set[str] = set()

    def script(request: Request) -> Iterator[Event]:
        number = request.id.rpartition("-")[2]
        for token_id in texts[number].encode():
            yield Event(request_id=request.id, token_ids=[token_id])
        started.add(number)
        if len(started) == len(texts):
            skipping.ahead = 2 * FAR
        while True:
            yield Event(request_id=request.id)  # wakes who waits, to look at the clock

    return script


def post(client: Client, milliseconds: float, **body: Any) -> httpx.Response:
    headers = {"x-request-deadline-ms": str(int(milliseconds))}
    return client.post("/v1/completions", {"prompt": "Hi"} | body, headers=headers)


def outcomes(client: Client, outcome: str) -> float:
    return read_metric(client.app.state.served.metrics, "requests_total", outcome=outcome)


def rejections(client: Client) -> float:
    return read_metric(client.app.state.served.metrics, "rejections_total", reason="deadline")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_without_a_token_it_is_504_and_the_work_is_cancelled(stream: bool, n: int) -> None:
    client = Client(FakeEngine(hang_after("")))
    answer = post(client, 300, stream=stream, n=n)
    assert answer.status_code == 504
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("timeout_error", "deadline_exceeded")
    assert not client.engine.running
    assert len(client.engine.cancelled) == len(client.engine.submitted) == n
    assert outcomes(client, "deadline") == n
    assert rejections(client) == 1
    assert read_metric(client.app.state.served.metrics, "request_duration_seconds_count") == n


def test_in_an_open_stream_it_is_an_error_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)
    answer = post(Client(FakeEngine(hang_after(""))), 300, stream=True)
    assert answer.status_code == 200
    comments, _, last = answer.text.partition("data: ")
    assert set(comments.split("\n\n")) == {": keep-alive", ""}
    assert orjson.loads(last)["error"]["code"] == "deadline_exceeded"


def test_a_deadline_that_passed_before_anything_began_submits_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client()
    tokenizer = client.app.state.served.serving().text.tokenizer

    def dawdle(text: str, *, add_special_tokens: bool) -> list[int]:
        time.sleep(0.01)
        return list(text.encode())

    monkeypatch.setattr(tokenizer, "encode", dawdle)
    assert post(client, 1).status_code == 504
    assert not client.engine.submitted
    assert rejections(client) == 1
    assert post(client, 60_000).status_code == 200


def test_with_tokens_it_ends_by_length_with_what_it_has(skipping: SkippingTime) -> None:
    client = Client(FakeEngine(run_out(skipping, {"0": "abc"})))
    answer = post(client, FAR * 1000, stop="cd")  # c may begin it, so that it is held back
    assert answer.status_code == 200
    [choice] = answer.json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert client.engine.cancelled == [client.engine.submitted[0].id]
    assert outcomes(client, "deadline") == 1
    assert rejections(client) == 0


def test_a_stream_ends_as_usual_too(skipping: SkippingTime) -> None:
    client = Client(FakeEngine(run_out(skipping, {"0": "ab"})))
    options = {"include_usage": True}
    events = events_of(post(client, FAR * 1000, stream=True, stream_options=options))
    *_, last, usage = events
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == "ab"
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_of_several_choices_those_without_a_token_end_empty(
    skipping: SkippingTime, stream: bool
) -> None:
    client = Client(FakeEngine(run_out(skipping, {"0": "", "1": "ab", "2": ""})))
    answer = post(client, FAR * 1000, n=3, stream=stream)
    assert answer.status_code == 200
    answers = events_of(answer) if stream else [answer.json()]
    choices = [choice for answer in answers for choice in answer["choices"]]
    ends = sorted(c["index"] for c in choices if c["finish_reason"] == "length")
    assert ends == [0, 1, 2]
    texts = ["".join(c["text"] for c in choices if c["index"] == i) for i in range(3)]
    assert texts == ["", "ab", ""]
    assert outcomes(client, "deadline") == 3
    assert rejections(client) == 0


def test_choices_that_ended_before_it_keep_their_reason(skipping: SkippingTime) -> None:
    late = run_out(skipping, {"1": ""})

    def script(request: Request) -> Iterator[Event | None]:
        if request.id.endswith("-0"):
            yield from say("ab")(request)
        while len(client.engine.running) > 1:
            yield Event(request_id=request.id)
        yield from late(request)

    client = Client(FakeEngine(script))
    choices = post(client, FAR * 1000, n=2).json()["choices"]
    assert sorted(c["finish_reason"] for c in choices) == ["length", "stop"]
    assert (outcomes(client, "deadline"), outcomes(client, "stop")) == (1, 1)


def test_an_answer_in_time_is_as_without() -> None:
    client = Client(FakeEngine(say("ab")))
    with_deadline, without = post(client, 60_000), client.complete()
    assert with_deadline.json()["choices"] == without.json()["choices"]
    assert outcomes(client, "deadline") == 0


def test_what_a_slow_reader_is_being_sent_is_not_cut(skipping: SkippingTime) -> None:
    client = Client(FakeEngine(hang_after("ab")))

    async def scenario() -> bytes:
        body = {"prompt": "Hi", "stream": True}
        headers = [(b"x-request-deadline-ms", b"900000")]
        connection = Connection(client.app, "/v1/completions", body, headers=headers)
        connection.sent = asyncio.Queue(1)  # full from the response's head on
        running = asyncio.create_task(connection.run())
        while not connection.sent.full():  # noqa: ASYNC110 - each turn lets the app get on
            await asyncio.sleep(0)
        skipping.ahead = FAR
        received = await connection.body_until(b"[DONE]")
        connection.disconnect()
        await running
        return received

    received = asyncio.run(scenario())
    texts = [
        orjson.loads(line[6:])["choices"][0]["text"]
        for line in received.split(b"\n\n")
        if line.startswith(b"data: {")
    ]
    assert "".join(texts) == "a"
    assert received.count(b'"finish_reason":"length"') == 1


def test_a_bad_deadline_is_refused_on_both_routes() -> None:
    for path in ("completions", "chat/completions"):
        answer = Client().post(f"/v1/{path}", {}, headers={"x-request-deadline-ms": "-5"})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "x-request-deadline-ms"

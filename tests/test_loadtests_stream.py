"""Streams as load tests read them: times, usage, and what is wrong with those that fail."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from loadtests import machine, monitor, server
from loadtests.errors import BenchError
from loadtests.prompts import Work
from loadtests.stream import Observation, Target, observe
from tests.fake_openai import MODEL, delta, end, event, running, written

ROLE = delta(role="assistant", content="")
SECONDS = 60.0
"""Far more than anything here takes."""


def make_work(*, max_tokens: int = 3, is_exact: bool = True, is_json: bool = False) -> Work:
    return Work(
        scenario="s",
        path="/v1/chat/completions",
        body={"max_tokens": max_tokens},
        max_tokens=max_tokens,
        is_exact=is_exact,
        is_json=is_json,
    )


def answered(*pieces: bytes, status: int = 200, **work: Any) -> Observation:
    with running(written(pieces), status=status) as fake:
        return observe(Target(url=fake.url, timeout=SECONDS), make_work(**work))


def kind(observation: Observation) -> str:
    assert observation.fault is not None
    assert str(observation.fault).startswith(observation.fault.kind + ": ")
    return observation.fault.kind


def test_a_whole_stream_is_timed_from_its_first_text() -> None:
    seen = answered(ROLE, delta(content="a"), b": keep-alive\n\n", delta(content="bc"), end(3))
    assert seen.fault is None
    assert (seen.text, len(seen.times), len(seen.gaps)) == ("abc", 2, 1)
    assert (seen.prompt_tokens, seen.output_tokens, seen.finish_reason) == (5, 3, "length")
    assert seen.due == seen.sent < seen.times[0] <= seen.times[1] <= seen.ended
    assert seen.tpot == pytest.approx(seen.gaps[0] / 2)
    assert 0 < seen.ttft <= seen.latency


def test_completions_have_their_text_elsewhere() -> None:
    seen = answered(event(choices=[{"text": "abc", "finish_reason": None}]), end(3))
    assert (seen.fault, seen.text) == (None, "abc")


def test_how_bytes_are_split_changes_nothing() -> None:
    stream = b"".join((ROLE, delta(content="é"), delta(content="b"), end(3)))
    split = answered(*(stream[i : i + 3] for i in range(0, len(stream), 3)))
    assert (split.fault, split.text, len(split.times)) == (None, "éb", 2)
    assert answered(stream.replace(b"\n", b"\r\n")).text == "éb"


def test_in_an_open_loop_times_count_from_when_the_request_was_due() -> None:
    with running() as fake:
        due = observe(Target(url=fake.url, timeout=SECONDS), make_work()).due
        late = observe(Target(url=fake.url, timeout=SECONDS), make_work(), due=due)
    assert late.due == due < late.sent
    assert late.ttft > late.times[0] - late.sent


@pytest.mark.parametrize(
    ("status", "expected"), [(429, "429"), (400, "4xx"), (503, "5xx"), (302, "4xx")]
)
def test_refusals_are_told_apart(status: int, expected: str) -> None:
    seen = answered(b'{"error": "no"}', status=status)
    assert kind(seen) == expected
    assert f'{status}: {{"error": "no"}}' in str(seen.fault)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((ROLE, delta(content="a")), "cut stream"),
        ((delta(content="a"), b"data: [DONE]\n\n"), "cut stream"),
        ((delta(content="a"), event(error={"message": "m"})), "error event"),
        ((b"data: {]\n\n",), "bad event"),
        ((event(object="x"),), "bad event"),
        ((b"data: 7\n\n",), "bad event"),
        ((event(choices=[7]),), "bad event"),
        ((ROLE, end(3)), "no text"),
        ((delta(content="a"), end(2)), "wrong usage"),
        ((delta(content="a"), end(4)), "wrong usage"),
        ((*[delta(content="a")] * 4, end(3)), "wrong usage"),
    ],
)
def test_streams_that_fail_are_told_apart(pieces: tuple[bytes, ...], expected: str) -> None:
    assert kind(answered(*pieces)) == expected


@pytest.mark.parametrize("sends_done", [True, False])
def test_streams_need_no_end_mark_where_none_is_expected(sends_done: bool) -> None:
    unmarked = end(1).removesuffix(b"data: [DONE]\n\n")
    with running(written([delta(content="a"), unmarked])) as fake:
        target = Target(url=fake.url, timeout=SECONDS, sends_done=sends_done)
        seen = observe(target, make_work(max_tokens=1))
    assert (seen.fault is None) == (not sends_done)


@pytest.mark.parametrize("usage", [None, {}, {"completion_tokens": 3}, {"completion_tokens": "x"}])
def test_usage_must_be_there_and_whole(usage: object) -> None:
    finish = event(choices=[{"delta": {"content": "a"}, "finish_reason": "length"}], usage=usage)
    assert kind(answered(finish, b"data: [DONE]\n\n")) == "wrong usage"


def test_an_answer_may_be_short_if_nothing_was_said_of_its_end() -> None:
    assert answered(delta(content="a"), end(1, reason="stop"), is_exact=False).fault is None


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [('{"a": 1}', "stop", None), ('{"a":', "stop", "wrong JSON"), ('{"a":', "length", None)],
)
def test_constrained_answers_must_be_json_unless_cut(
    text: str, reason: str, expected: str | None
) -> None:
    seen = answered(delta(content=text), end(3, reason=reason), is_json=True)
    assert (seen.fault and seen.fault.kind) == expected


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_nobody_there_is_unreachable() -> None:
    target = Target(url=f"http://127.0.0.1:{free_port()}", timeout=SECONDS)
    assert kind(observe(target, make_work())) == "unreachable"


@pytest.mark.parametrize("body", [b"", b"3f\r\n" + ROLE[:20]], ids=["head", "role"])
def test_a_stream_that_breaks_before_its_first_text_is_cut(body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        threads.submit(break_off, listener, head + body)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert kind(observe(Target(url=url, timeout=SECONDS), make_work())) == "cut stream"


def break_off(listener: socket.socket, said: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(said)


def test_a_server_that_says_nothing_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert kind(observe(Target(url=url, timeout=0.2), make_work())) == "timeout"


def test_a_stream_that_goes_on_and_on_times_out() -> None:
    with running(lambda body: iter(lambda: delta(content="a"), None)) as fake:
        assert kind(observe(Target(url=fake.url, timeout=0.2), make_work())) == "timeout"


def test_a_key_and_a_path_are_sent() -> None:
    with running() as fake:
        observe(Target(url=fake.url, api_key="sk-1", timeout=SECONDS), make_work())
        assert fake.keys == {"Bearer sk-1"}
    assert Target(url="https://h/base/", timeout=1).path("/v1/x") == "/base/v1/x"


def test_a_server_is_described() -> None:
    with running() as fake:
        target = Target(url=fake.url, timeout=SECONDS)
        assert server.first_model(target) == MODEL
        described = server.describe(target, MODEL)
    expected = {"url": fake.url, "model": MODEL, "max_model_len": "99", "version": "1.2.3"}
    assert described == expected


def test_knobs_are_told_of_a_server_that_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_THREADS", "1")
    assert server.knobs()["OCTAVO_THREADS"] == "1"
    assert all(name.startswith("OCTAVO_") for name in server.knobs())


def test_a_server_that_cannot_be_asked_is_a_line() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(BenchError, match=f"{url}/v1/models can't be asked: "):
        server.first_model(Target(url=url, timeout=SECONDS))


def test_metrics_are_watched_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "SCRAPE_SECONDS", 0.001)
    with running() as fake, monitor.watching(Target(url=fake.url, timeout=SECONDS)) as samples:
        wait_until(lambda: len(samples) >= 3)
    assert {(s.running, s.waiting, s.kv_cache_usage) for s in samples} == {(3.0, 2.0, 0.25)}
    assert [s.seconds for s in samples] == sorted(s.seconds for s in samples)


def wait_until(done: Callable[[], bool]) -> None:
    while not done():
        pass  # the whole test has a timeout


def test_the_machine_says_what_it_is() -> None:
    described = machine.describe()
    assert {"processor", "cores", "memory", "system", "python"} <= described.keys()
    assert json.dumps(described)

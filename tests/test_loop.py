"""The engine process's loop, run in this process: real sockets, a fake model, scripted messages."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from model.batch import Runner
from model.errors import ModelError
from service.config import EngineConfig
from service.engine import loop
from service.engine.engine import Engine
from service.engine.loop import HEARTBEAT_SECONDS, Channel, Progress, main, run, serve
from service.engine.messages import (
    Abort,
    EngineSpec,
    Failed,
    FromEngine,
    Loading,
    Ready,
    Request,
    StepReport,
    ToEngine,
)
from tests.fakes_engine import FakeRunner, LateRunner, generate


class EndOfScriptError(Exception):
    """Ends the endless loop of `serve`."""


class ScriptedChannel(Channel):
    """Brings the next list of messages at each turn, and keeps what is sent."""

    def __init__(self, *turns: list[ToEngine]) -> None:
        self.turns = iter(turns)
        self.num_waits = [0]  # before each turn
        self.sent: list[FromEngine] = []

    def wait(self, *, seconds: float) -> None:
        assert seconds == HEARTBEAT_SECONDS
        self.num_waits[-1] += 1

    def receive(self) -> Iterator[ToEngine]:
        self.num_waits.append(0)
        messages = next(self.turns, None)
        if messages is None:
            raise EndOfScriptError
        yield from messages

    def send(self, message: FromEngine) -> None:
        self.sent.append(message)


def spec(folder: Path, **options: Any) -> EngineSpec:
    return EngineSpec(
        model_path="some.gguf",
        config=EngineConfig(max_batch_tokens=8, max_sequences=2, **options),
        requests_address=f"ipc://{folder}/requests",
        reports_address=f"ipc://{folder}/reports",
    )


def test_serve_waits_only_when_idle_and_reports_every_step() -> None:
    engine = Engine(FakeRunner(), max_batch_tokens=8, max_sequences=2)
    request = Request(id="a", prompt_ids=[1, 2], max_tokens=3)
    channel = ScriptedChannel([], [request], [], [], [], [Abort("gone")])
    with pytest.raises(EndOfScriptError):
        serve(engine, channel)
    assert channel.num_waits == [1, 1, 0, 0, 1, 1, 1, 0]
    reports = [report for report in channel.sent if isinstance(report, StepReport)]
    tokens = [t for report in reports for event in report.events for t in event.token_ids]
    assert tokens == generate([1, 2], max_tokens=3)
    numbers = [report.record.number if report.record else None for report in reports]
    assert numbers == [None, 1, 2, 3, None, None]


def test_serve_aborts_what_runs() -> None:
    engine = Engine(FakeRunner(), max_batch_tokens=8, max_sequences=2)
    request = Request(id="a", prompt_ids=[1, 2], max_tokens=30)
    channel = ScriptedChannel([request], [Abort("a")])
    with pytest.raises(EndOfScriptError):
        serve(engine, channel)
    last = channel.sent[-1]
    assert isinstance(last, StepReport)
    assert [event.finish_reason for event in last.events] == ["cancelled"]


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The API process's ends of the sockets."""
    context = zmq.Context()
    requests = context.socket(zmq.PUSH)
    requests.connect(spec(tmp_path).requests_address)
    reports = context.socket(zmq.PULL)
    reports.bind(spec(tmp_path).reports_address)

    def receive() -> FromEngine:
        assert reports.poll(10_000), "no report came"
        return msgspec.msgpack.decode(reports.recv(), type=FromEngine)

    def send(message: ToEngine) -> None:
        requests.send(msgspec.msgpack.encode(message))

    yield SimpleNamespace(receive=receive, send=send)
    context.destroy(linger=0)


def test_channel_takes_all_messages_that_have_come(tmp_path: Path, parent: SimpleNamespace) -> None:
    channel = Channel(spec(tmp_path))
    assert list(channel.receive()) == []
    sent = [Abort("a"), Request(id="b", prompt_ids=[1], max_tokens=1), Abort("c")]
    for message in sent:
        parent.send(message)
    received: list[ToEngine] = []
    while len(received) < 3:
        channel.wait(seconds=10)
        received += channel.receive()
    assert received == sent
    channel.close()


def test_run_tells_progress_then_readiness_then_serves(
    tmp_path: Path, parent: SimpleNamespace
) -> None:
    def load(given: EngineSpec, progress: Progress) -> Runner:
        progress("weights", given.model_path, 0.5)
        return FakeRunner()

    thread = threading.Thread(target=run, args=(spec(tmp_path), load), daemon=True)
    thread.start()
    assert parent.receive() == Loading(phase="weights", detail="some.gguf", fraction=0.5)
    ready = parent.receive()
    assert isinstance(ready, Ready)
    assert ready.info.num_pages == 16
    parent.send(Request(id="a", prompt_ids=[1], max_tokens=1))
    events: list[Any] = []
    while not events:
        report = parent.receive()
        assert isinstance(report, StepReport)
        events += report.events
    assert events[0].token_ids == generate([1], max_tokens=1)


@pytest.mark.parametrize(
    ("options", "most_launched"), [({}, 2), ({"no_overlap": True}, 0)], ids=["on", "off"]
)
def test_run_overlaps_steps_unless_told_not_to(
    options: dict[str, Any], most_launched: int, tmp_path: Path, parent: SimpleNamespace
) -> None:
    runner = LateRunner(num_pages=16, page_size=4)
    arguments = spec(tmp_path, **options), lambda spec, progress: runner
    threading.Thread(target=run, args=arguments, daemon=True).start()
    assert isinstance(parent.receive(), Ready)
    parent.send(Request(id="a", prompt_ids=[1], max_tokens=3))
    tokens: list[int] = []
    while len(tokens) < 3:
        report = parent.receive()
        assert isinstance(report, StepReport)
        tokens += [token for event in report.events for token in event.token_ids]
    assert tokens == generate([1], max_tokens=3)
    assert runner.most_launched == most_launched


def test_run_reports_a_model_that_cannot_be_run(tmp_path: Path, parent: SimpleNamespace) -> None:
    def load(spec: EngineSpec, progress: Progress) -> Runner:
        raise ModelError("no such model: take another")

    run(spec(tmp_path), load)
    assert parent.receive() == Failed("no such model: take another")


def test_main_reads_the_spec_from_stdin_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda status: ended.set())
    seen: list[EngineSpec] = []
    monkeypatch.setattr(loop, "run", lambda spec, load: seen.append(spec))
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, os.fdopen(writer, "wb") as parent:
        monkeypatch.setattr(sys, "stdin", stdin)
        parent.write(msgspec.json.encode(spec(tmp_path)) + b"\n")
        parent.flush()
        main(lambda spec, progress: FakeRunner())
        assert seen == [spec(tmp_path)]
        assert not ended.is_set()
        parent.close()
        assert ended.wait(10), "the end of stdin ends the process"

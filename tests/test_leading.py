"""Batches reach the other ranks as they were, and an idle rank 0 is heard."""

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from model import leading
from model.batch import (
    UNKNOWN,
    Batch,
    Collect,
    Context,
    OverlappingRunner,
    Row,
    SamplingParams,
    Scoring,
    StepOutput,
)
from model.leading import NOTHING, follow, lead
from model.wire import Wire
from tests.fakes_engine import FakeRunner

SECONDS = 30

RICH = Row(
    [5, 6],
    3,
    range(1, 4),
    SamplingParams(temperature=0.5, logit_bias={7: -1.5}, num_logprobs=2),
    Context(known_ids=(1, 2), prompt_len=1, forbidden_ids={4}, allowed=lambda: b"\x0f\xf0"),
    scoring=Scoring([6], 1),
    pooling="last",
    guessed_ids=[8],
)
PLAIN = Row([1], 0, [0], None, guessed_ids=[])
DRAWN_BEFORE = Row([UNKNOWN], 5, [0], SamplingParams(seed=2**63), guessed_ids=[], drawn_by=3)
RICH_AS_READ = Row(
    [5, 6],
    3,
    [1, 2, 3],
    SamplingParams(temperature=0.5, logit_bias={7: -1.5}, num_logprobs=2),
    Context(known_ids=[1, 2], prompt_len=1, forbidden_ids=[4]),
    scoring=Scoring([6], 1),
    pooling="last",
    guessed_ids=[8],
)


class Recorder(FakeRunner):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Batch] = []

    def run(self, batch: Batch) -> StepOutput:
        self.seen.append(batch)
        return StepOutput([None] * len(batch.rows))


class LaunchRecorder(Recorder):
    """Notes what is launched, and what is collected: None."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[Batch | None] = []

    def launch(self, batch: Batch) -> Collect:
        self.launched.append(batch)
        return self._collect

    def _collect(self) -> StepOutput:
        self.launched.append(None)
        return StepOutput([])


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Rank 0's and another's."""
    first, other = socket.socketpair()
    other.settimeout(SECONDS)
    with first, other:
        yield first, other


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Heartbeats come fast; set when the process would have ended."""
    ended = threading.Event()

    def end(code: int) -> None:
        assert code == 1
        ended.set()
        threading.Event().wait()  # it doesn't return, either

    monkeypatch.setattr(leading, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", end)
    return ended


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No heartbeat fails when a test has closed its connections."""
    monkeypatch.setattr(leading, "HEARTBEAT_SECONDS", 3600)


Ends = tuple[socket.socket, socket.socket]
BATCHES = [Batch([RICH], [(1, 2)]), Batch([PLAIN]), Batch([DRAWN_BEFORE])]


def check_follower(seen: Sequence[Batch | None]) -> None:
    batches = [batch for batch in seen if batch is not None]
    assert batches == seen
    rich, *others = [row for batch in batches for row in batch.rows]
    assert rich.context is not None
    assert rich.context.allowed is not None
    assert rich.context.allowed() == b"\x0f\xf0"
    assert replace(rich, context=replace(rich.context, allowed=None)) == RICH_AS_READ
    assert others == [PLAIN, DRAWN_BEFORE]
    assert [list(map(tuple, batch.copies)) for batch in batches] == [[(1, 2)], [], []]


def test_other_ranks_run_what_rank_0_runs_until_it_ends(ends: Ends) -> None:
    leader, follower = Recorder(), Recorder()
    wire = Wire(ends[:1])
    first = lead(leader, wire)
    assert not isinstance(first, OverlappingRunner)
    wire.tell(NOTHING)
    assert [first.run(batch).sampled for batch in BATCHES] == [[None]] * 3
    ends[0].shutdown(socket.SHUT_WR)
    follow(follower, Wire(ends[1:]))
    assert leader.seen == BATCHES
    check_follower(follower.seen)


def test_other_ranks_launch_what_rank_0_launches_and_collect_nothing(ends: Ends) -> None:
    leader, follower = LaunchRecorder(), LaunchRecorder()
    first = lead(leader, Wire(ends[:1]))
    assert isinstance(first, OverlappingRunner)
    collects = [first.launch(batch) for batch in BATCHES]
    collects[0]()
    ends[0].shutdown(socket.SHUT_WR)
    follow(follower, Wire(ends[1:]))
    assert leader.launched == [*BATCHES, None]
    check_follower(follower.launched)


def test_the_engine_is_told_of_rank_0s_runner(ends: Ends) -> None:
    runner = Recorder()
    first = lead(runner, Wire(ends[:1]))
    for name in ("page_size", "num_pages", "vocab_size", "max_model_len", "device", "attention"):
        assert getattr(first, name) == getattr(runner, name)


def test_idle_ranks_hear_that_rank_0_is_there(ends: Ends, exits: threading.Event) -> None:
    lead(Recorder(), Wire(ends[:1]))
    other = Wire(ends[1:])
    assert [other.hear() for _ in range(3)] == [NOTHING] * 3
    ends[1].close()
    assert exits.wait(SECONDS)


def test_rank_0_ends_when_another_has_died(
    ends: Ends, exits: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """Even in a step that never ends."""

    class Stuck(Recorder):
        def run(self, batch: Batch) -> StepOutput:
            ends[1].close()
            assert exits.wait(SECONDS)
            return super().run(batch)

    lead(Stuck(), Wire(ends[:1])).run(BATCHES[1])
    assert "a rank is gone: " in caplog.text

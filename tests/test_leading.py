"""Batches reach the other ranks as they were, and an idle rank 0 is heard."""

import os
import threading
from dataclasses import dataclass, field
from queue import Queue

import pytest

from model import leading
from model.batch import Batch, Context, Row, SamplingParams, Scoring, StepOutput
from model.leading import NOTHING, LeadingRunner, follow
from model.parallel import Ranks
from tests.fakes_engine import FakeRunner

SECONDS = 30

RICH = Row(
    [5, 6],
    3,
    range(1, 4),
    SamplingParams(temperature=0.5, logit_bias={7: -1.5}, num_logprobs=2),
    Context(known_ids=(1, 2), prompt_len=1, forbidden_ids={4}, allowed=b"\x0f\xf0"),
    scoring=Scoring([6], 1),
    pooling="last",
    guessed_ids=[8],
)
PLAIN = Row([1], 0, [0], None, guessed_ids=[])
RICH_AS_READ = Row(
    [5, 6],
    3,
    [1, 2, 3],
    SamplingParams(temperature=0.5, logit_bias={7: -1.5}, num_logprobs=2),
    Context(known_ids=[1, 2], prompt_len=1, forbidden_ids=[4], allowed=b"\x0f\xf0"),
    scoring=Scoring([6], 1),
    pooling="last",
    guessed_ids=[8],
)


@dataclass(frozen=True)
class Wire(Ranks):
    """From rank 0 to another; an error in it is raised where it is heard."""

    messages: "Queue[bytes | RuntimeError]" = field(default_factory=Queue)

    def tell(self, message: bytes) -> None:
        self.messages.put(message)

    def hear(self) -> bytes:
        message = self.messages.get(timeout=SECONDS)
        if isinstance(message, RuntimeError):
            raise message
        return message


class Recorder(FakeRunner):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Batch] = []

    def run(self, batch: Batch) -> StepOutput:
        self.seen.append(batch)
        return StepOutput([None] * len(batch.rows))


def test_other_ranks_run_what_rank_0_runs_until_it_ends() -> None:
    wire, leader, follower = Wire(), Recorder(), Recorder()
    first = LeadingRunner(leader, wire)
    batches = [Batch([RICH], [(1, 2)]), Batch([PLAIN])]
    wire.tell(NOTHING)
    assert [first.run(batch).sampled for batch in batches] == [[None], [None]]
    wire.messages.put(RuntimeError("connection closed by peer"))
    follow(follower, wire)
    assert leader.seen == batches
    assert [batch.rows for batch in follower.seen] == [[RICH_AS_READ], [PLAIN]]
    assert [list(map(tuple, batch.copies)) for batch in follower.seen] == [[(1, 2)], []]


def test_the_engine_is_told_of_rank_0s_runner() -> None:
    runner = Recorder()
    first = LeadingRunner(runner, Wire())
    for name in ("page_size", "num_pages", "vocab_size", "max_model_len", "device", "attention"):
        assert getattr(first, name) == getattr(runner, name)


def test_idle_ranks_hear_that_rank_0_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "HEARTBEAT_SECONDS", 0.01)
    wire = Wire()
    LeadingRunner(Recorder(), wire)
    assert [wire.hear() for _ in range(3)] == [NOTHING] * 3


def test_rank_0_ends_when_it_idles_and_another_has_died(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = threading.Event()

    def end(code: int) -> None:
        assert code == 1
        ended.set()
        threading.Event().wait()  # it doesn't return, either

    class Dead(Wire):
        def tell(self, message: bytes) -> None:
            raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(leading, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", end)
    LeadingRunner(Recorder(), Dead())
    assert ended.wait(SECONDS)
    assert "a rank is gone: connection closed by peer" in caplog.text

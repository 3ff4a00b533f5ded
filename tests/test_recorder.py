"""The flight recorder: what it keeps, whom it tells, what it logs."""

import json
import logging

import pytest

from service.engine.messages import Stats, StepRecord
from service.engine.recorder import NUM_KEPT, NUM_LOGGED, FlightRecorder


def make_record(number: int = 1, started: float = 0.0, **phases: float) -> StepRecord:
    return StepRecord(
        number=number,
        started=started,
        num_decodes=2,
        num_chunks=1,
        num_chunk_tokens=30,
        num_admitted=1,
        num_preempted=0,
        num_finished=1,
        num_queried_tokens=48,
        num_hit_tokens=16,
        num_copied_pages=0,
        phase_seconds=phases or {"schedule": 0.001, "forward": 0.01},
    )


def test_it_keeps_the_last_steps_and_tells_of_all() -> None:
    counted: list[StepRecord] = []
    recorder = FlightRecorder(count=counted.append)
    for number in range(1, NUM_KEPT + 101):
        recorder.add(make_record(number), Stats(num_running=number))
    assert [step.record.number for step in recorder.steps] == list(range(101, NUM_KEPT + 101))
    assert [record.number for record in counted] == list(range(1, NUM_KEPT + 101))


def test_nobody_has_to_count() -> None:
    recorder = FlightRecorder()
    recorder.add(make_record(), Stats())
    assert len(recorder.steps) == 1


@pytest.mark.parametrize("num_steps", [0, 3, 100])
def test_the_last_ones_are_logged_in_a_line(
    caplog: pytest.LogCaptureFixture, num_steps: int
) -> None:
    recorder = FlightRecorder()
    for number in range(num_steps):
        recorder.add(make_record(number), Stats(num_free_pages=5))
    with caplog.at_level(logging.ERROR):
        recorder.log_last()
    [line] = caplog.records
    steps = json.loads(json.dumps(vars(line)["fields"]))["steps"]
    assert [step["number"] for step in steps] == list(range(num_steps))[-NUM_LOGGED:]
    assert all(step["after"]["num_free_pages"] == 5 for step in steps)

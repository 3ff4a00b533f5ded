"""Where the time goes, by phase."""

import pytest

from service.engine.stopwatch import Stopwatch
from tests.fakes_engine import FakeClock


def test_each_lap_is_what_went_by_since_the_last() -> None:
    clock = FakeClock()
    watch = Stopwatch(clock)
    clock.now += 1
    watch.lap("schedule")
    clock.now += 2
    assert watch.lap("run") == pytest.approx(2)
    clock.now += 3
    watch.lap("schedule")
    assert watch.take() == {"schedule": pytest.approx(4), "run": pytest.approx(2)}
    assert watch.take() == {}


def test_parts_of_a_lap_have_names_of_their_own() -> None:
    clock = FakeClock()
    watch = Stopwatch(clock)
    clock.now += 10
    assert watch.lap("run", parts={"pack": 1.0, "forward": 7.0}) == pytest.approx(10)
    assert watch.take() == {"pack": 1.0, "forward": 7.0, "run": pytest.approx(2)}


def test_a_restart_forgets_what_was_measured() -> None:
    clock = FakeClock()
    watch = Stopwatch(clock)
    clock.now += 5
    watch.lap("schedule")
    clock.now += 5
    watch.restart()
    clock.now += 1
    watch.lap("run")
    assert watch.take() == {"run": pytest.approx(1)}

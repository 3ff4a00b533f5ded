"""Runs Locust in this process, for one level of load at a time, and gathers its observations."""

import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from locust import User
from locust.env import Environment

from loadtests.prompts import Work
from loadtests.shapes import Stage, poisson_arrivals
from loadtests.stream import Observation, Target
from loadtests.users import SPAWN_RATE, ArrivingUser, StagedShape, StreamUser


@dataclass(slots=True)
class Driven:
    """What came of a level. CPU seconds are this process's."""

    observations: list[Observation] = field(default_factory=list)
    cpu_seconds: float = 0.0


def closed_loop(target: Target, works: Iterator[Work], users: int, seconds: float) -> Driven:
    """So many users at once, until all work is done or no more may begin."""

    class Asking(StreamUser):
        pass

    Asking.target, Asking.works = target, until(works, seconds)
    return _drive(Asking, users)


def open_loop(
    target: Target, works: Iterator[Work], rate: float, seconds: float, seed: int
) -> Driven:
    """Poisson arrivals, whatever the server is up to."""

    class Arriving(ArrivingUser):
        pass

    due = itertools.takewhile(lambda arrival: arrival < seconds, poisson_arrivals(rate, seed))
    Arriving.target, Arriving.arrivals = target, zip(due, works, strict=False)
    return _drive(Arriving, 1)


def shaped(target: Target, works: Iterator[Work], stages: list[Stage]) -> Driven:
    """As many users as the stages say. One that has to go first reads its answer to the end."""

    class Asking(StreamUser):
        pass

    class Staged(StagedShape):
        def stages(self) -> list[Stage]:
            return stages

    Asking.target, Asking.works = target, until(works, stages[-1].until)
    shape = Staged()  # type: ignore[no-untyped-call]
    return _drive(Asking, shape, stop_timeout=target.timeout)


def until(works: Iterator[Work], seconds: float) -> Iterator[Work]:
    """No more of them after so many seconds from the first."""
    deadline: float | None = None
    for work in works:
        now = time.perf_counter()
        deadline = deadline or now + seconds
        if now >= deadline:
            return
        yield work


def _drive(
    user_class: type[User], load: int | StagedShape, *, stop_timeout: float | None = None
) -> Driven:
    logging.getLogger("locust").setLevel(logging.WARNING)
    environment = Environment(user_classes=[user_class], stop_timeout=stop_timeout)
    driven = Driven()

    def gather(context: dict[str, Any], **_: Any) -> None:
        if "observation" in context:
            driven.observations.append(context["observation"])

    environment.events.request.add_listener(gather)
    cpu = time.process_time()
    _run(environment, load)
    driven.cpu_seconds = time.process_time() - cpu
    return driven


def _run(environment: Environment, load: int | StagedShape) -> None:
    """To the end of all users."""
    runner = environment.create_local_runner()
    if isinstance(load, StagedShape):
        environment.shape_class, load.runner = load, runner
        runner.start_shape()
        assert runner.shape_greenlet is not None
        runner.shape_greenlet.join()
    else:
        runner.start(load, SPAWN_RATE)
        assert runner.spawning_greenlet is not None
        runner.spawning_greenlet.join()
    runner.user_greenlets.join()
    failed = [each["traceback"] for each in runner.exceptions.values()]
    runner.quit()
    assert failed == [], failed[0]

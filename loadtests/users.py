"""Locust users that stream, and what they tell Locust.

Importing Locust makes this process's sockets and threads gevent's. Besides the request itself,
each stream fires events of the types TTFT and ITL, in milliseconds, and TOKENS, whose "response
time" is a number of tokens; so Locust's own statistics, exports and user interface show them. The
request's event has the whole Observation in its context.
"""

import time
from collections.abc import Iterator
from typing import ClassVar

import gevent
from gevent.pool import Group
from locust import LoadTestShape, User, task
from locust.env import Environment
from locust.exception import StopUser

from loadtests.prompts import Work
from loadtests.shapes import Stage, users_at
from loadtests.stream import Observation, Target, observe

SPAWN_RATE = 100.0
"""Users per second: all that a stage has more than the one before, at once."""


class StreamUser(User):
    """Closed loop: asks, reads the answer to its end, and asks the next, until no work is left."""

    abstract = True
    target: ClassVar[Target]
    works: ClassVar[Iterator[Work]]

    @task
    def ask(self) -> None:
        work = next(self.works, None)
        if work is None:
            raise StopUser
        report(self.environment, observe(self.target, work))


class ArrivingUser(User):
    """Open loop: sends each request when it is due, whether or not others were answered."""

    abstract = True
    target: ClassVar[Target]
    arrivals: ClassVar[Iterator[tuple[float, Work]]]

    @task
    def ask_all(self) -> None:
        start, asking = time.perf_counter(), Group()
        for seconds, work in self.arrivals:
            due = start + seconds
            gevent.sleep(max(0.0, due - time.perf_counter()))
            asking.spawn(self._ask, work, due)
        asking.join()
        raise StopUser

    def _ask(self, work: Work, due: float) -> None:
        report(self.environment, observe(self.target, work, due))


class StagedShape(LoadTestShape):
    """Users as stages say."""

    abstract = True

    def stages(self) -> list[Stage]:
        raise NotImplementedError

    def tick(self) -> tuple[int, float] | None:
        seconds = self.get_run_time()  # type: ignore[no-untyped-call]
        users = users_at(self.stages(), seconds)
        return None if users is None else (users, SPAWN_RATE)


def report(environment: Environment, observation: Observation) -> None:
    """Once it is over, so that counting delays no stream's next token more than it must."""
    name = observation.work.scenario
    environment.events.request.fire(
        request_type="POST",
        name=name,
        response_time=observation.latency * 1e3,
        response_length=len(observation.text),
        exception=observation.fault,
        context={"observation": observation},
    )
    if observation.fault is None:
        _report_value(environment, "TTFT", name, observation.ttft * 1e3)
        for gap in observation.gaps:
            _report_value(environment, "ITL", name, gap * 1e3)
        _report_value(environment, "TOKENS", name, observation.output_tokens)


def _report_value(environment: Environment, kind: str, name: str, value: float) -> None:
    environment.events.request.fire(
        request_type=kind,
        name=name,
        response_time=value,
        response_length=0,
        exception=None,
        context={},
    )

"""How much load when: users over time, and arrivals that don't wait for answers.

Numbers only; who turns them into requests is in users.py.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

RAMP_STAGES = 20


@dataclass(frozen=True, slots=True)
class Stage:
    """So many users until so many seconds from the start."""

    until: float
    users: int


def steps(peak: int, seconds: float) -> list[Stage]:
    """1/8, 1/4, 1/2 and all of the users, a quarter of the time each: time to settle at each."""
    shares = (1 / 8, 1 / 4, 1 / 2, 1)
    return [
        Stage(seconds * (i + 1) / len(shares), _at_least_one(peak * share))
        for i, share in enumerate(shares)
    ]


def ramp(peak: int, seconds: float) -> list[Stage]:
    """Ever more users, to see where the server has enough."""
    return [
        Stage(seconds * (i + 1) / RAMP_STAGES, _at_least_one(peak * (i + 1) / RAMP_STAGES))
        for i in range(RAMP_STAGES)
    ]


def spike(peak: int, seconds: float) -> list[Stage]:
    """An eighth of the users, all of them at once for a fifth of the time, and an eighth again."""
    few = _at_least_one(peak / 8)
    return [Stage(seconds * 0.4, few), Stage(seconds * 0.6, peak), Stage(seconds, few)]


def soak(peak: int, seconds: float) -> list[Stage]:
    """The same all the time, for leaks and drift."""
    return [Stage(seconds, peak)]


SHAPES: dict[str, Callable[[int, float], list[Stage]]] = {
    "steps": steps,
    "ramp": ramp,
    "spike": spike,
    "soak": soak,
}


def _at_least_one(users: float) -> int:
    return max(1, round(users))


def users_at(stages: list[Stage], seconds: float) -> int | None:
    """None once it is over."""
    return next((stage.users for stage in stages if seconds < stage.until), None)


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Seconds from the start at which requests are due: the first at once, `rate` per second."""
    rng, due = random.Random(seed), 0.0
    while True:
        yield due
        due += rng.expovariate(rate)

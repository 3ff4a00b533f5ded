"""The engine's last steps, kept for whoever asks later what it was doing. Knows no metrics."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from service.engine.messages import Stats, StepRecord

log = logging.getLogger(__name__)

NUM_KEPT = 512
NUM_LOGGED = 16


@dataclass(frozen=True, slots=True)
class Step:
    record: StepRecord
    stats: Stats
    """The engine's state after it."""

    def as_dict(self) -> dict[str, Any]:
        after: dict[str, Any] = msgspec.to_builtins(self.stats)
        return msgspec.to_builtins(self.record) | {"after": after}


def _nobody(record: StepRecord) -> None:
    """Takes the place of whoever counts steps, where nobody does."""


@dataclass(slots=True, kw_only=True)
class FlightRecorder:
    """Outlives the engine process, which is what it is for."""

    count: Callable[[StepRecord], None] = _nobody
    """Gets every record as it comes, since those kept are too few to be counted later."""
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=NUM_KEPT))

    def add(self, record: StepRecord, stats: Stats) -> None:
        self.steps.append(Step(record, stats))
        self.count(record)

    def log_last(self) -> None:
        """In one line; there is no text of requests in a step."""
        last = [step.as_dict() for step in list(self.steps)[-NUM_LOGGED:]]
        log.error("the engine's last steps", extra={"fields": {"steps": last}})

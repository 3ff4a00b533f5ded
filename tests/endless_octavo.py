"""`python -m tests.endless_octavo [SECONDS] serve …`: octavo with an engine that computes nothing.

A step takes those seconds, or no time. Contexts are long, and the same token follows whatever it is
asked.
"""

import sys
import time

from model.batch import Batch, Runner, SampledToken, StepOutput
from service.engine.loop import Progress, main
from service.engine.messages import EngineSpec
from tests.fake_octavo import serve_by

MODULE = [sys.executable, "-m", "tests.endless_octavo"]
ENGINE = "engine"
TOKEN = SampledToken(1000)


class EndlessRunner:
    page_size = 16
    num_pages = 100_000
    vocab_size = 49_152
    max_model_len = 200_000
    device, attention = "cpu", "none"

    def __init__(self, *, step_seconds: float = 0.0) -> None:
        self._step_seconds = step_seconds

    def run(self, batch: Batch) -> StepOutput:
        if self._step_seconds:
            time.sleep(self._step_seconds)
        return StepOutput([TOKEN if row.sampling else None for row in batch.rows])


def run(step_seconds: str) -> None:
    def load(spec: EngineSpec, progress: Progress) -> Runner:
        return EndlessRunner(step_seconds=float(step_seconds))

    if sys.argv[1:] == [ENGINE]:
        main(load)
    else:
        serve_by([*MODULE, step_seconds, ENGINE])


if __name__ == "__main__":
    run(sys.argv.pop(1) if sys.argv[1][0].isdigit() else "0")

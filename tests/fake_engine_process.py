"""An engine process with a fake model: `python -m tests.fake_engine_process [fault]`.

Faults: `unloadable` reports a user's mistake; `crash-loading` ends before it is ready; `poison`
dies when a batch holds token 49; `mute` falls silent on it; `die-after-3` dies in its fourth step;
`growing` takes 8 MiB of addresses more with each, and its time.
"""

import os
import sys
import time

from model.batch import Batch, Runner, StepOutput
from model.errors import ModelError
from service.engine.loop import Progress, main
from service.engine.messages import EngineSpec
from tests.fakes_engine import ObedientRunner

POISON = 49
BALLAST_BYTES = 8 << 20


class FaultyRunner(ObedientRunner):
    def __init__(self, fault: str) -> None:
        super().__init__(num_pages=64)
        self.fault = fault
        self.ballast: list[bytes] = []

    def run(self, batch: Batch) -> StepOutput:
        if self.fault == "die-after-3" and len(self.batches) == 3:
            raise RuntimeError("the device says no")
        if any(POISON in row.token_ids for row in batch.rows):
            if self.fault == "poison":
                raise RuntimeError("the device says no")
            if self.fault == "mute":
                time.sleep(3600)
        if self.fault == "growing":
            self.ballast.append(bytes(BALLAST_BYTES))
            time.sleep(0.02)
        time.sleep(0.001)
        return super().run(batch)


def load(spec: EngineSpec, progress: Progress) -> Runner:
    fault = sys.argv[1] if len(sys.argv) > 1 else ""
    progress("weights", spec.model_path, 0.5)
    if fault == "unloadable":
        raise ModelError("no such model: take another")
    if fault == "crash-loading":
        os._exit(3)
    return FaultyRunner(fault)


if __name__ == "__main__":
    main(load)

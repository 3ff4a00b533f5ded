"""`python deploy/test/paced_octavo.py serve …`: octavo with an engine that computes nothing, at the
pace of one that does, so that streams last."""

import sys
import time
from functools import partial

from model.batch import Batch, Runner, SampledToken, StepOutput
from service import cli
from service.engine import client
from service.engine.loop import Progress, main
from service.engine.messages import EngineSpec

ENGINE = "engine"
STEP_SECONDS = 0.02


class PacedRunner:
    page_size = 16
    num_pages = 10_000
    vocab_size = 49_152
    max_model_len = 8192

    def run(self, batch: Batch) -> StepOutput:
        time.sleep(STEP_SECONDS)
        return StepOutput([SampledToken(1000) if row.sampling else None for row in batch.rows])


def load(spec: EngineSpec, progress: Progress) -> Runner:
    return PacedRunner()


if __name__ == "__main__":
    if sys.argv[1:] == [ENGINE]:
        main(load)
    else:
        command = [sys.executable, __file__, ENGINE]
        setattr(client, "EngineClient", partial(client.EngineClient, command=command))  # noqa: B010
        cli.main()

"""`python -m tests.endless_octavo serve …`: octavo with an engine that computes nothing, very fast.

Its contexts are long, and the same token follows whatever it is asked.
"""

import sys
from functools import partial

from model.batch import Batch, Runner, SampledToken, StepOutput
from service import cli
from service.engine import client
from service.engine.loop import Progress, main
from service.engine.messages import EngineSpec

ENGINE = "engine"


class EndlessRunner:
    page_size = 16
    num_pages = 100_000
    vocab_size = 49_152
    max_model_len = 200_000

    def run(self, batch: Batch) -> StepOutput:
        return StepOutput([SampledToken(1000) if row.sampling else None for row in batch.rows])


def load(spec: EngineSpec, progress: Progress) -> Runner:
    return EndlessRunner()


if __name__ == "__main__":
    if sys.argv[1:] == [ENGINE]:
        main(load)
    else:
        command = [sys.executable, "-m", "tests.endless_octavo", ENGINE]
        setattr(client, "EngineClient", partial(client.EngineClient, command=command))  # noqa: B010
        cli.main()

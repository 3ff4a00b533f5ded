"""`python -m tests.overlapping_engine_process`: an engine process, or a rank, whose runner has a
device of its own, slow and on a thread, as if it had a GPU."""

import sys
from itertools import cycle
from typing import Any

from model import runner
from model.device_runner import DeviceRunner
from model.runner import Loaded
from model.torch_runner import Cache
from service.engine import process, ranks
from tests.late_device import SlowDevice

MAX_SEQUENCES, NUM_PAGES = 4, 12


def device_runner(loaded: Loaded, cache: Cache, **limits: Any) -> DeviceRunner:
    small = loaded.allocate(loaded.model.config, num_pages=NUM_PAGES + 1)
    return DeviceRunner(
        loaded.model,
        small,
        SlowDevice(cycle([0.0, 0.002, 0.001, 0.004, 0.0])),
        max_sequences=MAX_SEQUENCES,
        captures=True,
        kernels=loaded.kernels,
        **limits,
    )


if __name__ == "__main__":
    setattr(runner, "_cpu_runner", device_runner)  # noqa: B010
    setattr(ranks, "COMMAND", (sys.executable, "-m", "tests.overlapping_engine_process"))  # noqa: B010
    process.main()

"""`python -m tests.fake_octavo FAULT …`: the octavo command with an engine that has no model.

FAULT is one of tests.fake_engine_process, or "none".
"""

import sys
from functools import partial

from service import cli
from service.engine import client

if __name__ == "__main__":
    fault = sys.argv.pop(1)
    command = [sys.executable, "-m", "tests.fake_engine_process", fault]
    setattr(client, "EngineClient", partial(client.EngineClient, command=command))  # noqa: B010
    cli.main()

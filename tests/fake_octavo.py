"""`python -m tests.fake_octavo FAULT …`: the octavo command with an engine that has no model.

FAULT is one of tests.fake_engine_process, or "none".
"""

import sys
from collections.abc import Sequence
from functools import partial

from service import cli
from service.engine import client


def serve_by(engine: Sequence[str]) -> None:
    """Run octavo's command line, with that command for its engine process."""
    setattr(client, "EngineClient", partial(client.EngineClient, command=engine))  # noqa: B010
    cli.main()


if __name__ == "__main__":
    serve_by([sys.executable, "-m", "tests.fake_engine_process", sys.argv.pop(1)])

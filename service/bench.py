"""Hands over to loadtests/ and benchmarks/, which a checkout has and an installed octavo hasn't.

Knows only what that needs. In this process it couldn't run: Locust exchanges the sockets and
threads of the process that imports it.
"""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from service.engine.child import ENVIRONMENT
from service.errors import CommandError

NEEDED = ("loadtests", "benchmarks", "locust", "matplotlib")


def run(arguments: Sequence[str]) -> None:
    """Become `python -m loadtests`, or `benchmarks.step` after the word `step`, which computes as
    the engine's process does. -P: from this installation, not from the current folder."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"bench needs {' and '.join(missing)}: run it from a checkout of octavo, after "
            "`pip install --editable . --group loadtests` (pip 25.1 or newer)"
        )
    module = "loadtests"
    if arguments[:1] == ["step"]:
        module, arguments = "benchmarks.step", arguments[1:]
    command = [sys.executable, "-P", "-m", module, *arguments]
    os.execve(sys.executable, command, ENVIRONMENT | os.environ)

"""A clock that jumps: only the monotonic one measures anything."""

import ast
from pathlib import Path

import pytest

from tests.test_project import PRODUCT, TREES, name_of

WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
TELLS_THE_TIME = {"service/api/served.py", "service/otel.py", "service/text/chat_template.py"}
"""When an answer was made, when a span began, and today's date, for people and models to read."""


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_no_duration_hangs_on_the_wall_clock(path: Path) -> None:
    calls = {ast.unparse(n.func) for n in ast.walk(TREES[path]) if isinstance(n, ast.Call)}
    assert name_of(path) in TELLS_THE_TIME or not calls & WALL_CLOCK

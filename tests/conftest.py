"""Fixtures that several test modules share."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage

from service import cli, hub
from service.engine.child import ENVIRONMENT
from tests.served import serve

for name, value in ENVIRONMENT.items():  # before torch is imported, as in the engine process
    os.environ.setdefault(name, value)

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
MEASURING = "COVERAGE_PROCESS_CONFIG"
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["test_triton_*.py"]


@pytest.hookimpl(tryfirst=True)  # before pytest-cov's
def pytest_sessionstart(session: pytest.Session) -> None:
    """A process of pytest-xdist's is about to get the coverage that its tests have. Whatever has
    seen it start is ended, since it would go on where `no_cover` stops the other."""
    if hasattr(session.config, "workerinput"):
        while begun := Coverage.current():
            begun.stop()


@pytest.fixture(scope="session", autouse=True)
def measuring() -> Iterator[str | None]:
    """How coverage is told of processes that tests start; but it isn't, since it takes nearly half
    of a server's time, and what they do is mostly seen in this process."""
    with pytest.MonkeyPatch.context() as patch:
        told = os.environ.get(MEASURING)
        patch.delenv(MEASURING, raising=False)
        yield told


@pytest.fixture
def measured(measuring: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage sees the processes that this test starts, too: they do what no test does in here."""
    if measuring is not None:
        monkeypatch.setenv(MEASURING, measuring)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file, fetched into the cache once."""
    return hub.resolve(cli.DEFAULT_MODEL)


@pytest.fixture(scope="session")
def url(smollm2_path: Path) -> Iterator[str]:
    """Where the default model is served."""
    with serve(smollm2_path) as url:
        yield url

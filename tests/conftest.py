"""Fixtures that several test modules share."""

from pathlib import Path

import pytest

from service import hub


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file, fetched into the cache once."""
    return hub.resolve(hub.DEFAULT_MODEL)

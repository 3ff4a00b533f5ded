"""Fixtures that several test modules share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file."""
    return Path("/tmp/m/SmolLM2-135M-Instruct.Q4_1.gguf")

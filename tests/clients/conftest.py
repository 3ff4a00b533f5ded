"""The default model, where clients are told to look for it."""

import httpx
import pytest

from tests.served import SECONDS


@pytest.fixture(scope="session")
def base_url(url: str) -> str:
    return f"{url}/v1"


@pytest.fixture(scope="session")
def model(base_url: str) -> str:
    """Its name there."""
    name: str = httpx.get(f"{base_url}/models", timeout=SECONDS).json()["data"][0]["id"]
    return name

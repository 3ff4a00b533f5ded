"""The app as a whole: its lifespan, its description, its names."""

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from model.errors import ModelError
from service.app import create_app
from service.config import ServerConfig
from service.text.model import TextModel
from tests.fakes import Client, FakeEngine, make_text

CONFIG = ServerConfig(served_model_name="tiny")


async def loaded(app: Any) -> None:
    async with asyncio.timeout(10):
        while app.state.served.status.phase == "loading":  # noqa: ASYNC110 - a thread's work
            await asyncio.sleep(0.001)


def test_the_lifespan_starts_the_engine_loads_the_text_and_stops_the_engine() -> None:
    engine = FakeEngine()
    may_load = threading.Event()

    def load_text() -> TextModel:
        may_load.wait(10)
        return make_text()

    app = create_app(engine, load_text, CONFIG)

    async def scenario() -> None:
        async with app.router.lifespan_context(app):
            assert engine.calls == ["start"]
            assert app.state.served.status.phase == "loading"
            assert app.state.served.status.detail == "tokenizer"
            may_load.set()
            await loaded(app)
            assert app.state.served.status.phase == "ready"
        assert engine.calls == ["start", "stop"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "said"),
    [(ModelError("no tokenizer in x"), "no tokenizer in x"), (KeyError(), "KeyError")],
)
def test_a_text_model_that_cannot_be_loaded(
    error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def load_text() -> TextModel:
        raise error

    app = create_app(FakeEngine(), load_text, CONFIG)

    async def scenario() -> None:
        async with app.router.lifespan_context(app):
            await loaded(app)

    asyncio.run(scenario())
    assert app.state.served.status.phase == "failed"
    assert app.state.served.status.detail == said
    [record] = caplog.records
    assert bool(record.exc_info) == isinstance(error, KeyError)


def test_the_names_are_those_of_the_config() -> None:
    app = create_app(FakeEngine(), make_text, ServerConfig(served_model_name="a, b/c"))
    assert app.state.served.names == ["a", "b/c"]


def test_the_description_has_the_requests() -> None:
    client = Client()
    description = client.get("/openapi.json").json()
    schemas = description["components"]["schemas"]
    for path, name in [("chat/completions", "ChatRequest"), ("completions", "CompletionRequest")]:
        body = description["paths"][f"/v1/{path}"]["post"]["requestBody"]
        reference = body["content"]["application/json"]["schema"]["$ref"]
        assert reference == f"#/components/schemas/{name}"
        assert "temperature" in schemas[name]["properties"]
    assert client.get("/docs").status_code == 200


def test_the_api_process_has_no_torch() -> None:
    code = "import service.app, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

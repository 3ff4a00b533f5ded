"""The app as a whole: its lifespan, its description, its names."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from model.errors import ModelError
from service.app import create_app
from service.config import ServerConfig
from service.engine.protocol import EngineStatus
from service.text.model import TextModel
from tests.fakes import MODEL_PATH, Client, FakeEngine, fetch, load_text, make_text

CONFIG = ServerConfig(served_model_name="tiny")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a thread's work
            await asyncio.sleep(0.001)


def slow_fetch(may_go_on: threading.Event) -> Callable[[], Path]:
    def fetch() -> Path:
        may_go_on.wait(10)
        return MODEL_PATH

    return fetch


def test_the_lifespan_fetches_before_it_starts_the_engine() -> None:
    engine = FakeEngine(status=EngineStatus("starting"))
    may_go_on = threading.Event()
    app = create_app(engine, slow_fetch(may_go_on), load_text, CONFIG)

    async def scenario() -> None:
        async with app.router.lifespan_context(app):
            await until(lambda: app.state.served.status.phase == "loading")
            assert app.state.served.status.detail == "fetching tiny"
            assert engine.calls == []
            may_go_on.set()
            await until(lambda: engine.model_path == MODEL_PATH)
            assert app.state.served.status.phase == "starting"

    asyncio.run(scenario())


def test_a_fetch_may_be_left_unfinished() -> None:
    engine = FakeEngine(status=EngineStatus("starting"))
    may_go_on = threading.Event()
    app = create_app(engine, slow_fetch(may_go_on), load_text, CONFIG)

    async def scenario() -> None:
        async with app.router.lifespan_context(app):
            await until(lambda: app.state.served.status.phase == "loading")
        assert engine.calls == ["stop"]
        assert app.state.served.status.phase == "starting", "the engine's own"

    asyncio.run(scenario())
    may_go_on.set()


@pytest.mark.parametrize(
    ("error", "said"), [(ModelError("no such model"), "no such model"), (KeyError(), "KeyError")]
)
def test_a_model_that_cannot_be_fetched(error: Exception, said: str) -> None:
    def fail() -> Path:
        raise error

    engine = FakeEngine()
    app = create_app(engine, fail, load_text, CONFIG)

    async def scenario() -> None:
        async with app.router.lifespan_context(app):
            await until(lambda: app.state.served.status.phase == "failed")

    asyncio.run(scenario())
    assert app.state.served.status.detail == said
    assert engine.calls == ["stop"]


def test_the_lifespan_starts_the_engine_loads_the_text_and_stops_the_engine() -> None:
    engine = FakeEngine()
    may_load = threading.Event()

    def load_text(path: Path) -> TextModel:
        may_load.wait(10)
        return make_text()

    app = create_app(engine, fetch, load_text, CONFIG)

    async def scenario() -> None:
        async with app.router.lifespan_context(app):
            await until(lambda: engine.model_path == MODEL_PATH)
            assert app.state.served.status == EngineStatus("loading", "tokenizer", 1.0)
            may_load.set()
            await until(lambda: app.state.served.status.phase != "loading")
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
    def fail(path: Path) -> TextModel:
        raise error

    app = create_app(FakeEngine(), fetch, fail, CONFIG)

    async def scenario() -> None:
        async with app.router.lifespan_context(app):
            await until(lambda: app.state.served.status.phase == "failed")

    asyncio.run(scenario())
    assert app.state.served.status.detail == said
    [record] = caplog.records
    assert bool(record.exc_info) == isinstance(error, KeyError)


def test_the_names_are_those_of_the_config() -> None:
    app = create_app(FakeEngine(), fetch, load_text, ServerConfig(served_model_name="a, b/c"))
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

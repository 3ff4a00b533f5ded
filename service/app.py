"""The ASGI application: routes, error handlers, middleware and lifespan around one engine.

Everything it needs comes by argument; it starts no process itself and reads no environment.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema
from starlette.middleware import Middleware

from service.api import chat, completions, models, ops
from service.api.context import RequestContext
from service.api.errors import HANDLERS
from service.api.schema import ChatRequest, CompletionRequest
from service.api.served import ServedModel
from service.config import ServerConfig
from service.engine.protocol import Engine
from service.metrics import EngineReading, Metrics
from service.text.model import TextModel


def create_app(engine: Engine, load_text: Callable[[], TextModel], config: ServerConfig) -> FastAPI:
    """`app.state.served.status` says whether it can serve, or why it never will."""
    served = ServedModel(
        engine,
        Metrics(lambda: read_engine(engine), version=version("octavo")),
        names=config.served_names,
        max_body_bytes=config.max_body_bytes,
    )
    app = DescribedApp(
        title="octavo",
        version=version("octavo"),
        lifespan=partial(lifespan, engine=engine, served=served, load_text=load_text),
        middleware=[Middleware(RequestContext)],
        exception_handlers=dict(HANDLERS),
        redirect_slashes=False,
    )
    app.state.served = served
    for api in (chat, completions, models, ops):
        app.include_router(api.router)
    return app


@asynccontextmanager
async def lifespan(
    app: FastAPI, *, engine: Engine, served: ServedModel, load_text: Callable[[], TextModel]
) -> AsyncIterator[None]:
    await engine.start()
    loading = asyncio.create_task(served.load(load_text))
    try:
        yield
    finally:
        loading.cancel()
        await engine.stop()


class DescribedApp(FastAPI):
    """Adds the bodies that the routes parse themselves to /openapi.json."""

    def openapi(self) -> dict[str, Any]:
        description = super().openapi()
        _, schemas = models_json_schema(
            [(ChatRequest, "validation"), (CompletionRequest, "validation")],
            ref_template="#/components/schemas/{model}",
        )
        description.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        return description


def read_engine(engine: Engine) -> EngineReading:
    stats = engine.stats
    used_pages = stats.num_pages - stats.num_free_pages
    return EngineReading(
        up=engine.status.phase == "ready",
        requests_running=stats.num_running,
        requests_waiting=stats.num_waiting,
        kv_cache_usage_ratio=used_pages / stats.num_pages if stats.num_pages else 0.0,
        preemptions=stats.num_preemptions,
        steps=stats.num_steps,
    )

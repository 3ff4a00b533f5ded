"""The ASGI application: routes, error handlers, middleware and lifespan around one engine.

Everything it needs comes by argument; it starts no process itself and reads no environment.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from service.api import chat, completions, debug, docs, embeddings, models, ops, tokens
from service.api.context import RequestContext
from service.api.description import complete
from service.api.errors import HANDLERS
from service.api.gate import Gate, Hosts, charge
from service.api.served import ServedModel
from service.auth import KeyRing
from service.config import ServerConfig, split_names
from service.engine.messages import StepRecord
from service.engine.protocol import Engine, EngineStatus
from service.limits import Admission
from service.metrics import EngineReading, Metrics
from service.quota import Quotas
from service.text.model import TextModel
from service.tracing import Tracer

CORS: Mapping[str, Any] = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": ["*"],
    "expose_headers": ["x-request-id", "retry-after", "traceparent"],
}
FASTAPIS_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,  # of what clients sent
    "operation_spans": False,
    "auto_configure": False,
}
"""Octavo has its own, and FastAPI's is to be had by a variable of the environment."""


def create_app(
    engine: Engine,
    fetch: Callable[[], Path],
    load_text: Callable[[Path], TextModel],
    config: ServerConfig,
    keys: KeyRing | None = None,
    tracer: Tracer | None = None,
) -> "App":
    """Its lifespan fetches the model and loads it; `read_status` tells how that goes."""
    tenants = keys.names if keys else ()
    metrics = Metrics(
        lambda: read_engine(engine, served.startup_seconds),
        version=version("octavo"),
        tenants=tenants,
        vllm_model_name=config.served_names[0] if config.metrics_compat == "vllm" else "",
    )
    admission = Admission(
        max_requests=config.max_queued_requests,
        max_tokens=config.max_queued_tokens,
        count_refusal=metrics.call_rejected,
    )
    engine.recorder.count = partial(count_step, metrics, admission)
    served = ServedModel(
        engine,
        metrics,
        admission,
        names=config.served_names,
        max_body_bytes=config.max_body_bytes,
        max_stops=config.max_stops,
        tool_parser=config.tool_parser,
        reasoning_parser=config.reasoning_parser,
    )
    app = App(
        title="octavo",
        version=version("octavo"),
        lifespan=lambda app: lifespan(engine, partial(served.load, fetch, load_text)),
        middleware=make_middleware(config, keys, metrics, tracer),
        exception_handlers=dict(HANDLERS),
        docs_url=None,  # FastAPI's own take their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        telemetry=FASTAPIS_TELEMETRY,
    )
    app.root_path = config.root_path  # paths may come with it or without
    app.state.served = served
    for router in routers(config):
        app.include_router(router)
    return app


def routers(config: ServerConfig) -> list[APIRouter]:
    apis = (chat, completions, docs, embeddings, models, ops, tokens)
    return [
        *(api.router for api in apis),
        *([tokens.info_router] if config.tokenizer_info else []),
        *([debug.router] if config.debug_endpoints else []),
    ]


def make_middleware(
    config: ServerConfig, keys: KeyRing | None, metrics: Metrics, tracer: Tracer | None
) -> list[Middleware]:
    """Outermost first. Browsers ask for CORS without a key, so that its answer comes before."""
    quotas = Quotas()
    account = partial(charge, quotas, metrics.tenant_ended)
    layers = [Middleware(RequestContext, account, tracer)]
    if config.allowed_hosts:
        layers.append(Middleware(Hosts, split_names(config.allowed_hosts)))
    if config.cors_origins:
        origins = split_names(config.cors_origins)
        layers.append(Middleware(CORSMiddleware, allow_origins=origins, **CORS))
    if keys is not None:
        layers.append(Middleware(Gate, keys, quotas, metrics.call_rejected))
    return layers


def read_status(app: "App") -> EngineStatus:
    """Whether the app can serve, or why it never will."""
    served: ServedModel = app.state.served
    return served.status


@asynccontextmanager
async def lifespan(
    engine: Engine, load: Callable[[], Coroutine[None, None, None]]
) -> AsyncIterator[None]:
    """`load` starts the engine, once it has a model for it."""
    loading = asyncio.create_task(load())
    try:
        yield
    finally:
        loading.cancel()
        await asyncio.wait({loading})
        await engine.stop()


class App(FastAPI):
    """Completes /openapi.json by what the routes do themselves."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            complete(super().openapi())
        assert self.openapi_schema is not None
        return self.openapi_schema


def read_engine(engine: Engine, startup_seconds: Mapping[str, float]) -> EngineReading:
    stats, info = engine.stats, engine.info
    used_pages = stats.num_pages - stats.num_free_pages
    return EngineReading(
        up=engine.status.phase == "ready",
        requests_running=stats.num_running,
        requests_waiting=stats.num_waiting,
        kv_cache_usage_ratio=used_pages / stats.num_pages if stats.num_pages else 0.0,
        restarts=engine.num_restarts,
        page_size=info.page_size if info else 0,
        num_pages=info.num_pages if info else 0,
        startup_seconds=startup_seconds,
    )


def count_step(metrics: Metrics, admission: Admission, record: StepRecord) -> None:
    admission.progress(record.num_chunk_tokens + record.num_hit_tokens)
    metrics.step_ended(
        record.phase_seconds,
        num_tokens=record.num_decodes + record.num_chunk_tokens,
        num_preempted=record.num_preempted,
        num_queried_tokens=record.num_queried_tokens,
        num_hit_tokens=record.num_hit_tokens,
        num_guessed_tokens=record.num_guessed_tokens,
        num_true_guesses=record.num_true_guesses,
    )

"""octavo on Ray Serve: every replica is a whole octavo, with an engine process of its own.

    serve run deploy.ray.serve_app:octavo model=smollm2-135m cpus=4   # on this machine alone
    serve deploy deploy/ray/serve.yaml                                # on a cluster

Ray's proxy listens; Ray counts what runs, and starts, drains and replaces replicas. What they
answer is octavo's own, and knows nothing of Ray.
"""

import asyncio
import random
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.request_router import PendingRequest, RunningReplica
from ray.serve.schema import LoggingConfig
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs
from service.app import App, read_status
from service.auth import read_keys
from service.cli import DEFAULT_MODEL, build, open_tracer
from service.config import EngineConfig, ServerConfig

POLL_SECONDS = 0.1
DRAIN_MARGIN_SECONDS = 10
"""Beyond the drain timeout: to end the engine, and what octavo ends by itself."""
RAYS_OWN = (
    *("host", "port", "uds", "ssl_certfile", "ssl_keyfile", "keep_alive_timeout"),
    "root_path",
)
"""Knobs of what listens, which is Ray's proxy."""


class Options(BaseModel):
    """What `serve run` takes as NAME=VALUE, and serve.yaml as `args`. The other knobs are those of
    `octavo serve`, and no variable OCTAVO_* is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = DEFAULT_MODEL
    cpus: int = Field(1, ge=1, description="Of each replica: Ray reserves them, octavo uses them.")
    gpus: float = Field(0, ge=0, description="Of each replica; Ray shows it no others.")
    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(4, ge=1)
    engine: EngineConfig = EngineConfig()
    server: ServerConfig = ServerConfig()

    @model_validator(mode="after")
    def refuse_what_would_do_nothing(self) -> Self:
        defaults = ServerConfig()
        given = [n for n in RAYS_OWN if getattr(self.server, n) != getattr(defaults, n)]
        if given:
            raise ValueError(f"Ray's proxy listens: say {', '.join(given)} in its http_options")
        if self.max_replicas < self.min_replicas:
            raise ValueError("max_replicas is less than min_replicas")
        return self


@serve.ingress()
class Replica:
    """An octavo behind Ray's proxy, which calls the methods here."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._until_deleted = ExitStack()
        self._is_loaded = False

    def __serve_build_asgi_app__(self) -> App:
        """Its lifespan, which Ray goes through next, starts the engine."""
        engine, server = self._options.engine, self._options.server
        logs.configure(server.log_format)
        keys = read_keys(server.api_key_file) if server.api_key_file else None
        tracer = self._until_deleted.enter_context(open_tracer(server.otlp_endpoint))
        threads = replace(engine, threads=engine.threads or self._options.cpus)
        self._octavo = build(self._options.model, threads, server, keys, tracer)
        self._octavo.add_middleware(WithoutRequestId)
        return self._octavo

    async def check_health(self) -> None:
        """Raises RuntimeError where /readyz would say 503. The first check is the one by which Ray
        learns that a replica has started: it waits for the model, however long that loads."""
        while not self._is_loaded:
            self._is_loaded = read_status(self._octavo).phase not in ("starting", "loading")
            await asyncio.sleep(POLL_SECONDS)
        status = read_status(self._octavo)
        if status.phase != "ready":
            raise RuntimeError(f"octavo is {status.phase}: {status.detail}")

    def __del__(self) -> None:
        self._until_deleted.close()


class WithoutRequestId:
    """Leaves x-request-id to Ray's proxy, which would send it a second time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(raw=message["headers"])["x-request-id"]
            await send(message)

        await self._app(scope, receive, send_without)


class SessionRouter(ConsistentHashRouter):
    """Requests of one session, by their x-session-id, go to one replica, whose cache has what was
    said before; or to its successor, if it is full or gone. Others go to the less busy of two."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas to try in turn; of a rank, Ray takes the one that runs least."""
        if not candidate_replicas or not pending_request or pending_request.metadata.session_id:
            return await super().choose_replicas(candidate_replicas, pending_request)
        pending_request.routing_context.should_backoff = True  # between tries of full ones
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]


def octavo(options: Options) -> serve.Application:
    """The application that Ray runs. Raises pydantic's ValidationError for what it can't be."""
    max_sequences = options.engine.max_sequences
    deploy = serve.deployment(
        name="octavo",
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        autoscaling_config=AutoscalingConfig(
            min_replicas=options.min_replicas,
            max_replicas=options.max_replicas,
            # As in components/hpa: before the batch is full, as a new replica has a model to load.
            target_ongoing_requests=0.75 * max_sequences,
        ),
        # Behind those that are computed, as many again may wait in octavo, in its order. Further
        # ones go to the session's next replica, or wait in the proxy for any.
        max_ongoing_requests=2 * max_sequences,
        max_queued_requests=options.server.max_queued_requests or -1,
        graceful_shutdown_timeout_s=options.server.drain_timeout + DRAIN_MARGIN_SECONDS,
        request_router_config=RequestRouterConfig(request_router_class=SessionRouter),
        logging_config=LoggingConfig(enable_access_log=False),  # octavo's says more
    )
    return deploy(Replica).bind(options)

"""OpenTelemetry: a span for each request, and below it one for each stage of its sequences.

The only file that imports opentelemetry, which `octavo[otel]` brings. Spans leave by OTLP over
HTTP, from a thread that nothing waits for: what nobody takes is dropped. Sampling, batches, headers
and the like are as the SDK reads them from OTEL_* variables.

Attributes are those of the conventions for HTTP servers and generative AI
(https://opentelemetry.io/docs/specs/semconv), and octavo.* where these have none. Never a prompt,
an answer or a key.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import Scope

from service.config import ConfigError
from service.threads import start_daemon
from service.tracing import Stage

try:
    from opentelemetry import trace as api
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    INSTALLED = True
except ImportError:
    INSTALLED = False

FLUSH_SECONDS = 2.0
MAX_PATH_LEN = 200
METHODS = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
ASKED = {
    "id": "gen_ai.response.id",
    "model": "gen_ai.request.model",
    "n": "gen_ai.request.choice.count",
    "stream": "gen_ai.request.stream",
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
NOTES = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "first_token_seconds": "gen_ai.response.time_to_first_chunk",
    "tenant": "octavo.tenant",
}


@contextmanager
def open_tracer(endpoint: str) -> Iterator["OtelTracer | None"]:
    """Sends spans to `endpoint`/v1/traces; None where OTEL_SDK_DISABLED is true. Once it closes,
    what is left is sent, as far as that is a matter of FLUSH_SECONDS."""
    if not INSTALLED:
        remedy = "traces need an optional package: pip install 'octavo[otel]'"
        raise ConfigError(f"--otlp-endpoint is {endpoint!r}: {remedy}")
    try:
        provider = make_provider(endpoint)
    except ValueError as error:
        raise ConfigError(f"a variable OTEL_* can't be used: {error}") from None
    tracer = provider.get_tracer("octavo", version("octavo"))
    try:
        yield None if isinstance(tracer, api.NoOpTracer) else OtelTracer(tracer)
    finally:
        wait({start_daemon(provider.shutdown)}, timeout=FLUSH_SECONDS)


def make_provider(endpoint: str) -> "TracerProvider":
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
    provider = TracerProvider(resource=describe_us(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def describe_us() -> "Resource":
    """As octavo, where OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES don't say otherwise."""
    ours = {"service.name": "octavo", "service.version": version("octavo")}
    return Resource.create({**ours, **OTELResourceDetector().detect().attributes})


class OtelTracer:
    def __init__(self, tracer: "api.Tracer") -> None:
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, scope: Scope) -> "OtelTrace":
        """Goes on with the client's trace, and with its decision whether to record it."""
        headers = Headers(scope=scope)
        carrier = {name: headers.getlist(name) for name in self._propagator.fields}
        return OtelTrace(self._tracer, self._propagator.extract(carrier), scope)


class OtelTrace:
    """One request's span. The wall clock is read once: all else is measured from there."""

    def __init__(self, tracer: "api.Tracer", parent: "Context", scope: Scope) -> None:
        self._tracer = tracer
        self._scope = scope
        self._began, self._began_ns = time.monotonic(), time.time_ns()
        is_known = scope["method"] in METHODS
        self._name = scope["method"] if is_known else "HTTP"
        self._span = tracer.start_span(
            self._name,
            parent,
            kind=api.SpanKind.SERVER,
            attributes={
                "http.request.method": scope["method"] if is_known else "_OTHER",
                "url.path": quote(scope["path"])[:MAX_PATH_LEN],
                "url.scheme": scope.get("scheme", "http"),
                "network.protocol.version": scope.get("http_version", "1.1"),
            },
            start_time=self._began_ns,
        )
        context = self._span.get_span_context()
        self.id = f"{context.trace_id:032x}"
        self.traceparent = f"00-{self.id}-{context.span_id:016x}-{context.trace_flags:02x}"

    def tell(self, asked: Mapping[str, Any], stages: Mapping[int, Sequence[Stage]]) -> None:
        if self._span.is_recording():
            self._span.set_attributes(named(asked, ASKED))
            for choice, stages_of_choice in stages.items():
                for stage in stages_of_choice:
                    self._record(stage, choice)

    def _record(self, stage: Stage, choice: int) -> None:
        span = self._tracer.start_span(
            stage.name,
            api.set_span_in_context(self._span),
            attributes={"octavo.choice": choice},
            start_time=self._wall_ns(stage.began),
        )
        span.end(self._wall_ns(stage.ended))

    def end(self, request_id: str, status: int, notes: Mapping[str, Any]) -> None:
        route = getattr(self._scope.get("route"), "path", None)
        if route is not None:
            self._span.update_name(f"{self._name} {route}")
            self._span.set_attribute("http.route", route)
        if route in OPERATIONS:
            about = {"gen_ai.operation.name": OPERATIONS[route], "gen_ai.provider.name": "octavo"}
            self._span.set_attributes(about)
        self._span.set_attributes(named(notes, NOTES))
        if reasons := notes.get("finish_reason"):
            self._span.set_attribute("gen_ai.response.finish_reasons", reasons.split(","))
        self._span.set_attribute("octavo.request_id", request_id)
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_attribute("error.type", str(status))
            self._span.set_status(api.StatusCode.ERROR)
        self._span.end(self._wall_ns(time.monotonic()))

    def _wall_ns(self, monotonic: float) -> int:
        return self._began_ns + round((monotonic - self._began) * 1e9)


def named(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Those that are known, by the names that a trace has for them."""
    return {names[key]: values[key] for key in names.keys() & values.keys()}

"""Traces: a span for each request, its sequences' stages below it, and nobody's text in either."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from service import otel
from service.config import ConfigError
from service.engine.messages import Event, Request, Timings
from tests.fakes import Client, FakeEngine, fail_after, hang_after, read_metric

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TIMINGS = Timings(queue_seconds=0.5, prefill_seconds=0.25, num_preemptions=0)
STAGES = ["queue", "prefill", "decode"]


def script(request: Request) -> Iterator[Event]:
    """Two tokens; the first tells where the time went until then."""
    yield Event(request_id=request.id, token_ids=[97], timings=TIMINGS, num_cached_tokens=1)
    yield Event(request_id=request.id, token_ids=[98], timings=TIMINGS, finish_reason="length")


class Traced(Client):
    """Keeps the spans of what it asks."""

    def __init__(self, engine: FakeEngine | None = None, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(options.pop("sampler", None), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        tracer = otel.OtelTracer(provider.get_tracer("tests"))
        super().__init__(engine or FakeEngine(script), tracer=tracer, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    @property
    def stages(self) -> list[ReadableSpan]:
        return [span for span in self.spans if span.kind is SpanKind.INTERNAL]

    @property
    def request_span(self) -> ReadableSpan:
        (span,) = (span for span in self.spans if span.kind is SpanKind.SERVER)
        return span

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.request_span.attributes or {})


def test_a_request_is_a_span_that_says_what_was_asked_and_what_it_took() -> None:
    client = Traced()
    answer = client.chat(temperature=0.5, top_p=0.9, top_k=7, seed=3, max_tokens=2, n=2)
    assert client.request_span.name == "POST /v1/chat/completions"
    attributes = client.attributes
    assert attributes.pop("gen_ai.response.time_to_first_chunk") >= 0
    assert attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 2,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.seed": 3,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.response.id": answer.json()["id"],
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": answer.json()["usage"]["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.usage.output_tokens": 4,
        "octavo.request_id": answer.headers["x-request-id"],
    }


@pytest.mark.parametrize("stream", [False, True])
def test_stages_follow_each_other_for_every_choice(stream: bool) -> None:
    client = Traced()
    client.complete(n=2, stream=stream)
    request = client.request_span
    for choice in (0, 1):
        stages = [s for s in client.stages if dict(s.attributes or {})["octavo.choice"] == choice]
        assert [stage.name for stage in stages] == STAGES
        queue, prefill, decode = ((stage.start_time, stage.end_time) for stage in stages)
        assert queue[1] == prefill[0]
        assert prefill[1] == decode[0]
        assert seconds(*queue) == pytest.approx(0.5, abs=1e-6)
        assert seconds(*prefill) == pytest.approx(0.25, abs=1e-6)
        assert seconds(decode[1], request.end_time) >= 0
        for stage in stages:
            assert stage.parent == request.context


def seconds(began_ns: int | None, ended_ns: int | None) -> float:
    assert began_ns is not None
    assert ended_ns is not None
    return (ended_ns - began_ns) / 1e9


def test_an_embedding_has_no_decode() -> None:
    def embed(request: Request) -> Iterator[Event]:
        vector = [1.0, 0.0]
        yield Event(
            request_id=request.id, embedding=vector, timings=TIMINGS, finish_reason="length"
        )

    client = Traced(FakeEngine(embed))
    client.post("/v1/embeddings", {"input": ["a", "b"]})
    assert [stage.name for stage in client.stages] == STAGES[:2] * 2
    assert client.attributes["gen_ai.operation.name"] == "embeddings"
    assert client.attributes["gen_ai.request.model"] == "tiny"
    assert client.attributes["gen_ai.usage.input_tokens"] == 2
    assert read_metric(client.app.state.served.metrics, "queue_seconds_count") == 2


def test_a_sequence_without_a_token_has_no_stages() -> None:
    client = Traced(FakeEngine(hang_after("")))
    headers = {"x-request-deadline-ms": "30"}
    client.post("/v1/completions", {"prompt": "Hi"}, headers=headers)
    assert client.attributes["http.response.status_code"] == 504
    assert client.stages == []


def ask(client: Client, **headers: str) -> str:
    """The header that goes out."""
    answer = client.post("/v1/completions", {"prompt": "Hi"}, headers=headers)
    assert answer.status_code == 200
    traceparent: str = answer.headers["traceparent"]
    return traceparent


def test_a_clients_trace_goes_on_here_and_beyond() -> None:
    client = Traced()
    told = ask(client, traceparent=f"00-{TRACE}-{SPAN}-01", tracestate="a=1")
    span = client.request_span
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN
    assert span.context.trace_state.get("a") == "1"
    assert told == f"00-{TRACE}-{span.context.span_id:016x}-01"


def test_what_a_client_has_chosen_not_to_record_is_not_recorded() -> None:
    client = Traced()
    told = ask(client, traceparent=f"00-{TRACE}-{SPAN}-00")
    assert client.spans == []
    assert told.startswith(f"00-{TRACE}-")
    assert told.endswith("-00")


def test_what_the_sampler_leaves_out_is_not_recorded() -> None:
    client = Traced(sampler=ALWAYS_OFF)
    recorded = 1
    assert not int(ask(client)[-2:], 16) & recorded
    assert client.spans == []


@pytest.mark.parametrize(
    "traceparent",
    [
        *("", "x", f"00-{TRACE}-{SPAN}", f"00-{TRACE.upper()}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01"),
        *(f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-01-x"),
        f"00-{TRACE}-{SPAN}-01" + " " * 60_000,
    ],
)
def test_what_is_no_trace_begins_a_new_one(traceparent: str) -> None:
    client = Traced()
    told = ask(client, traceparent=traceparent)
    assert TRACE not in told
    assert client.request_span.parent is None


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics", "/version"])
def test_probes_and_scrapes_are_not_traced(path: str) -> None:
    client = Traced()
    answer = client.get(path, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
    assert "traceparent" not in answer.headers
    assert client.spans == []


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/v1/models/tiny", "GET /v1/models/{name:path}"),
        ("GET", "/v1/nowhere/my-secret", "GET"),
        ("BREW", "/v1/models", "HTTP /v1/models"),
    ],
)
def test_spans_are_called_by_route_whatever_is_asked(method: str, path: str, name: str) -> None:
    client = Traced()
    client.request(method, path)
    assert client.request_span.name == name
    assert "gen_ai.operation.name" not in client.attributes


@pytest.mark.parametrize(
    ("body", "status", "span_status"),
    [({"n": 0}, 400, StatusCode.UNSET), ({}, 500, StatusCode.ERROR)],
)
def test_only_failures_of_ours_are_errors(
    body: dict[str, Any], status: int, span_status: StatusCode
) -> None:
    client = Traced(FakeEngine(fail_after("")))
    client.complete(**body)
    assert client.attributes["http.response.status_code"] == status
    assert client.request_span.status.status_code is span_status
    assert client.attributes.get("error.type") == ("500" if status == 500 else None)


def test_no_text_of_a_client_is_in_a_span() -> None:
    client = Traced()
    secret = "secret"
    fields = {"stop": [secret], "user": secret, "cache_salt": secret, "bad_words": [secret]}
    client.complete(prompt=secret, **fields)
    client.chat(messages=[{"role": "user", "content": secret, "name": secret}], **fields)
    client.post(f"/v1/completions?key={secret}", {"prompt": "Hi", "model": secret})
    assert len(client.spans) == 9
    assert secret not in "".join(span.to_json() for span in client.spans)


def test_the_log_has_the_traces_id(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "octavo.access"):
        ask(Traced(), traceparent=f"00-{TRACE}-{SPAN}-01")
        Client().complete()
    lines = [vars(record)["fields"] for record in caplog.records]
    assert [line.get("trace_id") for line in lines] == [TRACE, None]


def test_without_a_tracer_nothing_is_told() -> None:
    answer = Client().complete()
    assert answer.status_code == 200
    assert "traceparent" not in answer.headers


def test_it_is_called_octavo_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert otel.describe_us().attributes["service.name"] == "octavo"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=7,host.name=here")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    attributes = otel.describe_us().attributes
    assert (attributes["service.name"], attributes["service.version"]) == ("mine", "7")
    assert attributes["host.name"] == "here"


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_BSP_MAX_QUEUE_SIZE", "-3"), ("OTEL_BSP_SCHEDULE_DELAY", "-1")]
)
def test_a_variable_that_cannot_be_used_is_one_line(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with (
        pytest.raises(ConfigError, match=r"a variable OTEL_\* can't be used: .* positive"),
        otel.open_tracer("http://127.0.0.1:1"),
    ):
        pass


def test_the_sdk_may_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with otel.open_tracer("http://127.0.0.1:1") as tracer:
        assert tracer is None

"""Where traces go: a collector that takes them, one that is gone, and one that never answers."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.launched import Launched, launched
from tests.processes import ROOT
from tests.served import SECONDS

NUM_REQUESTS = 3
NUM_SPANS = 4
"""Of a request: its own and three stages."""


class Collector(ThreadingHTTPServer):
    """Keeps what it is sent, and answers with a status of its own."""

    daemon_threads = True

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.status = status
        self.paths: set[str] = set()
        self.received: list[ExportTraceServiceRequest] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def span_names(self) -> list[str]:
        resources = [each for request in self.received for each in request.resource_spans]
        return [span.name for r in resources for scope in r.scope_spans for span in scope.spans]


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.paths.add(self.path)
        self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def collector(status: int = 200) -> Iterator[Collector]:
    with Collector(status) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server: Launched) -> None:
    body = {"prompt": [1], "max_tokens": 2, "ignore_eos": True}
    for _ in range(NUM_REQUESTS):
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=SECONDS)
        assert answer.status_code == 200
        assert answer.headers["traceparent"]


@pytest.mark.usefixtures("measured")
def test_a_collector_gets_every_span_before_the_server_ends(tmp_path: Path) -> None:
    with collector() as collecting, launched(tmp_path, "--otlp-endpoint", collecting.url) as server:
        ask(server)
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
        assert collecting.paths == {"/v1/traces"}
        names = collecting.span_names()
        assert len(names) == NUM_REQUESTS * NUM_SPANS
        assert names.count("POST /v1/completions") == names.count("queue") == NUM_REQUESTS


def test_the_variable_that_others_know_will_do(tmp_path: Path) -> None:
    with collector() as collecting:
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collecting.url,
            "OTEL_TRACES_SAMPLER": "always_off",
        }
        with launched(tmp_path, environment=environment) as server:
            ask(server)
            server.process.send_signal(signal.SIGTERM)
            assert server.exit_code() == 0
        assert collecting.received == []


def test_fastapis_own_telemetry_stays_off(tmp_path: Path) -> None:
    with collector() as collecting:
        environment = {
            **os.environ,
            "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
            **{
                f"OTEL_EXPORTER_OTLP_{kind}_ENDPOINT": f"{collecting.url}/{kind}"
                for kind in ("TRACES", "METRICS", "LOGS")
            },
        }
        with launched(tmp_path, environment=environment) as server:
            answer = httpx.post(f"{server.url}/v1/completions", json={"n": 0}, timeout=SECONDS)
            assert answer.status_code == 400
            server.process.send_signal(signal.SIGTERM)
            assert server.exit_code() == 0
        assert collecting.paths == set()


@pytest.mark.parametrize("status", [400, 503])
def test_a_collector_that_refuses_hurts_no_request(tmp_path: Path, status: int) -> None:
    with collector(status) as collecting:
        end_with(collecting.url, tmp_path)
        assert collecting.received


def test_a_collector_that_is_gone_hurts_no_request(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    end_with(f"http://127.0.0.1:{port}", tmp_path)


def test_a_collector_that_never_answers_holds_nobody_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        end_with(f"http://127.0.0.1:{mute.getsockname()[1]}", tmp_path)


def end_with(endpoint: str, folder: Path) -> None:
    """All is answered, and the end waits a moment, not for the collector."""
    environment = {**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "10"}  # so that it is met at once
    with launched(folder, "--otlp-endpoint", endpoint, environment=environment) as server:
        ask(server)
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert server.exit_code() == 0
        assert time.monotonic() - began < 10  # by itself, the SDK waits for 30 s
        assert "Traceback" not in server.log.read_text()


IMPORT_ALL = """
import sys
import service.main
from service import app, hub, terminal
app.create_app, hub.resolve, terminal.chat
print([name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exp"))])
"""


def test_untraced_no_tracing_library_is_imported() -> None:
    """But for the words that FastAPI imports."""
    command = [sys.executable, "-c", IMPORT_ALL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


WITHOUT_PACKAGE = """
import sys
sys.modules["opentelemetry.sdk"] = None
from service.main import main
sys.argv = ["octavo", "serve", "--port", "0", *sys.argv[1:]]
main()
"""


@pytest.mark.usefixtures("measured")
def test_without_the_package_it_says_what_to_install() -> None:
    command = [sys.executable, "-c", WITHOUT_PACKAGE, "--otlp-endpoint", "http://localhost:4318"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "octavo: --otlp-endpoint is 'http://localhost:4318': "
        "traces need an optional package: pip install 'octavo[otel]'"
    )

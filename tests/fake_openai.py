"""An OpenAI-compatible server without a model, whose answers tests write down byte for byte."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "fake"
METRICS = (
    'octavo_requests_running 3.0\noctavo_requests_waiting{a="b"} 2.0\n'
    "octavo_kv_cache_usage_ratio 0.25\n"
)
Answer = Callable[[dict[str, Any]], Iterator[bytes]]


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(**fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": None}])


def end(num_tokens: int, *, reason: str = "length") -> bytes:
    """The last chunks of a stream: its finish reason, its usage, and that it is done."""
    usage = {"prompt_tokens": 5, "completion_tokens": num_tokens}
    finish = event(choices=[{"index": 0, "delta": {}, "finish_reason": reason}], usage=None)
    return finish + event(choices=[], usage=usage) + b"data: [DONE]\n\n"


def obedient(body: dict[str, Any]) -> Iterator[bytes]:
    """As many tokens as were asked for."""
    yield delta(role="assistant", content="")
    for number in range(body["max_tokens"]):
        yield delta(content=f"{number} ")
    yield end(body["max_tokens"])


def written(pieces: Sequence[bytes]) -> Answer:
    """Always these pieces, each sent alone."""
    return lambda body: iter(pieces)


class OneAtATime:
    """Takes its time for each request, and has no time for two."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any]) -> Iterator[bytes]:
        with self._lock:
            time.sleep(self._seconds)
        yield from obedient(body)


class FakeOpenAI(ThreadingHTTPServer):
    """Remembers the bodies that it was sent."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Answer, status: int, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answer = answer
        self.status = status
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeOpenAI

    def do_GET(self) -> None:
        pages = {
            "/v1/models": json.dumps({"data": [{"id": MODEL, "max_model_len": 99}]}),
            "/version": '{"version": "1.2.3"}',
            "/metrics": METRICS,
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(pages[self.path].encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        self.server.keys.add(self.headers["authorization"])
        self.send_response(self.server.status)
        self.end_headers()
        for piece in self.server.answer(body):
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Not on stderr."""


@contextmanager
def running(answer: Answer = obedient, *, status: int = 200) -> Iterator[FakeOpenAI]:
    with FakeOpenAI(answer, status) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

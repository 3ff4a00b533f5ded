"""Fakes for the tests of the API: an engine with a script, a tokenizer of bytes, clients."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import orjson
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp, Message, Scope
from tokenizers import Tokenizer as Backend, decoders, models, pre_tokenizers, processors

from model.batch import TokenLogprobs
from service.app import create_app
from service.auth import KeyRing
from service.config import ServerConfig
from service.engine.messages import EngineInfo, Event, Request, Stats, Timings, Vocabulary
from service.engine.protocol import EngineStatus, EngineUnavailableError
from service.engine.recorder import FlightRecorder
from service.http_protocol import HttpProtocol
from service.metrics import Metrics
from service.text.chat_template import ChatTemplate
from service.text.definition import TokenizerDefinition
from service.text.model import TextModel
from service.text.token_bytes import ALPHABET_TO_LATIN1
from service.text.tokenizer import Tokenizer
from service.tracing import Tracer

END, START = 256, 257
VOCAB_SIZE = 258
MAX_MODEL_LEN = 200
MODEL_PATH = Path("tiny.gguf")
READY = EngineStatus("ready", fraction=1.0)
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'refuse' %}{{ raise_exception('no such chat') }}"
    "{% endif %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{{ '<|start|>assistant\n' }}"
)


def make_text(*, bos_id: int | None = None) -> TextModel:
    """A token per byte, its id the byte; two special tokens after them, of which one may begin."""
    latin1_to_alphabet = {byte: chr(point) for point, byte in ALPHABET_TO_LATIN1.items()}
    vocab = {latin1_to_alphabet.get(byte, chr(byte)): byte for byte in range(256)}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|start|>"])
    if bos_id is not None:
        start = [("<|start|>", bos_id)]
        backend.post_processor = processors.TemplateProcessing("<|start|> $A", special_tokens=start)
    definition = TokenizerDefinition(backend=backend, bos_id=bos_id, eos_id=END)
    return TextModel(Tokenizer(definition), ChatTemplate(TEMPLATE))


def fetch() -> Path:
    return MODEL_PATH


def load_text(path: Path) -> TextModel:
    assert path == MODEL_PATH
    return make_text()


Script = Callable[[Request], Iterable[Event | None]]
"""The events of a request; None: nothing more ever comes."""


def say(
    text: str,
    *,
    finish_reason: Literal["stop", "length"] = "stop",
    num_cached_tokens: int = 0,
    timings: Timings | None = None,
) -> Script:
    """A token for each byte, and the end's own token where the sequence stops by itself."""
    ids = [*text.encode(), END] if finish_reason == "stop" else list(text.encode())

    def script(request: Request) -> Iterator[Event]:
        scores = prompt_logprobs_of(request)
        if request.max_tokens == 0:
            yield Event(request_id=request.id, prompt_logprobs=scores, finish_reason="length")
            return
        for number, token_id in enumerate(ids, start=1):
            yield Event(
                request_id=request.id,
                token_ids=[token_id],
                logprobs=logprobs_of(request, token_id),
                prompt_logprobs=scores if number == 1 else (),
                num_cached_tokens=num_cached_tokens if number == 1 else 0,
                finish_reason=finish_reason if number == len(ids) else None,
                timings=timings if number == len(ids) else None,
            )

    return script


def logprobs_of(request: Request, token_id: int) -> list[TokenLogprobs]:
    """The chosen token is always the likeliest, "a" and its successors come next."""
    if request.sampling.num_logprobs is None:
        return []
    others = [(97 + rank, -2.0 - rank) for rank in range(request.sampling.num_logprobs - 1)]
    top = [(token_id, -0.5), *others] if request.sampling.num_logprobs else []
    return [TokenLogprobs(-0.5, top)]


def prompt_logprobs_of(request: Request) -> list[TokenLogprobs]:
    """ "a" and its successors are always the likeliest."""
    if request.num_prompt_logprobs is None:
        return []
    top = [(97 + rank, -1.0 - rank) for rank in range(request.num_prompt_logprobs)]
    return [TokenLogprobs(-0.25 * token_id, top, 30) for token_id in request.prompt_ids[1:]]


def hang_after(text: str) -> Script:
    def script(request: Request) -> Iterator[Event | None]:
        for token_id in text.encode():
            yield Event(request_id=request.id, token_ids=[token_id])
        yield None

    return script


def fail_after(
    text: str, reason: Literal["error", "cancelled", "refused", "unavailable"] = "error"
) -> Script:
    def script(request: Request) -> Iterator[Event]:
        for token_id in text.encode():
            yield Event(request_id=request.id, token_ids=[token_id])
        yield Event(request_id=request.id, finish_reason=reason, message="a secret")

    return script


class FakeEngine:
    """Follows a script for each request, a turn of the event loop for each event."""

    def __init__(self, script: Script = say("Hello."), *, status: EngineStatus = READY) -> None:  # noqa: B008
        self.status = status
        self.info: EngineInfo | None = EngineInfo(
            max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB_SIZE, page_size=16, num_pages=100
        )
        self.stats = Stats()
        self.recorder = FlightRecorder()
        self.num_restarts = 0
        self.startup_seconds: dict[str, float] = {}
        self.script = script
        self.submitted: list[Request] = []
        self.running: set[str] = set()
        self.cancelled: list[str] = []
        self.calls: list[str] = []
        self.model_path: Path | None = None
        self.vocabulary: Vocabulary | None = None

    def learn(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    async def start(self, model_path: Path) -> None:
        self.calls.append("start")
        self.model_path = model_path

    async def stop(self) -> None:
        self.calls.append("stop")

    @asynccontextmanager
    async def submit(self, request: Request) -> AsyncIterator[AsyncIterator[Event]]:
        if self.status.phase != "ready":
            raise EngineUnavailableError(f"the engine is {self.status.phase}")
        self.submitted.append(request)
        self.running.add(request.id)
        try:
            yield self._events(request)
        finally:
            if request.id in self.running:
                self.running.remove(request.id)
                self.cancelled.append(request.id)

    async def _events(self, request: Request) -> AsyncIterator[Event]:
        for event in self.script(request):
            if event is None:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(0)
                if event.finish_reason is not None:
                    self.running.remove(request.id)
                yield event


class Client:
    """Calls an app with the text model loaded and the engine as it is."""

    def __init__(
        self,
        engine: FakeEngine | None = None,
        keys: KeyRing | None = None,
        *,
        text: TextModel | None = None,
        tracer: Tracer | None = None,
        **config: Any,
    ) -> None:
        self.engine = engine or FakeEngine()
        knobs = {"served_model_name": "tiny,tiny-too"} | config
        load = load_text if text is None else lambda _: text
        self.app = create_app(self.engine, fetch, load, ServerConfig(**knobs), keys, tracer)
        asyncio.run(self.app.state.served.load(fetch, load))

    def request(self, method: str, path: str, **request: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as client:
                return await client.request(method, path, **request)

        return asyncio.run(send())

    def get(self, path: str, **request: Any) -> httpx.Response:
        return self.request("GET", path, **request)

    def post(self, path: str, body: Any, **request: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **request)

    def chat(self, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "Hi"}]
        return self.post("/v1/chat/completions", {"messages": messages} | body)

    def complete(self, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": "Hi"} | body)


@contextmanager
def listening(client: Client, **config: Any) -> Iterator[tuple[str, int]]:
    """The address of a real socket on which the client's app is served."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = {"http": HttpProtocol, "log_config": None} | config
        server = uvicorn.Server(uvicorn.Config(client.app, **config))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def events_of(response: httpx.Response) -> list[Any]:
    """The data of a whole stream, which must end in [DONE]."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [orjson.loads(event.removeprefix("data: ")) for event in events]


def read_metric(metrics: Metrics, name: str, **labels: str) -> float:
    """One sample, as a scrape shows it."""
    families = text_string_to_metric_families(metrics.render().decode())
    samples = (sample for family in families for sample in family.samples)
    [value] = [s.value for s in samples if (s.name, s.labels) == (f"octavo_{name}", labels)]
    return value


class Connection:
    """One request on an ASGI app, message by message, with a client that may leave or dawdle."""

    def __init__(
        self, app: ASGIApp, path: str, body: Any, *, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self._app = app
        self._scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), *headers],
        }
        self._received: asyncio.Queue[Message] = asyncio.Queue()
        self._received.put_nowait(
            {"type": "http.request", "body": orjson.dumps(body), "more_body": False}
        )

    async def run(self) -> None:
        await self._app(self._scope, self._received.get, self.sent.put)

    def disconnect(self) -> None:
        self._received.put_nowait({"type": "http.disconnect"})

    async def body_until(self, marker: bytes) -> bytes:
        body = b""
        async with asyncio.timeout(10):
            while marker not in body:
                body += (await self.sent.get()).get("body", b"")
        return body

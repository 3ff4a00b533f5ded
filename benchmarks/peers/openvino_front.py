"""What OpenVINO GenAI has no server for: its continuous batching behind OpenAI's streamed chat.

    python -P openvino_front.py FOLDER --threads 2 --port 8000

Runs in the peer's own environment, and so knows nothing of octavo. Answers greedily, as streams
only, and says so to whoever asks for something else.
"""

import argparse
import asyncio
import itertools
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web  # type: ignore[import-not-found]
from openvino_genai import py_openvino_genai as genai  # type: ignore[import-not-found]

GIL_PAUSE_SECONDS = 0.0005
"""step() holds the interpreter's lock: this lets the thread that writes to sockets have it."""
SCHEDULER = {
    "cache_size": 2,  # GiB
    "max_num_seqs": 64,
    "max_num_batched_tokens": 512,
    "dynamic_split_fuse": True,
    "enable_prefix_caching": False,
}
MODEL = "m"


@dataclass(slots=True)
class Stream:
    handle: genai.GenerationHandle
    loop: asyncio.AbstractEventLoop
    num_prompt_tokens: int
    pieces: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    """None: it is over."""
    num_tokens: int = 0
    held: list[int] = field(default_factory=list)
    """Tokens whose bytes aren't whole characters yet."""


class Engine:
    def __init__(self, folder: str, threads: int) -> None:
        scheduler = genai.SchedulerConfig()
        for name, value in SCHEDULER.items():
            setattr(scheduler, name, value)
        options = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", options)
        self.tokenizer = self._pipeline.get_tokenizer()
        self._ids = itertools.count()
        self._streams: list[Stream] = []
        self._has_work = threading.Event()

    def submit(self, messages: list[dict[str, str]], max_tokens: int, ignore_eos: bool) -> Stream:
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        config = self._pipeline.get_config()
        config.do_sample, config.max_new_tokens, config.ignore_eos = False, max_tokens, ignore_eos
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).input_ids
        handle = self._pipeline.add_request(next(self._ids), ids, config)
        stream = Stream(handle, asyncio.get_running_loop(), ids.shape[1])
        self._streams.append(stream)
        self._has_work.set()
        return stream

    def run(self) -> None:
        while True:
            if not self._streams:
                self._has_work.wait()
                self._has_work.clear()
            self._pipeline.step()
            for stream in list(self._streams):
                self._pass_on(stream)
            time.sleep(GIL_PAUSE_SECONDS)

    def _pass_on(self, stream: Stream) -> None:
        is_over = stream.handle.get_status() != genai.GenerationStatus.RUNNING
        while stream.handle.can_read():
            for output in stream.handle.read().values():
                stream.num_tokens += len(output.generated_ids)
                stream.held += output.generated_ids
        text = self.tokenizer.decode(stream.held)
        if text and (is_over or not text.endswith("\ufffd")):
            stream.held.clear()
            self._tell(stream, text)
        if is_over:
            self._streams.remove(stream)
            self._tell(stream, None)

    def _tell(self, stream: Stream, piece: str | None) -> None:
        stream.loop.call_soon_threadsafe(stream.pieces.put_nowait, piece)


class Front:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body.get("temperature") != 0 or not body.get("stream"):
            error = {"message": "temperature must be 0 and stream true", "code": 400}
            return web.json_response({"error": error}, status=400)
        ignore_eos = body.get("ignore_eos", False)
        stream = self._engine.submit(body["messages"], body["max_tokens"], ignore_eos)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        while (piece := await stream.pieces.get()) is not None:
            await response.write(event(delta={"content": piece}))
        reason = "length" if stream.num_tokens == body["max_tokens"] else "stop"
        await response.write(event(delta={}, finish_reason=reason))
        usage = {
            "prompt_tokens": stream.num_prompt_tokens,
            "completion_tokens": stream.num_tokens,
        }
        await response.write(chunk(choices=[], usage=usage) + b"data: [DONE]\n\n")
        return response


def event(**choice: Any) -> bytes:
    return chunk(choices=[{"index": 0, "finish_reason": None} | choice])


def chunk(**fields: Any) -> bytes:
    fields = {"id": "chat", "object": "chat.completion.chunk", "model": MODEL} | fields
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="OpenAI's streamed chat for OpenVINO GenAI.")
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    engine = Engine(arguments.folder, arguments.threads)
    threading.Thread(target=engine.run, daemon=True).start()
    front, app = Front(engine), web.Application()
    app.router.add_get("/v1/models", front.models)
    app.router.add_post("/v1/chat/completions", front.chat)
    web.run_app(app, host="127.0.0.1", port=arguments.port)


if __name__ == "__main__":
    main()

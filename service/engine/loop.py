"""The thin loop around the engine core, in the engine process: messages in, a step, a report out.

Lives as long as stdin stays open, so that it never outlives the API process, however that ends.
Knows no torch: what loads the model is given.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import msgspec
import zmq

from model.batch import Runner
from model.errors import ModelError
from service.engine.engine import Engine
from service.engine.messages import (
    Abort,
    EngineSpec,
    Failed,
    FromEngine,
    Loading,
    Ready,
    Request,
    StepReport,
    ToEngine,
)

HEARTBEAT_SECONDS = 1.0

Progress = Callable[[str, str, float], None]
Load = Callable[[EngineSpec, Progress], Runner]


class Channel:
    """The engine's end of the two ipc sockets: messages in, reports out."""

    def __init__(self, spec: EngineSpec) -> None:
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.PULL)
        self._requests.set_hwm(0)
        self._requests.bind(spec.requests_address)
        self._reports = self._context.socket(zmq.PUSH)
        self._reports.set_hwm(0)  # a busy API process must never block a step
        self._reports.connect(spec.reports_address)
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._encoder = msgspec.msgpack.Encoder()

    def wait(self, *, seconds: float) -> None:
        """Until there is a message, or this long."""
        self._requests.poll(round(seconds * 1000))

    def receive(self) -> Iterator[ToEngine]:
        """All messages that have come."""
        while self._requests.poll(0):
            yield self._decoder.decode(self._requests.recv())

    def send(self, message: FromEngine) -> None:
        self._reports.send(self._encoder.encode(message))

    def close(self) -> None:
        """Return once all that was sent is delivered."""
        self._context.destroy(linger=1000)


def run(spec: EngineSpec, load: Load) -> None:
    """Load the model and serve for ever; a user's mistake is reported, not raised."""
    channel = Channel(spec)
    try:
        runner = load(spec, lambda *progress: channel.send(make_loading(*progress)))
        config = spec.config
        engine = Engine(
            runner,
            max_batch_tokens=config.max_batch_tokens,
            max_sequences=config.max_sequences,
            speculative=config.speculative == "prompt-lookup",
            overlap=not config.no_overlap,
        )
        channel.send(Ready(engine.info))
        serve(engine, channel)
    except ModelError as error:
        channel.send(Failed(str(error)))
    finally:
        channel.close()


def make_loading(phase: str, detail: str, fraction: float) -> Loading:
    return Loading(phase=phase, detail=detail, fraction=fraction)


def serve(engine: Engine, channel: Channel) -> NoReturn:
    """Take in messages, step, report; an idle engine reports once a second."""
    while True:
        if not engine.has_work:
            engine.rest()
            channel.wait(seconds=HEARTBEAT_SECONDS)
            engine.stopwatch.restart()
        for message in channel.receive():
            take(message, engine)
        engine.stopwatch.lap("intake")
        events = engine.step()
        channel.send(StepReport(events, engine.stats, engine.record))
        engine.stopwatch.lap("report")


def take(message: ToEngine, engine: Engine) -> None:
    match message:
        case Request():
            engine.add(message)
        case Abort():
            engine.abort(message.request_id)
        case _:
            engine.learn(message)


def exit_with_parent() -> None:
    """The API process never writes more than the spec; the end of stdin means that it is gone."""
    os.read(sys.stdin.fileno(), 1)  # a buffered read would hold a lock that a normal exit wants
    os._exit(1)


def read_spec() -> EngineSpec:
    """A line of JSON on stdin; its end will be that of this process."""
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineSpec)
    threading.Thread(target=exit_with_parent, daemon=True).start()
    return spec


def main(load: Load) -> None:
    run(read_spec(), load)

"""One life of the engine process, as the API process sees it: spawn, send, receive, close."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from service.config import EngineConfig
from service.engine.messages import EngineSpec, FromEngine, ToEngine

COMMAND = (sys.executable, "-P", "-m", "service.engine.process")
GRACE_SECONDS = 2.0
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}
"""Threads that wait for one another sleep. Spinning, they keep each other, the API process and
whoever else shares the cores from running: a step then takes up to ten times as long."""


class EngineDiedError(RuntimeError):
    """The engine process could not be started, has exited, or has been silent for too long."""


@contextmanager
def open_sockets(spec: EngineSpec) -> Iterator[tuple[zmq.Socket[bytes], zmq.asyncio.Socket]]:
    """The API process's ends: to send requests, which never waits, and to receive reports."""
    context = zmq.asyncio.Context()
    requests, reports = zmq.Context(context).socket(zmq.PUSH), context.socket(zmq.PULL)
    try:
        for socket in (requests, reports):
            socket.set_hwm(0)
        requests.connect(spec.requests_address)  # so that it queues until the other end binds
        reports.bind(spec.reports_address)
        yield requests, reports
    finally:
        requests.close(linger=0)
        context.destroy(linger=0)


class EngineChild:
    def __init__(
        self,
        process: asyncio.subprocess.Process,
        requests: zmq.Socket[bytes],
        reports: zmq.asyncio.Socket,
    ) -> None:
        self._process = process
        self._exited = asyncio.ensure_future(process.wait())
        self._requests = requests
        self._reports = reports
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """Queue a message. It is lost if the process has died, which `receive` will tell."""
        self._requests.send(self._encoder.encode(message), zmq.NOBLOCK)

    async def receive(self, *, patience: float | None) -> FromEngine:
        """The next report. Raises EngineDiedError after an exit, `patience` seconds of silence, or
        a report that can't be read."""
        report = asyncio.ensure_future(self._reports.recv())
        await asyncio.wait(
            {report, self._exited}, timeout=patience, return_when=asyncio.FIRST_COMPLETED
        )
        if report.done():
            try:
                return self._decoder.decode(report.result())
            except msgspec.MsgspecError as error:
                raise EngineDiedError(f"it sent a report that can't be read: {error}") from error
        report.cancel()
        if self._exited.done():
            raise EngineDiedError(describe_exit(self._exited.result()))
        raise EngineDiedError(f"it was silent for {patience:g} s")

    async def close(self) -> None:
        """See the process off, by force if need be."""
        assert self._process.stdin is not None
        self._process.stdin.close()  # tells the process that it is to end
        try:
            await asyncio.wait({self._exited}, timeout=GRACE_SECONDS)
        finally:
            if not self._exited.done():
                self._process.kill()
            await self._exited


@asynccontextmanager
async def spawn(
    model_path: Path, config: EngineConfig, *, command: Sequence[str] = COMMAND
) -> AsyncIterator[EngineChild]:
    """An engine process that ends with the `async with`, however that is left."""
    with tempfile.TemporaryDirectory(prefix="octavo-") as folder:  # only this user may enter it
        spec = EngineSpec(
            model_path=str(model_path),
            config=config,
            requests_address=f"ipc://{folder}/requests",
            reports_address=f"ipc://{folder}/reports",
        )
        with open_sockets(spec) as sockets:
            child = EngineChild(await _start(spec, command), *sockets)
            try:
                yield child
            finally:
                await child.close()


async def _start(spec: EngineSpec, command: Sequence[str]) -> asyncio.subprocess.Process:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            env=ENVIRONMENT | os.environ,
            start_new_session=True,  # Ctrl-C in a terminal is for the parent alone
        )
    except OSError as error:
        raise EngineDiedError(f"it could not be started: {error}") from error
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(spec) + b"\n")
    return process


def describe_exit(code: int) -> str:
    """Put an exit status into words: -9 is most often the kernel, out of memory."""
    if code >= 0:
        return f"it ended with status {code}"
    return f"it was ended by {signal.Signals(-code).name}"

"""Rank 0 has the others compute what it computes: each batch goes to them as bytes, by msgspec.

A runner with a device of its own launches steps ahead, and so do the others'. Each batch is told
before it is launched, so all ranks launch the same steps in the same order. Rank 0 alone collects;
tokens that a step takes from the one before are on every rank's own device, since all draw the
same. Nor can the others run away: rank 0 tells of a step when it has collected all but one of those
before, and to what it has collected every rank has contributed.

Every half second it tells them that it is there. So those that wait needn't wait for ever, and
whoever has died is missed soon, wherever it ran and whatever was being computed.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from model.batch import Batch, Collect, OverlappingRunner, Runner, StepOutput
from model.wire import Wire

HEARTBEAT_SECONDS = 0.5
"""A connection to who has died fails at the second message."""
NOTHING = b""

log = logging.getLogger(__name__)


class LeadingRunner:
    """Rank 0's. Fulfils model.batch.Runner."""

    def __init__(self, runner: Runner, wire: Wire) -> None:
        self.page_size, self.num_pages = runner.page_size, runner.num_pages
        self.vocab_size, self.max_model_len = runner.vocab_size, runner.max_model_len
        self.device, self.attention = runner.device, runner.attention
        self._runner, self._wire = runner, wire
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_told)
        self._lock = threading.Lock()  # one message at a time
        threading.Thread(target=self._beat, daemon=True).start()

    def run(self, batch: Batch) -> StepOutput:
        self._tell(self._encoder.encode(batch))
        return self._runner.run(batch)

    def _tell(self, message: bytes) -> None:
        with self._lock:
            self._wire.tell(message)

    def _beat(self) -> NoReturn:
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            try:
                self._tell(NOTHING)
            except OSError as error:
                log.critical("a rank is gone: %s", error)
                os._exit(1)  # as a step that failed would end this process


class OverlappingLeader(LeadingRunner):
    """Fulfils model.batch.OverlappingRunner."""

    def __init__(self, runner: OverlappingRunner, wire: Wire) -> None:
        super().__init__(runner, wire)
        self._launch = runner.launch

    def launch(self, batch: Batch) -> Collect:
        self._tell(self._encoder.encode(batch))
        return self._launch(batch)


def lead(runner: Runner, wire: Wire) -> LeadingRunner:
    if isinstance(runner, OverlappingRunner):
        return OverlappingLeader(runner, wire)
    return LeadingRunner(runner, wire)


def _told(value: Any) -> Any:
    """Any sequence of ids as a list; and what a row may draw, once that is found."""
    return value() if callable(value) else list(value)


def _heard_of(_: type, allowed: bytes) -> Callable[[], bytes]:
    return lambda: allowed


def follow(runner: Runner, wire: Wire) -> None:
    """Compute what rank 0 does, until that has ended."""
    decoder = msgspec.msgpack.Decoder(Batch, dec_hook=_heard_of)
    compute = runner.launch if isinstance(runner, OverlappingRunner) else runner.run
    while (message := _heard(wire)) is not None:
        if message != NOTHING:
            compute(decoder.decode(message))


def _heard(wire: Wire) -> bytes | None:
    try:
        return wire.hear()
    except OSError as error:
        log.info("rank 0 is gone: %s", error)
        return None

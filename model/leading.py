"""Rank 0 has the other ranks run what it runs: each batch goes to them as bytes, by msgspec.

While there is nothing to run it tells them so once a second. So those that wait needn't wait for
ever, and whoever has died is missed soon, wherever it ran.
"""

import logging
import os
import threading
import time
from typing import NoReturn

import msgspec

from model.batch import Batch, Runner, StepOutput
from model.parallel import Ranks

HEARTBEAT_SECONDS = 1.0
NOTHING = b""

log = logging.getLogger(__name__)


class LeadingRunner:
    """Rank 0's. Fulfils model.batch.Runner."""

    def __init__(self, runner: Runner, ranks: Ranks) -> None:
        self.page_size, self.num_pages = runner.page_size, runner.num_pages
        self.vocab_size, self.max_model_len = runner.vocab_size, runner.max_model_len
        self.device, self.attention = runner.device, runner.attention
        self._runner, self._ranks = runner, ranks
        self._encoder = msgspec.msgpack.Encoder(enc_hook=list)  # of any sequence of ids
        self._lock = threading.Lock()  # one exchange at a time
        threading.Thread(target=self._beat, daemon=True).start()

    def run(self, batch: Batch) -> StepOutput:
        with self._lock:
            self._ranks.tell(self._encoder.encode(batch))
            return self._runner.run(batch)

    def _beat(self) -> NoReturn:
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            with self._lock:
                try:
                    self._ranks.tell(NOTHING)
                except RuntimeError as error:
                    log.critical("a rank is gone: %s", error)
                    os._exit(1)  # as a step that failed would end this process


def follow(runner: Runner, ranks: Ranks) -> None:
    """Run what rank 0 runs, until that has ended."""
    decoder = msgspec.msgpack.Decoder(Batch)
    while (message := _heard(ranks)) is not None:
        if message != NOTHING:
            runner.run(decoder.decode(message))


def _heard(ranks: Ranks) -> bytes | None:
    try:
        return ranks.hear()
    except RuntimeError as error:
        log.info("rank 0 is gone: %s", error)
        return None

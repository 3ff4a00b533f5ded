"""What the server says of itself while it works: /metrics, scraped in the background.

Reads octavo's names or vLLM's. A server that has neither is measured all the same.
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException

import msgspec

from loadtests import server
from loadtests.stream import Target

SCRAPE_SECONDS = 0.5
NAMES = {
    "running": ("octavo_requests_running", "vllm:num_requests_running"),
    "waiting": ("octavo_requests_waiting", "vllm:num_requests_waiting"),
    "kv_cache_usage": ("octavo_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"),
}


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    """Since the scraping began."""
    running: float
    waiting: float
    kv_cache_usage: float


def parse(text: str, seconds: float) -> Sample | None:
    """None: it isn't a server that we know how to read."""
    values = {field: _value(text, names) for field, names in NAMES.items()}
    known = {field: value for field, value in values.items() if value is not None}
    return Sample(seconds=seconds, **known) if len(known) == len(NAMES) else None


def _value(text: str, names: tuple[str, ...]) -> float | None:
    """Of the first series that has one of the names, whatever its labels."""
    pattern = rf"^(?:{'|'.join(names)})(?:\{{.*\}})? (\S+)"
    found = re.search(pattern, text, re.MULTILINE)
    return float(found[1]) if found else None


@contextmanager
def watching(target: Target) -> Iterator[list[Sample]]:
    """Samples are appended until the end of the block."""
    samples: list[Sample] = []
    over = threading.Event()
    thread = threading.Thread(target=_scrape, args=(target, samples, over), daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _scrape(target: Target, samples: list[Sample], over: threading.Event) -> None:
    start = time.perf_counter()
    while not over.wait(SCRAPE_SECONDS):
        try:
            status, body = server.fetch(target, "/metrics")
        except (OSError, HTTPException):
            continue  # the requests themselves will tell that the server is gone
        sample = parse(body.decode(errors="replace"), time.perf_counter() - start)
        if status != 200 or sample is None:
            return
        samples.append(sample)

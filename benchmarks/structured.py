"""What following a schema costs: streams that do against streams that don't.

    .venv/bin/python -m benchmarks.structured [MODEL] [--streams 32] [--runs 3]

Starts `octavo serve`, and in each run takes the throughput of as many streams at once, free ones
and constrained ones in turn, of the same number of tokens each. Prints both and their ratio.
"""

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from service import cli, hub
from tests.served import SECONDS, serve

TOKENS = 64
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "story": {"type": "string", "minLength": 2000},
    },
    "required": ["name", "age", "story"],
    "additionalProperties": False,
}
"""Nobody gets to its end in so few tokens."""


def main() -> None:
    arguments = parse_arguments()
    with serve(hub.resolve(arguments.model)) as url:
        measure(url, 2, constrained=True)  # what is only done once
        ratios = [show(url, arguments.streams) for _ in range(arguments.runs)]
    print(f"median ratio {statistics.median(ratios):.3f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Throughput under a schema and without one.")
    parser.add_argument("model", nargs="?", default=cli.DEFAULT_MODEL)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    return parser.parse_args()


def show(url: str, num_streams: int) -> float:
    free = measure(url, num_streams, constrained=False)
    constrained = measure(url, num_streams, constrained=True)
    ratio = constrained / free
    print(
        f"free {free:.1f} tok/s, constrained {constrained:.1f} tok/s, ratio {ratio:.3f}", flush=True
    )
    return ratio


def measure(url: str, num_streams: int, *, constrained: bool) -> float:
    """Tokens per second of all streams together."""
    bodies = [body(seed, constrained=constrained) for seed in range(num_streams)]
    limits = httpx.Limits(max_connections=None)
    started = time.monotonic()
    with (
        httpx.Client(base_url=url, timeout=SECONDS, limits=limits) as client,
        ThreadPoolExecutor(num_streams) as pool,
    ):
        num_tokens = sum(pool.map(lambda each: stream(client, each), bodies))
    return num_tokens / (time.monotonic() - started)


def body(seed: int, *, constrained: bool) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "prompt": f"Person {seed}, in JSON:\n",
        "max_tokens": TOKENS,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    form = {"structured_outputs": {"json": PERSON}} if constrained else {"ignore_eos": True}
    return asked | form


def stream(client: httpx.Client, asked: dict[str, Any]) -> int:
    with client.stream("POST", "/v1/completions", json=asked) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    last = json.loads(lines[-2].removeprefix("data: "))
    assert last["usage"]["completion_tokens"] == TOKENS
    return TOKENS


if __name__ == "__main__":
    main()

"""What a long prompt costs the streams beside it, and what they cost the prompt.

    .venv/bin/python -m benchmarks.long_prompt [MODEL] [--base-url URL] [--streams 1,4,16]

Lets some streams decode, and takes the median time between their tokens. Then a long prompt comes:
prints the time between the streams' tokens until its first one, and how long that took. Fails if
the 99th percentile is MOST_RATIO times the undisturbed median, or more.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time

from benchmarks.streams import Answer, parser, quantile, server, stream

MOST_RATIO = 4.0
PATH = "/v1/completions"
TOKEN_IDS = range(1000, 30_000)
STREAM_TOKENS = 3000
PACE_TOKENS = 24
"""After so many of each stream they go at their pace."""


def main() -> None:
    arguments = parse_arguments()
    print("streams  alone p50 ms  p99  |  beside p50   p99    max   ratio  |  first token s")
    with server(arguments) as url:
        ratios = [
            asyncio.run(measure(url, int(num), arguments)) for num in arguments.streams.split(",")
        ]
    sys.exit(max(ratios) >= MOST_RATIO)


def parse_arguments() -> argparse.Namespace:
    made = parser("Streams beside a long prompt.")
    made.add_argument("--streams", default="1,4,16", help="how many, once for each")
    made.add_argument("--prompt-tokens", type=int, default=4000)
    made.add_argument("--seconds", type=float, default=4.0, help="of decoding undisturbed")
    return made.parse_args()


async def measure(url: str, num_streams: int, arguments: argparse.Namespace) -> float:
    decoding = [Answer() for _ in range(num_streams)]
    tasks = [
        asyncio.create_task(stream(url, PATH, body(32, STREAM_TOKENS), one)) for one in decoding
    ]
    while any(len(one.times) < PACE_TOKENS for one in decoding):  # noqa: ASYNC110 - as they come
        await asyncio.sleep(0.01)
    started = time.monotonic()
    await asyncio.sleep(arguments.seconds)
    long = Answer()
    await stream(url, PATH, body(arguments.prompt_tokens, 1), long)
    assert not any(task.done() for task in tasks), "a stream ended before the prompt's first token"
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    alone = [gap for one in decoding for gap in one.gaps(started, long.sent)]
    beside = [gap for one in decoding for gap in one.gaps(long.sent, long.times[0])]
    return show(num_streams, alone, beside, long.first_token_seconds)


def body(num_prompt_tokens: int, max_tokens: int) -> dict[str, object]:
    """The prompt as random ids, which no cache has and no tokenizer takes time for."""
    prompt = random.choices(TOKEN_IDS, k=num_prompt_tokens)
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


def show(num: int, alone: list[float], beside: list[float], first_token: float) -> float:
    step = statistics.median(alone)
    ratio = quantile(beside, 0.99) / step
    print(
        f"{num:7}  {ms(step)}  {ms(quantile(alone, 0.99))}  | "
        f"{ms(statistics.median(beside))} {ms(quantile(beside, 0.99))} {ms(max(beside))}  "
        f"{ratio:5.2f}  | {first_token:7.2f}",
        flush=True,
    )
    return ratio


def ms(seconds: float) -> str:
    return f"{1000 * seconds:7.1f}"


if __name__ == "__main__":
    main()

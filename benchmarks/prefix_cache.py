"""What the prefix cache saves: the first token of a prompt that was sent before.

    .venv/bin/python -m benchmarks.prefix_cache [MODEL] [--base-url URL]

Sends chats with the same long system prompt, fresh in each round, and different questions: one, a
second one, then some at once. Then a prompt that nobody sent yet, some times at once, of which one
computes it and the others wait. Fails if the second's first token isn't LEAST_RATIO times as fast
as the first's, in the median of the rounds.
"""

import argparse
import asyncio
import statistics
import sys

from benchmarks.streams import Answer, answers, parser, server, words

LEAST_RATIO = 5.0
PATH = "/v1/chat/completions"


def main() -> None:
    arguments = parse_arguments()
    print("prompt      first token ms: first  second  ratio  |  at once: cached ones  fresh ones")
    with server(arguments) as url:
        ratios = [asyncio.run(measure(url, arguments)) for _ in range(arguments.rounds)]
    ratio = statistics.median(ratios)
    print(f"median ratio {ratio:.1f}")
    sys.exit(ratio < LEAST_RATIO)


def parse_arguments() -> argparse.Namespace:
    made = parser("First tokens with and without a cached prefix.")
    made.add_argument("--prompt-words", type=int, default=850)
    made.add_argument("--at-once", type=int, default=8)
    made.add_argument("--rounds", type=int, default=3)
    return made.parse_args()


async def measure(url: str, arguments: argparse.Namespace) -> float:
    system, fresh = words(arguments.prompt_words), words(arguments.prompt_words)
    (first,) = await ask(url, system, 1)
    (second,) = await ask(url, system, 1)
    cached = await ask(url, system, arguments.at_once)
    shared = await ask(url, fresh, arguments.at_once)
    ratio = first.first_token_seconds / second.first_token_seconds
    print(
        f"{tokens(first)}, {tokens(second)}: {ms([first])} {ms([second])}  {ratio:5.1f}  | "
        f"{ms(cached)} {ms(shared)} ({tokens(shared[-1])})",
        flush=True,
    )
    return ratio


async def ask(url: str, system: str, num: int) -> list[Answer]:
    return await answers(url, PATH, [body(system) for _ in range(num)])


def body(system: str) -> dict[str, object]:
    return {
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": words(8)},
        ],
        "max_tokens": 4,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }


def tokens(answer: Answer) -> str:
    usage = answer.usage
    return f"{usage['prompt_tokens_details']['cached_tokens']} of {usage['prompt_tokens']} cached"


def ms(found: list[Answer]) -> str:
    return f"{1000 * statistics.median(answer.first_token_seconds for answer in found):8.1f}"


if __name__ == "__main__":
    main()

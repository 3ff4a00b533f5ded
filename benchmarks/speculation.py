"""What guessing by prompt lookup gains where an answer copies its prompt, and costs elsewhere.

    .venv/bin/python -m benchmarks.speculation [MODEL] [--tokens 128] [--runs 5] [--threads 2]

One stream at a time, greedy: to copy a text with small changes, and to go on freely. Both with and
without guesses, by turns, in the engine's process without HTTP: medians of tokens a second, their
ratio, and how many guesses came true. Fails if the tokens differ.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from model.batch import SamplingParams
from model.host import usable_cores
from model.runner import load_runner
from model.torch_runner import TorchRunner
from service import hub
from service.cli import DEFAULT_MODEL
from service.engine.engine import Engine
from service.engine.messages import Request
from service.text.model import TextModel

PASSAGE = (
    "The harbour master wrote down every ship that came in: the Marigold from Bergen with dried "
    "fish, the Patience from Porto with wine, the Two Brothers from Riga with timber and pitch. He "
    "noted the hour, the wind, the name of the captain and the number of the crew, and what was "
    "owed for the berth. In the evening he read the list aloud to the clerk, who copied it into "
    "the great book in a fair hand."
)
TASKS = {
    "copy": f"Repeat this text word for word, but begin with the title 'Ships':\n\n{PASSAGE}",
    "free": "Tell me a story about a lighthouse keeper who finds a letter in a bottle.",
}


class Run(NamedTuple):
    token_ids: list[int]
    seconds: float
    num_guessed: int
    num_true: int


def main() -> None:
    arguments = parse_arguments()
    path = Path(hub.resolve(arguments.model))
    text = TextModel.load(path)
    runner = load_runner(
        path,
        max_batch_tokens=512,
        max_sequences=64,
        max_model_len=0,
        kv_cache_memory=0,
        threads=arguments.threads,
        progress=lambda *_: None,
    )
    print("task   plain tok/s   guessing tok/s   ratio   guesses that came true")
    same = True
    for name, task in TASKS.items():
        prompt = text.chat_template.render([{"role": "user", "content": task}])
        prompt_ids = text.tokenizer.encode(prompt)
        pairs = [
            [run(runner, prompt_ids, arguments.tokens, speculative=way) for way in (False, True)]
            for _ in range(arguments.runs)
        ]
        same &= all(plain.token_ids == guessing.token_ids for plain, guessing in pairs)
        show(name, *zip(*pairs, strict=True))
    sys.exit(not same)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speculation by prompt lookup.")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores())
    return parser.parse_args()


def run(runner: TorchRunner, prompt_ids: list[int], max_tokens: int, *, speculative: bool) -> Run:
    """The time is that after the first token."""
    engine = Engine(runner, max_batch_tokens=512, max_sequences=64, speculative=speculative)
    engine.add(
        Request(
            id="only",
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            sampling=SamplingParams(temperature=0),
            stop_token_ids=frozenset(),
        )
    )
    token_ids = [token for event in engine.step() for token in event.token_ids]
    num_guessed = num_true = 0
    started = time.perf_counter()
    while engine.has_work:
        token_ids += [token for event in engine.step() for token in event.token_ids]
        assert engine.record is not None
        num_guessed += engine.record.num_guessed_tokens
        num_true += engine.record.num_true_guesses
    return Run(token_ids, time.perf_counter() - started, num_guessed, num_true)


def show(name: str, plain: Sequence[Run], guessing: Sequence[Run]) -> None:
    rates = [
        statistics.median((len(run.token_ids) - 1) / run.seconds for run in runs)
        for runs in (plain, guessing)
    ]
    guessed = f"{guessing[0].num_true} of {guessing[0].num_guessed}"
    print(f"{name:6} {rates[0]:11.1f} {rates[1]:16.1f} {rates[1] / rates[0]:7.2f}   {guessed}")


if __name__ == "__main__":
    main()

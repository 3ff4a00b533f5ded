"""Requests from scenarios: real text, every prompt different, the same again for the same seed.

The text is "Alice's Adventures in Wonderland" (Lewis Carroll, 1865; public domain). A prompt begins
with a number that no other of the run has, so that no cache of prefixes has seen it, unless the
scenario shares its beginning on purpose. Knows OpenAI's bodies, not how they are sent.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from loadtests.scenarios import Mix, Scenario

TEXT = Path(__file__).parent / "texts" / "alice.txt"
CHARACTERS_PER_TOKEN = 4.0
"""Of this text and tokenizers of today, roughly; usage says what it really was."""
INSTRUCTIONS = (
    "What happens here?",
    "Tell this again in your own words.",
    "Who speaks, and to whom?",
    "Go on with this story.",
    "What would you ask the author?",
)
SYSTEM = "You answer questions about a book. Its beginning is: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request, and what its answer must be like."""

    scenario: str
    path: str
    body: dict[str, Any]
    max_tokens: int
    is_exact: bool
    """Whether the answer has max_tokens tokens, not fewer."""
    is_json: bool


class Text:
    """Passages of any length, from the beginning of any sentence."""

    def __init__(self, text: str) -> None:
        self._text = re.sub(r"\s+", " ", text).strip()
        ends = re.finditer(r"[.!?]['\"]? (?=[A-Z`'\"])", self._text)
        self._starts = [0, *(end.end() for end in ends)]

    def passage(self, rng: random.Random, num_tokens: int) -> str:
        return self.cut(rng.choice(self._starts), num_tokens)

    def cut(self, start: int, num_tokens: int) -> str:
        length = max(1, round(num_tokens * CHARACTERS_PER_TOKEN))
        repeated = self._text[start:] + " "
        while len(repeated) < length:
            repeated += self._text + " "
        return repeated[:length].rstrip()


class Workload:
    """All requests of a run. The i-th is the same whenever it is sent and whoever sends it."""

    def __init__(self, mix: Mix, text: Text, *, model: str, seed: str, temperature: float) -> None:
        self._mix = mix
        self._text = text
        self._seed = seed
        self._fixed = {
            "model": model,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def __iter__(self) -> Iterator[Work]:
        return (self.work(index) for index in count())

    def work(self, index: int) -> Work:
        rng = random.Random(f"{self._seed}/{index}")
        (scenario,) = rng.choices(self._mix.scenarios, self._mix.weights)
        prompt = self._prompt(scenario, rng, index)
        max_tokens = scenario.output_tokens.draw(rng)
        return Work(
            scenario=scenario.name,
            path="/v1/chat/completions" if scenario.api == "chat" else "/v1/completions",
            body=self._fixed | self._asked(scenario, prompt) | _bounds(scenario, max_tokens),
            max_tokens=max_tokens,
            is_exact=scenario.ignore_eos,
            is_json=scenario.json_schema is not None,
        )

    def _prompt(self, scenario: Scenario, rng: random.Random, index: int) -> str:
        """The number comes first: caches of prefixes compare from the beginning."""
        head = f"{self._seed}.{index}: "
        if scenario.api == "chat":
            head += rng.choice(INSTRUCTIONS) + " "
        num_tokens = scenario.prompt_tokens.draw(rng) - round(len(head) / CHARACTERS_PER_TOKEN)
        return head + self._text.passage(rng, max(1, num_tokens))

    def _asked(self, scenario: Scenario, prompt: str) -> dict[str, Any]:
        shared = SYSTEM + self._text.cut(0, scenario.shared_tokens)
        if scenario.api == "completions":
            return {"prompt": f"{shared} {prompt}" if scenario.shared_tokens else prompt}
        system = [{"role": "system", "content": shared}] if scenario.shared_tokens else []
        return {"messages": [*system, {"role": "user", "content": prompt}]}


def _bounds(scenario: Scenario, max_tokens: int) -> dict[str, Any]:
    bounds: dict[str, Any] = {"max_tokens": max_tokens}
    if scenario.ignore_eos:
        bounds["ignore_eos"] = True
    if scenario.json_schema is not None:
        schema = {"name": "answer", "strict": True, "schema": scenario.json_schema}
        bounds["response_format"] = {"type": "json_schema", "json_schema": schema}
    return bounds

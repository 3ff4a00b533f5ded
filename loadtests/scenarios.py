"""Scenarios as data: what users ask, read from scenarios.toml. Knows no server and no clock."""

import math
import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

FILE = Path(__file__).with_name("scenarios.toml")


class Lengths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log-normal, in tokens: skewed to the right, as the lengths of real prompts are."""

    median: int
    spread: float = 0.0
    most: int

    def draw(self, rng: random.Random) -> int:
        drawn = round(self.median * math.exp(self.spread * rng.gauss()))
        return min(self.most, max(1, drawn))


def fixed(num_tokens: int) -> Lengths:
    return Lengths(median=num_tokens, most=num_tokens)


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    about: str
    api: Literal["chat", "completions"]
    prompt_tokens: Lengths
    output_tokens: Lengths
    shared_tokens: int = 0
    ignore_eos: bool
    json_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Mix:
    """One scenario, or several with the weights by which requests are theirs."""

    name: str
    scenarios: tuple[Scenario, ...]
    weights: tuple[float, ...]

    def changed(
        self, *, prompt_tokens: int | None, output_tokens: int | None, ignore_eos: bool | None
    ) -> "Mix":
        """With other lengths for all of them, always the same; None: as they are."""
        changes: dict[str, Any] = {}
        if prompt_tokens is not None:
            changes["prompt_tokens"] = fixed(prompt_tokens)
        if output_tokens is not None:
            changes["output_tokens"] = fixed(output_tokens)
        if ignore_eos is not None:
            changes["ignore_eos"] = ignore_eos
        return replace(
            self,
            scenarios=tuple(msgspec.structs.replace(each, **changes) for each in self.scenarios),
        )


def load(file: Path = FILE) -> dict[str, Mix]:
    """By name, in the file's order."""
    raw = tomllib.loads(file.read_text())
    single = {name: _scenario(name, entry) for name, entry in raw.items() if "mix" not in entry}
    mixes = {name: Mix(name, (scenario,), (1.0,)) for name, scenario in single.items()}
    for name, weights in ((name, entry["mix"]) for name, entry in raw.items() if "mix" in entry):
        mixes[name] = Mix(name, tuple(single[part] for part in weights), tuple(weights.values()))
    return mixes


def _scenario(name: str, entry: Mapping[str, Any]) -> Scenario:
    return msgspec.convert({"name": name, **entry}, Scenario)

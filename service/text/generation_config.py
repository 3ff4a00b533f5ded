"""How a model's maker recommends to sample from it. Knows the files and their keys.

generation_config.json     in a Hugging Face folder
general.sampling.*         in a GGUF file's metadata

Its ends of text are read with the tokenizer, since they hold whatever else is recommended.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.errors import ModelError
from model.weights.gguf import read_header

FILE = "generation_config.json"
RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-6, 1.0),
    "top_k": (-1, 1 << 31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 1e6),
}
"""Within those of requests, by the names that requests and generation_config.json have for them."""
GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def read_defaults(path: Path) -> dict[str, float]:
    """What is recommended, if anything is. Raises ModelError for what no request could ask."""
    if path.is_dir():
        values = {name: _read_json(path / FILE).get(name) for name in RANGES}
        return _checked(values, {name: f"{FILE}'s {name}" for name in RANGES})
    metadata = read_header(path).metadata
    return _checked({name: metadata.get(key) for name, key in GGUF_KEYS.items()}, GGUF_KEYS)


def _read_json(path: Path) -> Mapping[str, Any]:
    value = json.loads(path.read_bytes()) if path.is_file() else {}
    return value if isinstance(value, dict) else {}


def _checked(values: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, float]:
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        low, high = RANGES[name]
        number = int if name == "top_k" else int | float
        if not isinstance(value, number) or isinstance(value, bool) or not low <= value <= high:
            raise ModelError(
                f"{sources[name]} is {value!r}: take {low} to {high}, "
                "or start with --generation-config none"
            )
    return given

"""Builds the tokenizer of a Hugging Face model folder. Knows the files and their keys.

tokenizer.json             everything that encoding and decoding need
tokenizer_config.json      bos_token, eos_token, add_bos_token, chat_template
special_tokens_map.json    bos_token, eos_token, in folders whose tokenizer_config has none
chat_template.jinja        the chat template of newer folders; wins over tokenizer_config's
generation_config.json     eos_token_id, one or several
config.json                the same; either file may name one that the other doesn't
"""

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers

from model.errors import ModelError
from service.text.definition import TokenizerDefinition


def read_hf_tokenizer(folder: Path) -> TokenizerDefinition:
    """Raises ModelError if the folder has no tokenizer that octavo can read."""
    backend = _backend(folder / "tokenizer.json")
    config = _json(folder / "special_tokens_map.json") | _json(folder / "tokenizer_config.json")
    bos_id = _token_id(backend, config, "bos_token")
    eos_id = _token_id(backend, config, "eos_token")
    return TokenizerDefinition(
        backend=backend,
        bos_id=bos_id,
        eos_id=eos_id,
        turn_end_ids=_turn_end_ids(folder),
        chat_template=_chat_template(folder, config),
    )


def _backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ModelError(
            f"{path} is missing: octavo reads no other tokenizer file. "
            "Save it with transformers' AutoTokenizer, or take the model's GGUF file"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelError(f"{path} isn't a tokenizer: {error}. Download it again") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelError(f"{path} isn't JSON: {error}. Download it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} isn't a JSON object: download it again")
    return value


def _token_id(backend: tokenizers.Tokenizer, config: Mapping[str, Any], key: str) -> int | None:
    token = config.get(key)
    text = token.get("content") if isinstance(token, dict) else token
    return backend.token_to_id(text) if isinstance(text, str) else None


def _turn_end_ids(folder: Path) -> frozenset[int]:
    configs = (_json(folder / name) for name in ("generation_config.json", "config.json"))
    named = [config.get("eos_token_id") for config in configs]
    listed = chain.from_iterable(ids if isinstance(ids, list) else [ids] for ids in named)
    return frozenset(token_id for token_id in listed if isinstance(token_id, int))


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8", errors="replace")
    template = config.get("chat_template")
    if isinstance(template, list):  # several: [{"name": …, "template": …}, …]
        defaults = [entry["template"] for entry in template if entry["name"] == "default"]
        return defaults[0] if defaults else None
    return template

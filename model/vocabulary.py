"""How many tokens a model's tokenizer has: often fewer than the model has rows for.

Embeddings are padded to sizes that suit the hardware; an id beyond the last token stands for
nothing, and must never be drawn. Knows no text.
"""

from pathlib import Path
from typing import Any

import msgspec

from model.weights.gguf import read_header

UNUSED = 5
"""The type of GGUF's tokens that pad a vocabulary."""


class _Added(msgspec.Struct):
    id: int


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any]
    """Ids by their tokens, or tokens with their scores."""


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []


def num_tokens(path: Path) -> int | None:
    """One more than the greatest id; None if nothing there says it in a way that we know."""
    return _in_gguf(path) if path.suffix == ".gguf" else _in_folder(path / "tokenizer.json")


def _in_gguf(path: Path) -> int | None:
    types = read_header(path).metadata.get("tokenizer.ggml.token_type") or ()
    return max((i + 1 for i, type_ in enumerate(types) if type_ != UNUSED), default=None)


def _in_folder(path: Path) -> int | None:
    if not path.is_file():
        return None
    try:
        tokenizer = msgspec.json.decode(path.read_bytes(), type=_Tokenizer)
    except msgspec.MsgspecError:
        return None  # whoever needs the text will say what is wrong with it
    vocab = tokenizer.model.vocab
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
    return max((*ids, *(added.id for added in tokenizer.added_tokens)), default=-1) + 1 or None

"""A tokenizer in plain Python to hold ours against, and the metadata of a small one."""

from itertools import pairwise
from typing import Any
from unicodedata import normalize

import regex  # type: ignore[import-untyped]
from tokenizers.pre_tokenizers import ByteLevel

from service.text.pre_tokenizers import DEEPSEEK_LETTERS

Metadata = dict[str, Any]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EAST_ASIAN = "[\u0800-\u9fa5\uac00-\ud7ff]+"
PATTERNS = {
    "default": [r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "llama-bpe": [LLAMA3],
    "qwen2": [LLAMA3.replace("{1,3}", "")],
    "smollm": [r"\p{N}", GPT2],
    "olmo": [GPT2],
    "dbrx": [LLAMA3],
    "stablelm2": [LLAMA3.replace("{1,3}", "")],
    "deepseek-r1-qwen": [LLAMA3.replace("{1,3}", "")],
    "command-r": [r"\p{N}", GPT2],
    "tekken": [TEKKEN],
    "gpt-4o": [O200K],
    "falcon": [r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"],
    "deepseek-llm": [
        *("[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+"),
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        *(r"\s+\Z", EAST_ASIAN, r"\p{N}+"),
    ],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, r"\p{N}"],
}
COMPOSED = {"qwen2", "stablelm2", "olmo", "command-r"}
"""Texts are brought into Unicode's form C first."""
WHOLE = {"llama-bpe", "tekken"}
"""A word that is a token stays one."""


class PlainBpe:
    """Byte-level BPE as Sennrich et al. (2016) and Radford et al. (2019) describe it."""

    def __init__(self, metadata: Metadata, pre: str) -> None:
        tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        merges = metadata["tokenizer.ggml.merges"]
        self.pre = pre
        self.ids = {token: token_id for token_id, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.control = {token for token, kind in zip(tokens, types, strict=True) if kind == 3}
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        self.alphabet = {byte: chr(byte) for byte in printable}
        self.alphabet |= {byte: chr(256 + rank) for rank, byte in enumerate(others)}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in isolate([text], "|".join(map(regex.escape, self.control))):
            ids += [self.ids[piece]] if piece in self.control else self.words(piece)
        return ids

    def words(self, text: str) -> list[int]:
        pieces = [normalize("NFC", text) if self.pre in COMPOSED else text]
        for pattern in PATTERNS[self.pre]:
            pieces = isolate(pieces, pattern)
        return [token_id for piece in pieces for token_id in self.word(piece)]

    def word(self, piece: str) -> list[int]:
        parts = [self.alphabet[byte] for byte in piece.encode()]
        if self.pre in WHOLE and "".join(parts) in self.ids:
            return [self.ids["".join(parts)]]
        while known := [pair for pair in pairwise(parts) if pair in self.ranks]:
            parts = merged(parts, min(known, key=self.ranks.__getitem__))
        return [self.ids[part] for part in parts if part in self.ids]


def isolate(pieces: list[str], pattern: str) -> list[str]:
    """Every match and every gap between matches is a piece of its own."""
    parts = [part for piece in pieces for part in regex.split(f"({pattern})", piece)]
    return [part for part in parts if part]


def merged(parts: list[str], pair: tuple[str, str]) -> list[str]:
    result: list[str] = []
    while parts:
        size = 2 if tuple(parts[:2]) == pair else 1
        result.append("".join(parts[:size]))
        parts = parts[size:]
    return result


def small_metadata(**changes: Any) -> Metadata:
    """The alphabet, three tokens of two characters, four added ones; keys as after the last dot."""
    tokens = [*sorted(ByteLevel.alphabet()), "ab", "bc", "Ġa"]
    added = ["<bos>", "<eos>", "<eot>", "think é"]
    metadata: Metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens + added,
        "token_type": [1] * len(tokens) + [3, 3, 3, 4],
        "merges": ["a b", "b c", "Ġ a"],
        "bos_token_id": 259,
        "eos_token_id": 260,
    }
    kept = {key: value for key, value in (metadata | changes).items() if value is not None}
    return {f"tokenizer.ggml.{key}": value for key, value in kept.items()}

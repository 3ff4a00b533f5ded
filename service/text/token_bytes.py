"""The bytes that each token of a vocabulary stands for. Knows the `decoder` of tokenizer.json.

Text is then the UTF-8 reading of the tokens' bytes in a row, which can be done token by token
exactly, where decoding ever longer lists of ids and comparing the texts can't.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from model.errors import ModelError

# GPT-2's alphabet has a printable character for each byte: the printable bytes of Latin-1 stand
# for themselves, the others follow from U+0100 in order. What else Latin-1 has becomes U+FFFD.
ALPHABET = set(ByteLevel.alphabet())
UNPRINTABLE = [byte for byte in range(256) if chr(byte) not in ALPHABET]
ALPHABET_TO_LATIN1 = {
    **dict.fromkeys(UNPRINTABLE, 0xFFFD),
    **{0x100 + rank: byte for rank, byte in enumerate(UNPRINTABLE)},
}

SPACE_MARK = "\u2581"
SPACE_MARK_STEP = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
STRIP_STEP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BYTES_STEP = {"type": "ByteFallback"}
SENTENCEPIECE_STEPS = (SPACE_MARK_STEP, STRIP_STEP, BYTES_STEP, {"type": "Fuse"})
BYTE_TOKENS = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


@dataclass(frozen=True, slots=True)
class TokenBytes:
    by_id: list[bytes]
    """Empty for ids that no token has."""
    strips_first_space: bool
    """One space at the very start of a text comes from the encoding and isn't part of it."""


def read_token_bytes(backend: tokenizers.Tokenizer) -> TokenBytes:
    """Raises ModelError if the tokenizer's decoder isn't one whose tokens have bytes."""
    steps = _decoder_steps(backend)
    vocab = backend.get_vocab(with_added_tokens=True)
    by_id = [b""] * (max(vocab.values(), default=-1) + 1)
    to_bytes = _reader(steps)
    for token, token_id in vocab.items():
        by_id[token_id] = to_bytes(token)
    return TokenBytes(by_id, strips_first_space=STRIP_STEP in steps)


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _reader(steps: list[dict[str, Any]]) -> Callable[[str], bytes]:
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return _byte_level
    if SPACE_MARK_STEP in steps and all(step in SENTENCEPIECE_STEPS for step in steps):
        return _sentencepiece if BYTES_STEP in steps else _marked
    names = ", ".join(step["type"] for step in steps) or "none"
    raise ModelError(
        f"tokenizer.json's decoder is {names}: octavo reads ByteLevel, and the Replace, "
        "ByteFallback, Fuse, Strip of SentencePiece models. Take a model with one of those"
    )


def _byte_level(token: str) -> bytes:
    try:
        return token.translate(ALPHABET_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:  # an added token, written as it is
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    return BYTE_TOKENS.get(token) or _marked(token)


def _marked(token: str) -> bytes:
    return token.replace(SPACE_MARK, " ").encode()

"""Builds tokenizers that segment text as SentencePiece does, from pieces and their scores.

Both kinds of it: BPE, which joins the two neighbours that make the piece with the highest score,
and unigram, which finds the segmentation with the highest sum (arXiv:1808.06226). Knows no file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import Regex, decoders, normalizers
from tokenizers.models import BPE, Unigram

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of pieces, as SentencePiece numbers them."""
SPACE_MARK = "\u2581"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    texts: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]

    def of_type(self, *types: int) -> list[str]:
        return [text for text, kind in zip(self.texts, self.types, strict=True) if kind in types]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """What becomes of a text before it is segmented."""

    prefix: bool
    """One is put before it, so that a word is the same at the start as behind a space."""
    squeezed: bool
    """Those around it go, and of several in a row one stays."""
    charsmap: bytes = b""
    """SentencePiece's own table of what characters become."""


def bpe(pieces: Pieces, spaces: Spaces) -> tokenizers.Tokenizer:
    vocab = {text: piece_id for piece_id, text in enumerate(pieces.texts)}
    unknown = pieces.of_type(UNKNOWN)
    model = BPE(
        vocab,
        merges(pieces),
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=bool(pieces.of_type(BYTE)),
    )
    return _tokenizer(model, spaces)


def unigram(pieces: Pieces, spaces: Spaces) -> tokenizers.Tokenizer:
    scored = list(zip(pieces.texts, pieces.scores, strict=True))
    unknown = pieces.types.index(UNKNOWN) if UNKNOWN in pieces.types else None
    model = Unigram(scored, unk_id=unknown, byte_fallback=bool(pieces.of_type(BYTE)))
    return _tokenizer(model, spaces)


def merges(pieces: Pieces) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, those of the highest score first."""
    normal = {
        text: score
        for text, score, kind in zip(pieces.texts, pieces.scores, pieces.types, strict=True)
        if kind in (NORMAL, USER_DEFINED)
    }
    return [
        (text[:at], text[at:])
        for text in sorted(normal, key=lambda text: -normal[text])
        for at in range(1, len(text))
        if text[:at] in normal and text[at:] in normal
    ]


def _tokenizer(model: BPE | Unigram, spaces: Spaces) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(list(_normalizers(spaces)))
    marks = decoders.Replace(SPACE_MARK, " ")
    steps: list[decoders.Decoder] = [marks, decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(
        [*steps, decoders.Strip(" ", 1, 0)] if spaces.prefix else steps
    )
    return backend


def _normalizers(spaces: Spaces) -> Iterator[normalizers.Normalizer]:
    """In SentencePiece's order."""
    if spaces.charsmap:
        yield normalizers.Precompiled(spaces.charsmap)
    if spaces.squeezed:
        yield normalizers.Replace(Regex(r"\A +| +\z"), "")
        yield normalizers.Replace(Regex(" {2,}"), " ")
    if spaces.prefix:
        yield normalizers.Prepend(SPACE_MARK)
    yield normalizers.Replace(" ", SPACE_MARK)

"""SentencePiece tokenizers in GGUF against the algorithms in plain Python, and transformers."""

import base64
import zlib
from typing import Any

import pytest
from transformers import GemmaTokenizer, LlamaTokenizer, T5Tokenizer
from transformers.tokenization_utils_base import generate_merges

from service.text.gguf_tokenizer import read_gguf_tokenizer
from service.text.tokenizer import Tokenizer
from tests.corpus import CORPUS
from tests.fakes_sentencepiece import SPECIAL, PlainSentencePiece, small_metadata

FI_CHARSMAP = zlib.decompress(
    base64.b64decode(
        "eNoV0lWUlgUUBdBvDSxSQiQkRUW6OwUkRbpBuofuFhiURkosunNokBrSoDuV7mboktr/WWu/nJf7cE8QMwiCDTGC"
        "6KiwIDIICyLSBqEMCdWxiUVc4hCfeCTgAxKRkA9JzEckIRlJSUFyUvIxqUlF6EQaPiEdn5Kez/mML8hAJjKShcxk"
        "Iys5yE4ucpKH3OQjLwXITyEKUoTCFKMoJShOSb6kNKUow1eUoywVKM/XVOQbKlGFylSjKjWoTi1qUofa1KMuDajP"
        "tzSkMY1oShOa04yWtKA1rWhLG8JpRwfa04mOdKEz3ehKD7rTi570oTf96MsA+vMdAxnMICJCD+d7hjKMHxjBcEYx"
        "kjGM5kfGMp5xTGQCPzGJn5nMr/zC7/zGVKYwnWnMZAazmcVc5jCfeSxkAYtZxFKWsIxIVrCcVaxkDatZx1rW8wcb"
        "QxNnM5vYQhTb2MoOtvMnO/mbv9jFP+xhN/vYywH2c4iDHOEwxzjKCY5zipP8y2nO8B/nOMsFznOJi1zhMte4yg2u"
        "c4ub3OE297hLNPd5yAMe84inPOE5z3jJC/7nFW94zTvehjYWHrwH3feEfQ=="
    )
)
"""As SentencePiece makes it of a rule by which the ligature fi becomes two letters."""
PLAIN = [text for text in CORPUS if not any(token in text for token in SPECIAL)]
"""Texts in which no special token is written out."""


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    return small_metadata()


def tokenizer(metadata: dict[str, Any], **changes: Any) -> Tokenizer:
    changed = metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Tokenizer(read_gguf_tokenizer(changed))


def without_bytes(metadata: dict[str, Any]) -> dict[str, Any]:
    """A vocabulary as T5's: what has no piece is unknown."""
    types = [5 if kind == 6 else kind for kind in metadata["tokenizer.ggml.token_type"]]
    return metadata | {"tokenizer.ggml.token_type": types, "tokenizer.ggml.model": "t5"}


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("squeezed", [True, False])
def test_bpe_is_what_the_algorithm_says(
    metadata: dict[str, Any], prefix: bool, squeezed: bool
) -> None:
    changes = {"add_space_prefix": prefix, "remove_extra_whitespaces": squeezed}
    ours = tokenizer(metadata, **changes)
    plain = PlainSentencePiece(metadata | {f"tokenizer.ggml.{k}": v for k, v in changes.items()})
    for text in (text[:300] for text in PLAIN):  # the plain one takes its time
        assert ours.encode(text, add_special_tokens=False) == plain.bpe(text), text


@pytest.mark.parametrize("squeezed", [True, False])
def test_unigram_is_what_the_algorithm_says(metadata: dict[str, Any], squeezed: bool) -> None:
    changed = without_bytes(metadata)
    changed["tokenizer.ggml.remove_extra_whitespaces"] = squeezed
    ours, plain = tokenizer(changed), PlainSentencePiece(changed)
    for text in PLAIN:
        assert ours.encode(text, add_special_tokens=False) == plain.unigram(text), text


def vocabulary(metadata: dict[str, Any]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """And merges, as transformers makes them of pieces and scores."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    types = metadata["tokenizer.ggml.token_type"]
    skipped = [token for token, kind in zip(tokens, types, strict=True) if kind in (2, 3, 6)]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    scored = dict(zip(tokens, scores, strict=True))
    return vocab, generate_merges(vocab, scored, skip_tokens=skipped)


def test_bpe_with_a_prefix_is_that_of_transformers(metadata: dict[str, Any]) -> None:
    vocab, merges = vocabulary(metadata)
    theirs = LlamaTokenizer(vocab=vocab, merges=merges, legacy=True)
    ours = tokenizer(metadata)
    for text in PLAIN:
        if not text.startswith(" "):  # where theirs puts no prefix, unlike SentencePiece
            ids = ours.encode(text, add_special_tokens=False)
            assert ids == theirs.encode(text, add_special_tokens=False), text
            assert ours.decode(ids) == theirs.decode(ids)


def test_bpe_without_a_prefix_is_that_of_transformers(metadata: dict[str, Any]) -> None:
    vocab, merges = vocabulary(metadata)
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": None, "mask_token": None}
    theirs = GemmaTokenizer(vocab=vocab, merges=merges, **special)
    ours = tokenizer(metadata, add_space_prefix=False)
    for text in PLAIN:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ids) == theirs.decode(ids)


def test_unigram_is_that_of_transformers_where_spaces_are_the_only_white_space(
    metadata: dict[str, Any],
) -> None:
    changed = without_bytes(metadata)
    scored = list(
        zip(changed["tokenizer.ggml.tokens"], changed["tokenizer.ggml.scores"], strict=True)
    )
    theirs = T5Tokenizer(vocab=scored, extra_ids=0, pad_token="<unk>")
    ours = tokenizer(changed, remove_extra_whitespaces=True)
    for text in PLAIN:
        if text == " ".join(text.split()):
            ids = ours.encode(text)
            assert ids == theirs.encode(text), text


@pytest.mark.parametrize("model", ["llama", "t5"])
def test_streamed_text_is_the_whole_text(metadata: dict[str, Any], model: str) -> None:
    ours = tokenizer(metadata, model=model)
    for text in CORPUS:
        ids = ours.encode(text)
        detokenizer = ours.detokenizer()
        assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == ours.decode(ids)
        if "<" not in text and model == "llama":
            assert ours.decode(ids) == text


def test_what_holds_where_the_file_does_not_say(metadata: dict[str, Any]) -> None:
    assert tokenizer(metadata).encode("a")[0] == 0
    assert tokenizer(metadata, add_bos_token=False).encode("a")[0] != 0
    assert tokenizer(metadata, model="t5").encode("a")[-1] == 1
    assert tokenizer(metadata).eos_ids == {1, 3}
    assert tokenizer(metadata, eot_token_id=2).eos_ids == {1, 2}


def test_special_tokens_are_never_cut_and_a_prefix_follows_each(metadata: dict[str, Any]) -> None:
    ours = tokenizer(metadata)
    word = ours.encode("ab", add_special_tokens=False)
    user = metadata["tokenizer.ggml.tokens"].index("[user]")
    expected = [0, *word, 3, user, *word]
    assert ours.encode("<s>ab<|end|>[user]ab", add_special_tokens=False) == expected
    assert ours.special_ids == {0, 1, 2, 3}
    assert ours.decode(expected) == "ab[user] ab"


def test_phi_3_takes_the_spaces_behind_control_tokens_along(metadata: dict[str, Any]) -> None:
    phi, other = ({**metadata, "general.name": name} for name in ("Phi-3 mini", "Llama"))
    text = "<|end|>\nab"
    assert len(tokenizer(phi).encode(text)) < len(tokenizer(other).encode(text))
    assert tokenizer(phi).encode("<s> ab") == tokenizer(other).encode("<s> ab")


def test_a_charsmap_says_what_characters_become(metadata: dict[str, Any]) -> None:
    signed = [byte - 256 if byte > 127 else byte for byte in FI_CHARSMAP]
    for charsmap in (list(FI_CHARSMAP), signed):
        ours = tokenizer(metadata, precompiled_charsmap=charsmap)
        assert ours.encode("ﬁ") == ours.encode("fi")

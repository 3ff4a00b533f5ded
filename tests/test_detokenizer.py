"""Streamed text is whole text, for any ids; no half characters, no spaces lost or made up."""

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer as Backend

from model.weights.gguf import read_header
from service.text.detokenizer import Detokenizer
from service.text.gguf_tokenizer import read_gguf_tokenizer
from service.text.tokenizer import Tokenizer
from tests.corpus import CORPUS

BYTES = st.lists(st.binary(max_size=3), max_size=20)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_path)


@pytest.fixture(scope="module")
def backend(smollm2_path: Path) -> Backend:
    """The tokenizers library, which decodes a list of ids as a whole."""
    return read_gguf_tokenizer(read_header(smollm2_path).metadata).backend


def streamed(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*map(detokenizer.push, ids), detokenizer.flush()]


# Ids at random rarely make a character together; the lowest are single bytes and often do.
@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 49200) | st.integers(0, 300), max_size=30), skip=st.booleans())
def test_any_ids_stream_as_the_text_that_they_are_as_a_whole(
    smollm2: Tokenizer, backend: Backend, ids: list[int], skip: bool
) -> None:
    pieces = streamed(smollm2.detokenizer(skip_special_tokens=skip), ids)
    whole = backend.decode(ids, skip_special_tokens=skip)
    assert "".join(pieces) == smollm2.decode(ids, skip_special_tokens=skip) == whole


def test_texts_survive_the_way_there_and_back(smollm2: Tokenizer) -> None:
    for text in CORPUS:
        if "\x04" in text:  # SmolLM2 has no token for some control characters
            continue
        pieces = streamed(smollm2.detokenizer(skip_special_tokens=False), smollm2.encode(text))
        assert "".join(pieces) == text
        assert ("\ufffd" in "".join(pieces)) == ("\ufffd" in text)


def test_characters_come_whole_and_at_once(smollm2: Tokenizer) -> None:
    detokenizer = smollm2.detokenizer()
    ids = smollm2.encode("🇫🇷")
    assert len(ids) > 2
    flushed = streamed(detokenizer, ids)
    assert [piece for piece in flushed if piece] == ["🇫", "🇷"]
    assert flushed[-1] == ""


@settings(deadline=None)
@given(pieces=BYTES)
def test_no_more_than_one_unfinished_character_is_held_back(pieces: list[bytes]) -> None:
    detokenizer = Detokenizer(pieces)
    text = ""
    for token_id in range(len(pieces)):
        text += detokenizer.push(token_id)
        whole = b"".join(pieces[: token_id + 1]).decode("utf-8", "replace")
        assert whole.startswith(text)
        assert len(whole) <= len(text) + 2  # half a surrogate is two errors, but waits for more
    assert text + detokenizer.flush() == b"".join(pieces).decode("utf-8", "replace")


@pytest.mark.parametrize("data", [b"\xff", b"\x80", b"\xc0", b"\xe4a", b"\xe0\x80", b"\xf5"])
def test_bytes_that_nothing_can_make_a_character_are_not_held_back(data: bytes) -> None:
    assert streamed(Detokenizer([data]), [0]) == [data.decode("utf-8", "replace"), ""]


def test_an_unfinished_character_becomes_a_replacement_at_the_end() -> None:
    detokenizer = Detokenizer([b"caf", b"\xc3", b"\xa9"])
    assert streamed(detokenizer, [0, 1]) == ["caf", "", "\ufffd"]
    assert streamed(detokenizer, [0, 1, 2]) == ["caf", "", "é", ""]


def test_a_skipped_token_does_not_part_a_character() -> None:
    detokenizer = Detokenizer([b"\xc3", b"\xa9", b"<eos>"], skipped_ids={2})
    assert streamed(detokenizer, [0, 2, 1]) == ["", "", "é", ""]


def test_ids_without_a_token_have_no_text() -> None:
    assert streamed(Detokenizer([b"a", b""]), [0, 1, 2, 0]) == ["a", "", "", "a", ""]


def test_only_the_very_first_space_is_stripped() -> None:
    detokenizer = Detokenizer([b"  a", b" b", b""], strip_first_space=True)
    assert streamed(detokenizer, [2, 0, 1]) == ["", " a", " b", ""]

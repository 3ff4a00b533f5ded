"""Spellings found in text, whatever brackets are around them."""

import pytest

from service.text.spellings import NONE, Spellings

SPELLINGS = Spellings(["<|end|>", "[INST]", "<a<b>>", "magic"])


@pytest.mark.parametrize(
    "text", ['["x <|end|>"]', "<[INST]>", "< <|end|>", "[[INST]", "x<a<b>>", "a magic word"]
)
def test_what_is_there_is_found(text: str) -> None:
    assert SPELLINGS.occur_in(text)
    assert not NONE.occur_in(text)


@pytest.mark.parametrize("text", ["", "<|end", "<|End|>", "[INST", "<[258]>"])
def test_what_isnt_there_is_not(text: str) -> None:
    assert not SPELLINGS.occur_in(text)

"""Each key of a GGUF file's metadata has the effect that llama.cpp gives it, or is refused."""

from typing import Any

import pytest

from model.errors import ModelError
from service.text.gguf_tokenizer import read_gguf_tokenizer
from service.text.tokenizer import Tokenizer
from tests.fakes_text import small_metadata


def small(**changes: Any) -> Tokenizer:
    return Tokenizer(read_gguf_tokenizer(small_metadata(**changes)))


def test_special_tokens_around_a_text_are_those_that_the_metadata_asks_for() -> None:
    plain = small().encode("abc")
    assert small(add_bos_token=True).encode("abc") == [259, *plain]
    assert small(add_bos_token=True, add_eos_token=True).encode("abc") == [259, *plain, 260]
    assert small(add_bos_token=True).encode("abc", add_special_tokens=False) == plain
    assert small(add_bos_token=True, bos_token_id=None).encode("abc") == plain


def test_llama_3_begins_with_its_bos_unless_the_file_says_otherwise() -> None:
    assert small(pre="llama-bpe").encode("x")[0] == 259
    assert small(pre="llama-bpe", add_bos_token=False).encode("x") == small().encode("x")


def test_all_ids_that_end_a_turn_are_known() -> None:
    assert small(eot_token_id=261).eos_ids == {260, 261}
    assert small(eos_token_id=None).eos_ids == set()
    assert small(eos_token_id=None).eos_token == ""


def test_control_tokens_are_special_and_user_defined_ones_are_text() -> None:
    tokenizer = small()
    ids = tokenizer.encode("<eot>think éab")
    assert ids[:2] == [261, 262]
    assert tokenizer.special_ids == {259, 260, 261}
    assert tokenizer.decode(ids) == "think éab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<eot>think éab"


def test_a_file_from_before_pre_existed_gets_the_default_rules() -> None:
    assert small(pre=None).encode("ab12345") == small(pre="default").encode("ab12345")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, r"tokenizer.ggml.model is 'bert': octavo reads 'gpt2'.*'llama'"),
        ({"model": "llama"}, r"tokenizer.ggml.scores is missing or not a list of float"),
        ({"model": "t5", "scores": [0.5]}, r"scores holds 1 values for 263 tokens"),
        ({"model": None}, r"tokenizer.ggml.model is None"),
        ({"pre": "bloom"}, r"tokenizer.ggml.pre is 'bloom': octavo reads default, gpt-2"),
        ({"pre": ["smollm"]}, r"tokenizer.ggml.pre is \['smollm'\]"),
        ({"tokens": None}, r"tokenizer.ggml.tokens is missing or not a list of str"),
        ({"token_type": "1"}, r"tokenizer.ggml.token_type is missing or not a list of int"),
        ({"merges": [1]}, r"tokenizer.ggml.merges is missing or not a list of str"),
        ({"merges": ["a bb"]}, r"merges doesn't fit tokenizer.ggml.tokens"),
        ({"merges": ["ab"]}, r"merges doesn't fit tokenizer.ggml.tokens"),
        ({"bos_token_id": 263}, r"bos_token_id is 263, but the vocabulary ends at 262"),
        ({"eos_token_id": -1}, r"eos_token_id is -1"),
        ({"eot_token_id": "2"}, r"eot_token_id is '2'"),
    ],
)
def test_metadata_that_octavo_cannot_follow_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        small(**changes)

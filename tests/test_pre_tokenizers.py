"""Texts are cut as transformers' own tokenizers cut them, for every name that it knows rules of."""

from typing import Any

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import CodeGenTokenizer, CohereTokenizer, GPT2Tokenizer, GPTNeoXTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from service.text.pre_tokenizers import RULES
from tests.corpus import CORPUS

CLASSES: dict[str, Any] = {
    "gpt-2": GPT2Tokenizer,
    "phi-2": CodeGenTokenizer,
    "olmo": GPTNeoXTokenizer,
    "command-r": CohereTokenizer,
}


def pieces(pre_tokenizer: PreTokenizer, normalizer: Normalizer | None, text: str) -> list[str]:
    normalized = normalizer.normalize_str(text) if normalizer else text
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(normalized)]


@pytest.mark.parametrize("name", sorted(RULES.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys()))
def test_words_are_those_of_the_pattern(name: str) -> None:
    pattern = Regex(GGUF_PRE_TOKENIZER_SPLITS[name])
    theirs = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    ours = RULES[name].pre_tokenizer
    for text in CORPUS:
        assert pieces(ours, None, text) == pieces(theirs, None, text), text


@pytest.mark.parametrize("name", CLASSES)
def test_words_are_those_of_the_class(name: str) -> None:
    backend = CLASSES[name]().backend_tokenizer
    rules = RULES[name]
    for text in CORPUS:
        expected = pieces(backend.pre_tokenizer, backend.normalizer, text)
        assert pieces(rules.pre_tokenizer, rules.normalizer, text) == expected, text


def test_only_these_compose_characters() -> None:
    composing = {name for name, rules in RULES.items() if rules.normalizer}
    assert composing == {"qwen2", "stablelm2", "olmo", "command-r"}
    assert isinstance(RULES["qwen2"].normalizer, normalizers.NFC)

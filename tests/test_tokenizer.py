"""Token ids are those of the model's own tokenizer.

What SmolLM2's tokenizer is: byte-level BPE whose pre-tokenizer first cuts digits out one by one,
then applies GPT-2's pattern. Its GGUF file says so by `tokenizer.ggml.pre = smollm`. transformers
5.24 ignores that name and builds plain GPT-2 from the file, which gives other ids where numbers
follow two spaces, or, beyond the ASCII digits, one: GPT-2's pattern joins the last space to the
number. So the reference here is a BPE of our own in plain Python, written from the papers and each
model's patterns; transformers is held against it too, and differs in nothing else.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import regex  # type: ignore[import-untyped]
from transformers import AutoTokenizer

from model.weights.gguf import read_header
from service.text.gguf_tokenizer import read_gguf_tokenizer
from service.text.tokenizer import Tokenizer
from tests.corpus import CORPUS
from tests.fakes_text import PATTERNS, Metadata, PlainBpe


@pytest.fixture(scope="module")
def metadata(smollm2_path: Path) -> Metadata:
    return read_header(smollm2_path).metadata


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_path)


def test_ids_of_known_texts(smollm2: Tokenizer) -> None:
    assert smollm2.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert smollm2.encode("Hello world") == [19556, 905]
    assert smollm2.encode("a  12") == [81, 256, 33, 34]


@pytest.mark.parametrize("pre", PATTERNS)
def test_ids_are_those_of_plain_bpe_under_every_rule(metadata: Metadata, pre: str) -> None:
    changed = metadata | {"tokenizer.ggml.pre": pre}
    tokenizer = Tokenizer(read_gguf_tokenizer(changed))
    plain = PlainBpe(changed, pre)
    for text in CORPUS:
        assert tokenizer.encode(text, add_special_tokens=False) == plain.encode(text)


@pytest.mark.slow
def test_ids_and_texts_are_those_of_transformers(
    smollm2: Tokenizer, smollm2_path: Path, metadata: Metadata
) -> None:
    theirs = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    gpt2 = PlainBpe(metadata, "gpt-2")
    for text in CORPUS:
        ids = smollm2.encode(text)
        assert theirs.encode(text) == (gpt2.encode(text) if regex.search(r"\p{N}", text) else ids)
        for skip in (False, True):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert smollm2.decode(ids, skip_special_tokens=skip) == expected


def test_facts_of_the_default_model(smollm2: Tokenizer, metadata: Metadata) -> None:
    assert smollm2.vocab_size == 49152
    assert (smollm2.bos_id, smollm2.bos_token) == (1, "<|im_start|>")
    assert (smollm2.eos_id, smollm2.eos_token) == (2, "<|im_end|>")
    assert smollm2.eos_ids == {2}
    assert smollm2.special_ids == set(range(17))
    assert smollm2.chat_template == metadata["tokenizer.chat_template"]
    lengths = [len(smollm2.token_bytes(token_id)) for token_id in range(smollm2.vocab_size)]
    assert smollm2.max_token_bytes == max(lengths) == 81


def test_the_bytes_of_tokens_joined_are_the_bytes_of_the_text(smollm2: Tokenizer) -> None:
    encodable = [text for text in CORPUS if "\x04" not in text]  # SmolLM2 has no token for some
    for text in encodable:
        assert b"".join(map(smollm2.token_bytes, smollm2.encode(text))) == text.encode()
    assert smollm2.token_bytes(smollm2.vocab_size) == b""


def test_threads_share_a_tokenizer(smollm2: Tokenizer) -> None:
    alone = list(map(smollm2.encode, CORPUS))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(smollm2.encode, CORPUS * 4)) == alone * 4


def test_a_lone_surrogate_is_the_callers_mistake(smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match="lone surrogate"):
        smollm2.encode("half \ud83d of a face")

"""A Hugging Face folder gives the tokenizer that transformers makes of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer as Backend, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from model.errors import ModelError
from service.text.gguf_tokenizer import read_gguf_tokenizer
from service.text.tokenizer import Tokenizer
from tests.corpus import CORPUS
from tests.fakes_text import small_metadata

Folder = Callable[..., Path]


def byte_level() -> Backend:
    """With what must have no effect: truncation and padding."""
    backend = read_gguf_tokenizer(small_metadata(add_bos_token=True)).backend
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    return backend


def sentencepiece(*, strip: bool = True, byte_fallback: bool = True) -> Backend:
    """Shaped as Llama 2's: a mark for the space, and bytes for what isn't in the vocabulary."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", "a", "b", "▁a", "ab", "▁ab", "é"]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=byte_fallback))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.Fuse()]
    if byte_fallback:
        steps.insert(1, decoders.ByteFallback())
    if strip:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken(token, special=True) for token in tokens[:3]])
    return backend


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    def write(backend: Backend, **files: object) -> Path:
        backend.save(str(tmp_path / "tokenizer.json"))
        for name, value in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(value))
        return tmp_path

    return write


TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<bos>",
    "eos_token": {"__type": "AddedToken", "content": "<eos>"},
    "add_bos_token": False,
}


def test_a_folder_gives_the_ids_and_texts_of_transformers(folder: Folder) -> None:
    path = folder(byte_level(), tokenizer_config=TOKENIZER_CONFIG, config={"model_type": "llama"})
    ours, theirs = Tokenizer.load(path), AutoTokenizer.from_pretrained(path)
    for text in CORPUS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_folders_files_say_which_tokens_are_special(folder: Folder) -> None:
    path = folder(
        byte_level(),
        tokenizer_config=TOKENIZER_CONFIG,
        special_tokens_map={"bos_token": "<eot>", "eos_token": "<eot>"},
        generation_config={"eos_token_id": [260, 261]},
        config={"eos_token_id": 7},
    )
    tokenizer = Tokenizer.load(path)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (259, 260)
    assert tokenizer.eos_ids == {260, 261, 7}
    assert tokenizer.chat_template is None


@pytest.mark.parametrize(
    ("generation_config", "config", "expected"),
    [
        ({"do_sample": True}, {"eos_token_id": [1, 2]}, {1, 2}),
        ({"eos_token_id": None}, {"eos_token_id": 1}, {1}),
        ({"eos_token_id": [2, 3]}, {"eos_token_id": 1}, {1, 2, 3}),
        ({"eos_token_id": 0}, {}, {0}),
        ({}, {}, set()),
    ],
)
def test_a_turn_ends_with_any_id_that_either_file_names(
    folder: Folder, generation_config: object, config: object, expected: set[int]
) -> None:
    path = folder(byte_level(), generation_config=generation_config, config=config)
    assert Tokenizer.load(path).eos_ids == expected


def test_a_folder_with_the_fewest_files_will_do(folder: Folder) -> None:
    path = folder(byte_level(), config={"eos_token_id": 260}, special_tokens_map={"bos_token": "a"})
    tokenizer = Tokenizer.load(path)
    assert tokenizer.eos_ids == {260}
    assert tokenizer.eos_id is None
    assert tokenizer.bos_token == "a"
    assert tokenizer.encode("a", add_special_tokens=False) == [tokenizer.bos_id]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool_use", "template": "t"}], None),
    ],
)
def test_the_chat_template_of_tokenizer_config(
    folder: Folder, template: object, expected: str | None
) -> None:
    path = folder(byte_level(), tokenizer_config={"chat_template": template})
    assert Tokenizer.load(path).chat_template == expected


def test_a_chat_template_of_its_own_file_wins(folder: Folder) -> None:
    path = folder(byte_level(), tokenizer_config={"chat_template": "old"})
    (path / "chat_template.jinja").write_text("new")
    assert Tokenizer.load(path).chat_template == "new"


def test_a_folder_without_a_usable_tokenizer_is_refused(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer.json is missing"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(ModelError, match="isn't a tokenizer"):
        Tokenizer.load(tmp_path)
    path = folder(byte_level(), tokenizer_config=["not", "an", "object"])
    with pytest.raises(ModelError, match=r"tokenizer_config.json isn't a JSON object"):
        Tokenizer.load(path)
    (path / "tokenizer_config.json").write_bytes(b'{"bos_token": "\xff"}')
    with pytest.raises(ModelError, match=r"tokenizer_config.json isn't JSON"):
        Tokenizer.load(path)


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.Metaspace()])
def test_a_decoder_whose_tokens_have_no_bytes_is_refused(
    folder: Folder, decoder: decoders.Decoder | None
) -> None:
    backend = byte_level()
    backend.decoder = decoder
    with pytest.raises(ModelError, match=r"decoder is (none|WordPiece|Metaspace): octavo reads"):
        Tokenizer.load(folder(backend))


@pytest.mark.parametrize("strip", [True, False])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_sentencepiece_models_decode_as_their_own_decoder_does(
    folder: Folder, strip: bool, byte_fallback: bool
) -> None:
    backend = sentencepiece(strip=strip, byte_fallback=byte_fallback)
    tokenizer = Tokenizer.load(folder(backend))
    for text in ["ab a", "  a", "a é 👋🏽 ab", "", " ", "中文", "</s>ab a"]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == backend.decode(ids)
    assert tokenizer.token_bytes(262) == b" a"
    assert tokenizer.token_bytes(3 + 0xE9) == (b"\xe9" if byte_fallback else b"<0xE9>")


def test_a_continuation_keeps_the_space_that_a_text_would_not_begin_with(folder: Folder) -> None:
    tokenizer = Tokenizer.load(folder(sentencepiece()))
    ids = tokenizer.encode("ab ab")
    texts = {
        continues: "".join(map(tokenizer.detokenizer(continues_text=continues).push, ids))
        for continues in (False, True)
    }
    assert texts == {False: "ab ab", True: " ab ab"}

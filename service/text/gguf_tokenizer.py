"""Builds the tokenizer that a GGUF file's metadata describes. Knows the keys, not the file.

`tokenizer.ggml.model` says which kind: "gpt2" is byte-level BPE, "llama" and "t5" are
SentencePiece's BPE and unigram. Of the first kind GGUF stores the vocabulary and the merges, but of
the rest only the name of its rules, `tokenizer.ggml.pre`; see service.text.pre_tokenizers.
Metadata: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; what holds where a key is
missing: `llama_vocab::impl::load` of llama.cpp's src/llama-vocab.cpp.
"""

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.processors import PostProcessor, TemplateProcessing

from model.errors import ModelError
from service.text import sentencepiece
from service.text.definition import TokenizerDefinition
from service.text.pre_tokenizers import RULES, Rules
from service.text.sentencepiece import CONTROL, UNKNOWN, USER_DEFINED, Pieces, Spaces

KINDS = {"gpt2": "byte-level BPE", "llama": "SentencePiece BPE", "t5": "SentencePiece unigram"}
TURN_END_KEYS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
"""Control tokens that end a turn where the file names none."""

PHI_3_PLAIN = ("<unk>", "<s>", "<|endoftext|>")


def read_gguf_tokenizer(metadata: Mapping[str, Any]) -> TokenizerDefinition:
    """Raises ModelError if octavo can't tokenize the way that the metadata asks for."""
    kind = _kind(metadata)
    tokens = _list(metadata, "tokenizer.ggml.tokens", of=str)
    if kind == "gpt2":
        rules = _rules(metadata)
        backend, adds_bos = _byte_level(metadata, tokens, rules), rules.add_bos
    else:
        backend, adds_bos = _sentencepiece(metadata, tokens, kind), kind == "llama"
    bos_id = _token_id(metadata, "tokenizer.ggml.bos_token_id", tokens)
    eos_id = _token_id(metadata, "tokenizer.ggml.eos_token_id", tokens)
    backend.post_processor = _around(
        before=bos_id if metadata.get("tokenizer.ggml.add_bos_token", adds_bos) else None,
        after=eos_id if metadata.get("tokenizer.ggml.add_eos_token", kind == "t5") else None,
    )
    return TokenizerDefinition(
        backend=backend,
        bos_id=bos_id,
        eos_id=eos_id,
        turn_end_ids=_turn_end_ids(metadata, tokens),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _kind(metadata: Mapping[str, Any]) -> str:
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in KINDS:
        known = ", ".join(f"{name!r} ({meaning})" for name, meaning in KINDS.items())
        raise ModelError(
            f"tokenizer.ggml.model is {kind!r}: octavo reads {known} from GGUF. "
            "Take the model's Hugging Face folder, with its tokenizer.json"
        )
    return str(kind)


def _turn_end_ids(metadata: Mapping[str, Any], tokens: list[str]) -> frozenset[int]:
    named = {_token_id(metadata, key, tokens) for key in TURN_END_KEYS} - {None}
    types = metadata.get("tokenizer.ggml.token_type", [])
    known = {
        token_id
        for token_id, (token, type_) in enumerate(zip(tokens, types, strict=False))
        if type_ == CONTROL and token in TURN_ENDS
    }
    return frozenset(token_id for token_id in named or known if token_id is not None)


def _rules(metadata: Mapping[str, Any]) -> Rules:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    rules = RULES.get(str(pre))
    if rules is None:
        raise ModelError(
            f"tokenizer.ggml.pre is {pre!r}: octavo reads {', '.join(RULES)} from GGUF. "
            "Take the model's Hugging Face folder, with its tokenizer.json"
        )
    return rules


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: list[str], kind: str
) -> tokenizers.Tokenizer:
    pieces = Pieces(
        texts=tokens,
        scores=_list(metadata, "tokenizer.ggml.scores", of=float, len_=len(tokens)),
        types=_list(metadata, "tokenizer.ggml.token_type", of=int, len_=len(tokens)),
    )
    spaces = Spaces(
        prefix=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        squeezed=bool(metadata.get("tokenizer.ggml.remove_extra_whitespaces", False)),
        charsmap=_charsmap(metadata),
    )
    build = sentencepiece.bpe if kind == "llama" else sentencepiece.unigram
    backend = build(pieces, spaces)
    strips = _is_phi3(metadata)
    backend.add_tokens(
        [
            AddedToken(
                token,
                special=type_ != USER_DEFINED,
                normalized=False,
                rstrip=strips and type_ == CONTROL and token not in PHI_3_PLAIN,
            )
            for token, type_ in zip(tokens, pieces.types, strict=True)
            if type_ in (UNKNOWN, CONTROL, USER_DEFINED)
        ]
    )
    return backend


def _charsmap(metadata: Mapping[str, Any]) -> bytes:
    """Of bytes, which some files hold as signed."""
    stored = metadata.get("tokenizer.ggml.precompiled_charsmap") or []
    return bytes(value % 256 for value in stored)


def _is_phi3(metadata: Mapping[str, Any]) -> bool:
    """Its control tokens take the spaces behind them along, which no key says; llama.cpp goes by
    the name as well."""
    name = str(metadata.get("general.name", "")).lower()
    return "phi-3" in name or "phi3" in name


def _byte_level(
    metadata: Mapping[str, Any], tokens: list[str], rules: Rules
) -> tokenizers.Tokenizer:
    merges = _list(metadata, "tokenizer.ggml.merges", of=str)
    types = _list(metadata, "tokenizer.ggml.token_type", of=int)
    bpe = _bpe(tokens, merges, ignore_merges=rules.ignore_merges)
    backend = tokenizers.Tokenizer(bpe)
    backend.pre_tokenizer = rules.pre_tokenizer
    backend.decoder = ByteLevelDecoder()
    if rules.normalizer is not None:
        backend.normalizer = rules.normalizer
    backend.add_tokens(
        [
            AddedToken(token, special=type_ == CONTROL, normalized=False)
            for token, type_ in zip(tokens, types, strict=False)
            if type_ in (CONTROL, USER_DEFINED)
        ]
    )
    return backend


def _bpe(tokens: list[str], merges: list[str], *, ignore_merges: bool) -> BPE:
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    try:
        pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
        return BPE(vocab, pairs, ignore_merges=ignore_merges)
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelError(
            f"tokenizer.ggml.merges doesn't fit tokenizer.ggml.tokens: {error}. "
            "Download the file again, or convert the model again"
        ) from error


def _around(*, before: int | None, after: int | None) -> PostProcessor:
    """Puts these ids around a text's own, when it is encoded with special tokens."""
    begin = [] if before is None else [("before", before)]
    end = [] if after is None else [("after", after)]
    return TemplateProcessing(
        single=[*(name for name, _ in begin), "$A", *(name for name, _ in end)],
        special_tokens=[*begin, *end],
    )


def _list(metadata: Mapping[str, Any], key: str, *, of: type, len_: int | None = None) -> list[Any]:
    values = metadata.get(key)
    if not isinstance(values, list) or not all(isinstance(value, of) for value in values):
        raise ModelError(
            f"{key} is missing or not a list of {of.__name__}: the GGUF file holds no usable "
            "tokenizer. Convert the model again, or take its Hugging Face folder"
        )
    if len_ is not None and len(values) != len_:
        raise ModelError(
            f"{key} holds {len(values)} values for {len_} tokens: download the file again, or "
            "convert the model again"
        )
    return values


def _token_id(metadata: Mapping[str, Any], key: str, tokens: list[str]) -> int | None:
    token_id = metadata.get(key)
    if token_id is None or (isinstance(token_id, int) and 0 <= token_id < len(tokens)):
        return token_id
    raise ModelError(
        f"{key} is {token_id!r}, but the vocabulary ends at {len(tokens) - 1}: "
        "download the file again, or convert the model again"
    )

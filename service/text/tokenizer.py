"""Text to token ids and back, for one model. Knows no request and no chat.

Everything here is fixed once loaded, so threads may share a tokenizer.
"""

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Self

from model.weights.gguf import read_header
from service.text.definition import TokenizerDefinition
from service.text.detokenizer import Detokenizer
from service.text.gguf_tokenizer import read_gguf_tokenizer
from service.text.hf_tokenizer import read_hf_tokenizer
from service.text.token_bytes import read_token_bytes


class Tokenizer:
    def __init__(self, definition: TokenizerDefinition) -> None:
        self._backend = definition.backend
        self._token_bytes = read_token_bytes(definition.backend)
        added = definition.backend.get_added_tokens_decoder()
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        """Control tokens, which have a meaning and no text."""
        self.mark_ids = {
            token.content: id_
            for id_, token in added.items()
            if token.special or re.fullmatch("<.*>", token.content)
        }
        """Of tokens that are more than their text, by their spelling: all special ones, and those
        that grammars take for such."""
        self.bos_id = definition.bos_id
        self.eos_id = definition.eos_id
        self.eos_ids = definition.turn_end_ids | _known(self.eos_id)
        """All ids that end a turn."""
        self.chat_template = definition.chat_template
        """Jinja source, for ChatTemplate."""
        self.max_token_bytes = max(map(len, self._token_bytes.by_id))
        """Of the longest token: n tokens hold at most n times as many bytes of text."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """From a Hugging Face folder or a .gguf file. Raises ModelError if it has no such thing."""
        if path.is_dir():
            return cls(read_hf_tokenizer(path))
        return cls(read_gguf_tokenizer(read_header(path).metadata))

    @property
    def vocab_size(self) -> int:
        """One more than the greatest id; the model may have room for more."""
        return len(self._token_bytes.by_id)

    @property
    def bos_token(self) -> str:
        return self.spelling(self.bos_id)

    @property
    def eos_token(self) -> str:
        return self.spelling(self.eos_id)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Special tokens written out in the text become their ids either way.

        add_special_tokens is for plain text: with it, the model's own begin-of-text id is added.
        A chat template has written that into its text already.
        """
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:
            raise ValueError(
                "the text has a lone surrogate, half of a character that takes two: send it whole"
            ) from error

    def to_json(self) -> str:
        """As in a tokenizer.json."""
        return self._backend.to_str()

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        continues_text: bool = False,
        shown_ids: Collection[int] = (),
    ) -> Detokenizer:
        """continues_text: the ids follow on text, so that a space before them is a space.

        shown_ids: special tokens that are spelled even so.
        """
        return Detokenizer(
            self._token_bytes.by_id,
            skipped_ids=self.special_ids.difference(shown_ids) if skip_special_tokens else (),
            strip_first_space=self._token_bytes.strips_first_space and not continues_text,
        )

    def token_bytes(self, token_id: int) -> bytes:
        """What the token stands for, which may be half a character; special tokens are spelled."""
        return self._token_bytes.by_id[token_id] if token_id < self.vocab_size else b""

    def spelling(self, token_id: int | None) -> str:
        """As the vocabulary writes it, in its own alphabet of bytes; nothing for no token."""
        return "" if token_id is None else self._backend.id_to_token(token_id) or ""


def _known(token_id: int | None) -> frozenset[int]:
    return frozenset() if token_id is None else frozenset({token_id})

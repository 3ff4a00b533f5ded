"""What a tokenizer is made of, whichever kind of file said so. Knows no file format."""

from dataclasses import dataclass

import tokenizers
from tokenizers.processors import TemplateProcessing


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerDefinition:
    backend: tokenizers.Tokenizer
    bos_id: int | None
    eos_id: int | None
    """The token that chat templates know as eos_token."""
    turn_end_ids: frozenset[int] = frozenset()
    """Ids other than eos_id that end a turn too."""
    chat_template: str | None = None
    """Jinja source."""


def surround(backend: tokenizers.Tokenizer, *, before: int | None, after: int | None) -> None:
    """Let an encoding that adds special tokens put these ids around the text's own."""
    special_tokens = [
        (name, token_id)
        for name, token_id in (("before", before), ("after", after))
        if token_id is not None
    ]
    names = [name for name, _ in special_tokens]
    template = [name for name in ("before", "$A", "after") if name == "$A" or name in names]
    backend.post_processor = TemplateProcessing(single=template, special_tokens=special_tokens)

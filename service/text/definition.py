"""What a tokenizer is made of, whichever kind of file said so. Knows no file format."""

from dataclasses import dataclass

import tokenizers


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

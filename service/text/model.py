"""The text side of a model: its tokenizer, its chat template, and how its maker would sample."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from service.text.chat_template import ChatTemplate
from service.text.generation_config import read_defaults
from service.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextModel:
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    defaults: Mapping[str, float] = field(default_factory=dict)
    """Of sampling parameters, by their names in requests."""

    @classmethod
    def load(cls, path: Path, *, use_generation_config: bool = True) -> Self:
        """From a Hugging Face folder or a .gguf file. Raises ModelError if it can't be read."""
        tokenizer = Tokenizer.load(path)
        template = ChatTemplate(
            tokenizer.chat_template,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
        )
        return cls(tokenizer, template, read_defaults(path) if use_generation_config else {})

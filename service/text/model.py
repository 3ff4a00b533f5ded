"""The text side of a model: its tokenizer and its chat template."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from service.text.chat_template import ChatTemplate
from service.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextModel:
    tokenizer: Tokenizer
    chat_template: ChatTemplate

    @classmethod
    def load(cls, path: Path) -> Self:
        """From a Hugging Face folder or a .gguf file. Raises ModelError if it can't be read."""
        tokenizer = Tokenizer.load(path)
        template = ChatTemplate(
            tokenizer.chat_template,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
        )
        return cls(tokenizer, template)

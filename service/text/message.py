"""The parts of an assistant's message: thoughts, content and tool calls, out of one text.

What a model's answers look like is a MessageFormat; one answer is read by a MessageParser. Knows
which formats there are, not how each is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from service.text.model import TextModel
from service.text.reasoning import (
    Place,
    ReasoningFormat,
    ReasoningParser,
    find_format as find_reasoning,
)
from service.text.spellings import Spellings
from service.text.tool_format import ToolFormat, find_format as find_tools
from service.text.tool_parser import CallPiece, ToolParser


@dataclass(frozen=True, slots=True)
class MessageFormat:
    tools: ToolFormat
    reasoning: ReasoningFormat | None
    token_ids: Mapping[str, int]
    """Of the marks that are tokens of their own, by their spelling."""
    spellings: Spellings
    """Of all tokens that are more than their text."""

    @classmethod
    def find(cls, text: TextModel, *, tool_parser: str, reasoning_parser: str) -> Self:
        """By name, or what the chat template has signs of."""
        template = text.chat_template.source
        tools, reasoning = (
            find_tools(tool_parser, template),
            find_reasoning(reasoning_parser, template),
        )
        marks = [*tools.marks, *(reasoning.marks if reasoning else ())]
        mark_ids = text.tokenizer.mark_ids
        token_ids = {mark: mark_ids[mark] for mark in marks if mark in mark_ids}
        return cls(tools, reasoning, token_ids, Spellings(mark_ids))

    def place(self, prompt: str, *, begins: bool) -> Place:
        """Where an answer behind this prompt begins; not begins: it goes on with a message."""
        if self.reasoning is None:
            return "after"
        return self.reasoning.place(prompt, begins=begins)


@dataclass(frozen=True, slots=True)
class Pieces:
    """What is new of a message."""

    thoughts: str
    content: str
    calls: Sequence[CallPiece]


class MessageParser:
    """Whatever pieces the text comes in, what it tells joins to the same."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def has_whole_calls(self) -> bool:
        return self._tools is not None and self._tools.has_whole_calls

    def push(self, text: str) -> Pieces:
        thoughts, answer = self._reasoning.push(text) if self._reasoning else ("", text)
        return self._read(thoughts, answer)

    def flush(self) -> Pieces:
        """What was held back, once the text has ended."""
        thoughts, answer = self._reasoning.flush() if self._reasoning else ("", "")
        last = self._read(thoughts, answer)
        rest = self._tools.flush() if self._tools else ""
        return Pieces(last.thoughts, last.content + rest, last.calls)

    def _read(self, thoughts: str, answer: str) -> Pieces:
        if self._tools is None:
            return Pieces(thoughts, answer, ())
        content = self._tools.push(answer)
        return Pieces(thoughts, content, self._tools.take_pieces())

"""The form of an answer: the grammar that the engine follows, and who reads what comes of it.

thoughts  content  calls      of a chat: any may be missing, and the content may have to
                              follow something
text                          of a completion; the same
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from service.api.errors import bad_request
from service.api.schema import ChatRequest, CompletionRequest
from service.api.served import Serving
from service.api.structured import find_part
from service.api.tools import call_parts
from service.text.grammar import ALONE, Part, compose
from service.text.message import MessageFormat, MessageParser
from service.text.reasoning import Place, ReasoningParser, thinking_rules
from service.text.tool_format import MAX_CALLS, call_rules, optional_rules, required_rules
from service.text.tool_parser import ToolParser


@dataclass(frozen=True, slots=True)
class Form:
    grammar: str = ""
    new_parser: Callable[[], MessageParser] | None = None
    """For each choice; None where all is content."""
    shown_ids: Collection[int] = ()
    """Control tokens that the parser has to see."""


FREE = Form()
CONTENT = "answer: @content\n"


async def form_of_completion(asked: CompletionRequest, serving: Serving) -> Form:
    part = await find_part(asked, serving)
    if part is None:
        return FREE
    return Form(compose({"answer": part}, ALONE, spellings=serving.format.spellings))


async def form_of_chat(asked: ChatRequest, serving: Serving, prompt: str) -> Form:
    """prompt: the text that the chat became."""
    format = serving.format
    content = await find_part(asked, serving)
    calls = await call_parts(asked, serving)
    if content and calls and not asked.must_call and not format.tools.begin:
        raise bad_request(
            "tools can't be told from a constrained text with this model: ask for one of them, or "
            'send tool_choice "required".',
            param="tools",
        )
    place = format.place(prompt, begins=asked.begins_answer)
    shape = _Shape(asked, format, place, content, calls)
    grammar = await shape.grammar(serving)
    if place == "after" and not calls:
        return Form(grammar)
    return Form(grammar, shape.new_parser, format.token_ids.values())


@dataclass(frozen=True, slots=True)
class _Shape:
    """Of one chat's answer."""

    asked: ChatRequest
    format: MessageFormat
    place: Place
    content: Part | None
    calls: Mapping[str, Part]

    def new_parser(self) -> MessageParser:
        format = self.format.reasoning
        reasoning = ReasoningParser(format, self.place) if format else None
        tools = ToolParser(self.format.tools, only_at_start=self.content is not None)
        return MessageParser(reasoning, tools if self.calls else None)

    async def grammar(self, serving: Serving) -> str:
        if self.calls:
            return await self._of_calls(serving)
        if self.content:
            return self._compose({"content": self.content}, self._thinking + CONTENT)
        return ""

    async def _of_calls(self, serving: Serving) -> str:
        """Each part passed alone, but all together may be too much."""
        names = {name: f"f{number}" for number, name in enumerate(self.calls)}
        parts = {names[name]: part for name, part in self.calls.items()}
        if self.content and not self.asked.must_call:
            parts["content"] = self.content
        rules = self._thinking + self._answer + self._call_rules(names)
        if problem := await serving.grammars.find_problem(parts, rules):
            raise bad_request(f"tools can't be followed: {problem}.", param="tools")
        return self._compose(parts, rules)

    def _compose(self, parts: Mapping[str, Part], rules: str) -> str:
        return compose(parts, rules, spellings=self.format.spellings)

    @property
    def _thinking(self) -> str:
        return thinking_rules(self.format.reasoning, self.place, self.format.token_ids)

    @property
    def _answer(self) -> str:
        tools, token_ids = self.format.tools, self.format.token_ids
        if self.asked.must_call:
            return required_rules(tools, token_ids)
        return optional_rules(
            tools,
            token_ids,
            text="content" if self.content else "",
            thoughts=self.format.reasoning.begin if self.format.reasoning else "",
        )

    def _call_rules(self, functions: Mapping[str, str]) -> str:
        most = 1 if self.asked.calls_once else MAX_CALLS
        return call_rules(self.format.tools, functions, self.format.token_ids, most=most)

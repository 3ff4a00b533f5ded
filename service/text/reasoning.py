"""How models write what they think before they answer: the marks, the grammar, and who finds them.

begin thoughts end spaces answer          the template may have written `begin` already
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from service.text.grammar import ANY_TEXT, escaped, literal
from service.text.scanner import SPACES, MarkFinder

Place = Literal["inside", "before", "after"]
"""Where an answer begins: among thoughts, where thoughts may begin, or where they have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    begin: str
    end: str
    always: bool = False
    """Whether an answer begins with thoughts even if neither it nor the prompt says so."""

    @property
    def marks(self) -> Sequence[str]:
        """Spellings that may be tokens of their own."""
        return [self.begin, self.end]

    def place(self, prompt: str, *, begins: bool) -> Place:
        """Of an answer behind this prompt; not begins: it goes on with a message."""
        prompt = prompt.rstrip(SPACES)
        if prompt.endswith(self.end):
            return "after"
        return "inside" if (self.always and begins) or prompt.endswith(self.begin) else "before"


FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": ReasoningFormat(begin="<think>", end="</think>", always=True),
    "qwen3": ReasoningFormat(begin="<think>", end="</think>"),
    "mistral": ReasoningFormat(begin="[THINK]", end="[/THINK]"),
    "seed_oss": ReasoningFormat(begin="<seed:think>", end="</seed:think>"),
}
SIGNS = {"</think>": "qwen3", "[THINK]": "mistral", "</seed:think>": "seed_oss"}
"""What a template of each format has in it."""


def find_format(name: str, template: str) -> ReasoningFormat | None:
    """name: one of FORMATS, "none", or "auto", which looks for signs in the chat template."""
    if name == "auto":
        name = next((found for sign, found in SIGNS.items() if sign in template), "none")
    return FORMATS.get(name)


def thinking_rules(
    format: ReasoningFormat | None, place: Place, token_ids: Mapping[str, int]
) -> str:
    """The rule `start`: thoughts, if any are to come, then the rule `answer`."""
    if format is None or place == "after":
        return "start: answer\n"
    if format.end in token_ids:
        thoughts = f"thoughts: THOUGHT {literal(format.end, token_ids)}\nTHOUGHT: {ANY_TEXT}\n"
    else:
        thoughts = f"thoughts[lazy]: /(?s:.*){escaped(format.end)}/\n"
    spaces = "SPACES: /[ \\n\\r\\t]{0,4}/\n"
    if place == "inside":
        return f"start: thoughts SPACES answer\n{thoughts}{spaces}"
    begin = literal(format.begin, token_ids)
    return f"start: ({begin} thoughts SPACES)? answer\n{thoughts}{spaces}"


class ReasoningParser:
    """Tells thoughts and answer apart in text that comes in pieces, wherever it was cut."""

    def __init__(self, format: ReasoningFormat, place: Place) -> None:
        self._format = format
        self._place: Place = place
        self._begin = MarkFinder([format.begin], only_at_start=True)
        self._end = MarkFinder([format.end])
        self._at_edge = place != "after"  # where spaces are nobody's

    def push(self, text: str) -> tuple[str, str]:
        """(thoughts, answer), as far as they are certain now and weren't before."""
        thoughts = ""
        if self._place == "before":
            answer, text = self._begin.push(text)
            if not text:
                return "", answer
            self._place, text = "inside", text.removeprefix(self._format.begin)
        if self._place == "inside":
            thoughts, text = self._end.push(text)
            thoughts = self._without_edge(thoughts)
            if self._end.found:
                self._place, self._at_edge = "after", True
                text = text.removeprefix(self._format.end)
        return thoughts, self._without_edge(text)

    def flush(self) -> tuple[str, str]:
        """What was held back, once the whole has ended."""
        return self._without_edge(self._end.flush()), self._begin.flush()

    def _without_edge(self, text: str) -> str:
        if self._at_edge:
            text = text.lstrip(SPACES)
            self._at_edge = not text
        return text

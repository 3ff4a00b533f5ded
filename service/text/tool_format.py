"""How models write tool calls: the marks around them, and the grammar of an answer that may call.

    begin opening {"name": "f", "arguments": {…}} between {…} closing      a whole of calls
    begin f[ARGS]{…} between g[ARGS]{…}                                    where names come first

The calls are the last of an answer. Knows what the grammar's rules look like, and no request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.text.grammar import ANY_TEXT, escaped, literal, quoted

MAX_CALLS = 16
"""Of one answer: a small model that may go on often does, until its budget is used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    begin: str
    """Nothing that begins with it is text; "": what begins like a call's object is none."""
    opening: str = ""
    between: str
    closing: str = ""
    arguments_key: str = "arguments"
    before_arguments: str = ""
    """What stands between a name and the object of its arguments; "": one object has both."""
    before_id: str = ""
    """What may stand after a name, before an id of the call."""
    tag: str = ""
    """A control token that may come before calls, where the vocabulary has it."""
    id_len: int = 0
    """The length of ids that its templates take; 0: any."""

    @property
    def object_start(self) -> str:
        return '{"name": "'

    @property
    def tail(self) -> str:
        """What comes after a call's arguments."""
        return "" if self.before_arguments else "}"

    def head(self, name: str) -> str:
        """What comes before a call's arguments."""
        if self.before_arguments:
            return name + self.before_arguments
        return f'{{"name": {quoted(name)}, "{self.arguments_key}": '

    @property
    def marks(self) -> Sequence[str]:
        """Spellings that may be tokens of their own."""
        marks = (
            self.begin,
            self.closing.strip(),
            self.before_arguments,
            self.before_id,
            self.tag,
        )
        return [mark for mark in marks if mark]

    def name_in(self, text: str) -> str:
        """The name that the text before an object has; "": none. Where names come first."""
        named, found, _ = text.rpartition(self.begin)[2].partition(self.before_arguments)
        return named.partition(self.before_id)[0].strip() if found else ""


HERMES = ToolFormat(
    begin="<tool_call>",
    opening="\n",
    between="\n</tool_call>\n<tool_call>\n",
    closing="\n</tool_call>",
)
FORMATS: Mapping[str, ToolFormat] = {
    "hermes": HERMES,
    "llama3_json": ToolFormat(
        begin="", between="; ", arguments_key="parameters", tag="<|python_tag|>"
    ),
    "mistral": ToolFormat(begin="[TOOL_CALLS]", opening="[", between=", ", closing="]", id_len=9),
    "mistral_v11": ToolFormat(
        begin="[TOOL_CALLS]",
        between="[TOOL_CALLS]",
        before_arguments="[ARGS]",
        before_id="[CALL_ID]",
        id_len=9,
    ),
    "json": ToolFormat(begin="", between="\n"),
}
SIGNS = {
    "<tool_call>": "hermes",
    "[ARGS]": "mistral_v11",
    "[TOOL_CALLS]": "mistral",
    "<|python_tag|>": "llama3_json",
    '"parameters":': "llama3_json",
}
"""What a template of each format has in it; the first that is found counts."""


def find_format(name: str, template: str) -> ToolFormat:
    """name: one of FORMATS, or "auto", which looks for signs in the chat template."""
    if name == "auto":
        knows_tools = "tools" in template
        signs = (found for sign, found in SIGNS.items() if knows_tools and sign in template)
        name = next(signs, "hermes")
    return FORMATS[name]


def call_rules(
    format: ToolFormat, functions: Mapping[str, str], token_ids: Mapping[str, int], *, most: int
) -> str:
    """The rule `calls`. functions: by name, the grammar parts of their arguments."""
    between = literal(format.between, token_ids)
    more = f" ({between} call){{0,{most - 1}}}" if most > 1 else ""
    calls = " | ".join(
        f"{_head_rule(format, name, token_ids)} @{part} {quoted(format.tail)}"
        for name, part in functions.items()
    )
    opening, closing = (
        literal(mark, token_ids) if mark else "" for mark in (format.opening, format.closing)
    )
    return f"calls: {opening} call{more} {closing}\ncall: {calls}\n{_id_rule(format, token_ids)}"


def _head_rule(format: ToolFormat, name: str, token_ids: Mapping[str, int]) -> str:
    if not _id_rule(format, token_ids):
        return literal(format.head(name), token_ids)
    return f"{quoted(name)} id? {literal(format.before_arguments, token_ids)}"


def _id_rule(format: ToolFormat, token_ids: Mapping[str, int]) -> str:
    """Nothing, where the model has no mark for ids."""
    if format.before_id not in token_ids:
        return ""
    mark = literal(format.before_id, token_ids)
    return f"id: {mark} ID\nID: /[a-zA-Z0-9]{{{format.id_len}}}/\n"


def required_rules(format: ToolFormat, token_ids: Mapping[str, int]) -> str:
    """The rule `answer` where it is calls and nothing else."""
    begin = literal(format.begin, token_ids) if format.begin else ""
    return f"answer: {begin} calls\n"


def optional_rules(
    format: ToolFormat, token_ids: Mapping[str, int], *, text: str = "", thoughts: str = ""
) -> str:
    """The rule `answer` where calls may come after text or, if they have no mark, instead of it.

    text: the part that an answer without calls follows. thoughts: what no text begins with.
    """
    if text:
        return required_rules(format, token_ids) + f"  | @{text}\n"
    barred = f" & ~/{escaped(thoughts)}(?s:.*)/" if thoughts else ""
    if not format.begin:
        tag = f"<[{token_ids[format.tag]}]>? " if format.tag in token_ids else ""
        start = escaped(format.object_start)
        return f"answer: TEXT | {tag}calls\nTEXT: {ANY_TEXT} & ~/{start}(?s:.*)/{barred}\n"
    mark = escaped(format.begin)
    text_rule = f"TEXT: {ANY_TEXT} & ~/(?s:.*){mark}(?s:.*)/{barred}\n"
    if format.begin in token_ids:
        return f"answer: TEXT ({literal(format.begin, token_ids)} calls)?\n{text_rule}"
    begun = f"begun[lazy]: BEGUN\nBEGUN: /(?s:.*){mark}/{barred}\n"
    return f"answer: TEXT | begun calls\n{begun}{text_rule}"

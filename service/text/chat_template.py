"""Renders a chat as the text that the model was trained on. Knows Jinja, nothing of tokens.

The template comes with the model's files, so it is a program by someone else: it runs in a sandbox
(service.text.sandbox), and sees nothing but the chat.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser

from model.errors import ModelError
from service.text.limits import joined, start_clock
from service.text.sandbox import Sandbox

MAX_DATE_CHARS = 1000
MAX_MESSAGE_CHARS = 500

DEFAULT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ message.role | capitalize }}: {{ message.content }}\n\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For models without one: paragraphs that begin with the speaker's role."""

OURS = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("bos_token", "eos_token", "self"),
    }
)
"""Names in a template that stand for what a request has parameters for, or for the model's own."""


class ChatTemplateError(ValueError):
    """The template can't render this chat; the message is for whoever sent it."""


class ChatTemplate:
    """What it renders holds the special tokens already: encode it without adding any."""

    def __init__(self, source: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        """source: None takes the default. Raises ModelError if it isn't a template."""
        self.source = DEFAULT_TEMPLATE if source is None else source
        self._template = _compile(self.source)
        parsed = self._template.environment.parse(self.source)
        known = OURS | self._template.environment.globals.keys()
        self.variables = frozenset(find_undeclared_variables(parsed) - known)
        """Names of what else it asks for, and does without."""
        self.knows_tools = "tools" in self.source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Raises ChatTemplateError. Entries that are None are left out, as templates expect.

        continue_final_message: the text ends where the last message's content does.
        """
        chat = [
            {key: value for key, value in message.items() if value is not None}
            for message in messages
        ]
        variables |= self._tokens | {
            "messages": chat,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        if not continue_final_message:
            return self._render(variables)
        mark = secrets.token_hex(16)
        chat[-1]["content"] = f"{chat[-1].get('content', '')}{mark} "
        return _before(mark, self._render(variables))

    def _render(self, variables: Mapping[str, Any]) -> str:
        start_clock()
        try:
            return joined(self._template.generate(variables))
        except Exception as error:  # whatever a program by someone else can do wrong
            reason = (str(error) or type(error).__name__)[:MAX_MESSAGE_CHARS]
            raise ChatTemplateError(
                f"the model's chat template can't render these messages: {reason}"
            ) from error


def _before(mark: str, text: str) -> str:
    """What comes before the mark, of which the template may have stripped the space that follows:
    then it strips contents, and would have stripped this one."""
    content, found, rest = text.rpartition(mark)
    if not found:
        raise ChatTemplateError(
            "continue_final_message: the model's chat template doesn't write out the last message"
        )
    return content if rest.startswith(" ") else content.rstrip()


def _compile(source: str) -> Template:
    environment = Sandbox(extensions=[LoopControlExtension, _Generation])
    environment.filters["tojson"] = _tojson
    shared = {name: environment.globals[name] for name in ("dict", "namespace", "range")}
    environment.globals = shared | {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    try:
        return environment.program(source)
    except Exception as error:  # jinja2's and Python's own compilers over someone else's text
        raise ModelError(
            f"the model's chat template can't be compiled: {error}. "
            "Give another template, or a newer version of the model's files"
        ) from error


class _Generation(Extension):
    """`{% generation %}` marks what the assistant says, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 as Extension declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format[:MAX_DATE_CHARS])


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own, neither escapes HTML nor sorts keys; templates are written for this."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return joined(encoder.iterencode(value))

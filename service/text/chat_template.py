"""Renders a chat as the text that the model was trained on. Knows Jinja, nothing of tokens.

The template comes with the model's files, so it is a program by someone else. It runs in jinja2's
sandbox, sees nothing but the chat, and is cut off where its loops or its output run away. A single
expression isn't bounded, except for the powers and repetitions that could fill the memory.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from datetime import datetime
from time import monotonic
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from model.errors import ModelError

MAX_SECONDS = 2.0
MAX_CHARS = 16 << 20
MAX_MESSAGE_CHARS = 500

DEFAULT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ message.role | capitalize }}: {{ message.content }}\n\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For models without one: paragraphs that begin with the speaker's role."""

_deadline: ContextVar[float] = ContextVar("_deadline")
"""When, by the monotonic clock, this thread's rendering is cut off."""


class ChatTemplateError(ValueError):
    """The template can't render this chat; the message is for whoever sent it."""


class ChatTemplate:
    """What it renders holds the special tokens already: encode it without adding any."""

    def __init__(self, source: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        """source: None takes the default. Raises ModelError if it isn't a template."""
        self._template = _compile(DEFAULT_TEMPLATE if source is None else source)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Raises ChatTemplateError. Entries that are None are left out, as templates expect."""
        chat = [
            {key: value for key, value in message.items() if value is not None}
            for message in messages
        ]
        variables |= self._tokens | {
            "messages": chat,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        _deadline.set(monotonic() + MAX_SECONDS)
        try:
            return _joined(self._template.generate(variables))
        except Exception as error:  # whatever a program by someone else can do wrong
            reason = (str(error) or type(error).__name__)[:MAX_MESSAGE_CHARS]
            raise ChatTemplateError(
                f"the model's chat template can't render these messages: {reason}"
            ) from error


def _joined(pieces: Iterable[str]) -> str:
    rendered = []
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > MAX_CHARS:
            raise SecurityError(f"it writes more than {MAX_CHARS} characters")
        rendered.append(piece)
    return "".join(rendered)


def _compile(source: str) -> Template:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[LoopControlExtension, _Generation],
    )
    environment.filters |= {"tojson": _tojson, "within_time": _within_time}
    shared = {name: environment.globals[name] for name in ("dict", "namespace", "range")}
    environment.globals = shared | {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    try:
        tree = environment.parse(source)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "within_time", [], [], None, None)
        return environment.from_string(tree)
    except Exception as error:  # jinja2's and Python's own compilers over someone else's text
        raise ModelError(
            f"the model's chat template can't be compiled: {error}. "
            "Give another template, or a newer version of the model's files"
        ) from error


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that also ends what would go on for ever: loops, recursion, huge values."""

    intercepted_binops = frozenset({"*", "**"})

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or abs(_magnitude(left) * _magnitude(right)) > MAX_CHARS:
            raise SecurityError(f"the result of {operator} may be too large")
        return super().call_binop(context, operator, left, right)


def _magnitude(value: Any) -> Any:
    return len(value) if isinstance(value, Sized) else value


def _within_time(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _check_time()
        yield item


def _check_time() -> None:
    if monotonic() > _deadline.get():
        raise SecurityError(f"it takes more than {MAX_SECONDS} seconds")


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
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own, neither escapes HTML nor sorts keys; templates are written for this."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )

"""A Jinja environment for templates by someone else: loops, calls and sizes are bounded.

jinja2's sandbox keeps a template away from Python's insides, but lets 'x' | center(10 ** 9) fill
the memory. So whatever can make much out of little is weighed before it is done:

    'x' * n    '%9d' % n    a + b    a ~ b          operators
    join  replace  center  indent  format …         filters, and methods of the same names
    {{ value }}    {% set %} … {% endset %}         writing out, which repeats what is shared

The clock is looked at in loops and calls. The work of one operation on values of allowed size, such
as comparing two lists, isn't bounded. Knows nothing of chats.
"""

from collections.abc import Callable, Iterable, Sized
from functools import wraps
from math import prod
from typing import Any

from jinja2 import Environment, Template, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from service.text.limits import (
    check_format,
    check_percent,
    check_replacement,
    check_size,
    check_time,
    joined,
    magnitude,
    weighed_items,
    weight,
    within_time,
)

ABSENT = ("pprint", "random", "urlize", "xmlattr")
"""Filters that no chat template needs."""
WRITING = (
    *("capitalize", "e", "escape", "forceescape", "lower", "string", "striptags", "title"),
    *("trim", "truncate", "upper", "urlencode", "wordcount"),
)
"""Filters that write their value out, if it is no text yet."""
GROWING = ("batch", "center", "indent", "round", "slice", "sum", "wordwrap")
"""Filters whose result may be as large as the product of their arguments."""
GROWING_METHODS = ("center", "ljust", "rjust", "zfill", "expandtabs", "translate", "to_bytes")


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%", "+"})
    concat = staticmethod(joined)  # the pieces of a {% set %} block, or of a macro

    def __init__(self, *, extensions: list[type[Extension]]) -> None:
        # Not optimized, since that would evaluate at load what is constant.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=extensions,
            optimized=False,
            finalize=_written_out,
        )
        self.filters = {name: FILTERS[name] for name in FILTERS if name not in ABSENT}
        self.filters |= {name: _weighing_each(FILTERS[name]) for name in WRITING}
        self.filters |= {name: _weighing_product(FILTERS[name]) for name in GROWING}
        self.filters |= {"join": _join, "replace": _replace, "format": _format}
        self.filters |= {"concat": _concat, "within_time": within_time}

    def program(self, source: str) -> Template:
        return self.from_string(_Guard().visit(self.parse(source)))

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        check_time()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str | bytes | int):
            args = _weighed_arguments(owner, name, args)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("the result of ** may be too large")
        if operator == "*":
            check_size(magnitude(left) * magnitude(right))
        elif operator == "%" and isinstance(left, str | bytes):
            check_percent(left, right)
        elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            check_size(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        format = super().wrap_str_format(value)
        if format is None:
            return None

        def weighed(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__, (args, kwargs))
            return format(*args, **kwargs)

        return weighed


class _Guard(NodeTransformer):
    """Leads through a filter what an environment has no say in: loops and `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 as jinja2 names them
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "within_time", [], [], None, None)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        first, *others = node.nodes
        return nodes.Filter(first, "concat", others, [], None, None)


def _factor(value: Any) -> float:
    if isinstance(value, Environment):  # which jinja2 gives to some filters
        return 1
    return max(1, abs(value)) if isinstance(value, int | float) else weight(value)


def _weighing_each(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def weighing(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            if not isinstance(value, str):
                check_size(weight(value))
        return function(*args, **kwargs)

    return weighing


def _weighing_product(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def weighing(*args: Any, **kwargs: Any) -> Any:
        check_size(prod(map(_factor, [*args, *kwargs.values()])))
        return function(*args, **kwargs)

    return weighing


def _weighed_arguments(owner: Any, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a method of `owner`, an iterator among them as a list."""
    if name in GROWING_METHODS:
        check_size(max(1, weight(owner)) * prod(map(_factor, args)))
    elif name == "join" and args:
        args = (weighed_items(args[0], owner), *args[1:])
    elif name == "replace" and len(args) > 1:
        check_replacement(owner, args[0], args[1])
    return args


@pass_context
def _written_out(context: Context, value: Any) -> Any:
    """Called with each value before it is written. With the context, so never at load."""
    if not isinstance(value, str):
        check_size(weight(value))
    return value


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = context.environment.call_filter(
            "map", value, kwargs={"attribute": attribute}, context=context
        )
    separator = str(d)
    return separator.join(map(str, weighed_items(value, separator)))


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = _concat(value), str(old), str(new)
    check_replacement(text, old, new)
    return text.replace(old, new, -1 if count is None else count)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    text, values = _concat(value), kwargs or args
    check_percent(text, values)
    return text % values


def _concat(*values: Any) -> str:
    check_size(sum(map(weight, values)))
    return "".join(map(str, values))

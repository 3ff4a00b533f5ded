"""Finds the tool calls in an answer that comes in pieces. Knows no tokens and no tool.

    text [spaces] begin opening {"name": "f", "arguments": {…}} between {…} closing
    text [spaces] begin f[CALL_ID]…[ARGS]{…} between g[ARGS]{…}

Looks at each character a bounded number of times. What is passed on, joined, doesn't depend on how
the text was cut. A call is told when its name is known, its arguments as the model wrote them. Its
id is ours, since a model may write one twice.
"""

import json
import secrets
import string
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from service.text.scanner import MarkFinder
from service.text.tool_format import ToolFormat

ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What is new of a call. Its id and name come once, first."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class ToolParser:
    def __init__(self, format: ToolFormat, *, only_at_start: bool = False) -> None:
        """only_at_start: an answer that doesn't begin with calls has none."""
        self._format = format
        marks = [format.begin] if format.begin else [format.object_start, format.tag]
        self._finder = MarkFinder(
            [mark for mark in marks if mark], only_at_start=only_at_start or not format.begin
        )
        self._between: list[str] = []
        """Of the text before the next object; names may be in it."""
        self._call: _Call | _NamedCall | None = None
        self._pieces: list[CallPiece] = []
        self._num_calls = 0

    @property
    def has_whole_calls(self) -> bool:
        """Whether there are calls, and none was cut."""
        return self._num_calls > 0 and self._call is None

    def push(self, text: str) -> str:
        """The text that is certain to be no part of a call."""
        shown, calls = self._finder.push(text)
        for char in calls:
            self._push_char(char)
        self._tell_arguments()
        return shown

    def flush(self) -> str:
        """What was held back, once the answer has ended."""
        return self._finder.flush()

    def take_pieces(self) -> Sequence[CallPiece]:
        taken, self._pieces = self._pieces, []
        return taken

    def _push_char(self, char: str) -> None:
        """Between the objects is only what the format puts there."""
        if self._call is None:
            if char != "{":
                self._between.append(char)
                return
            self._call = self._begin_call()
        call = self._call
        call.push(char)
        if call.name and not call.is_told:
            call.is_told = True
            self._pieces.append(CallPiece(self._num_calls, self._new_id(), call.name))
            self._num_calls += 1
        if call.is_whole:
            self._tell_arguments()
            self._call = None

    def _begin_call(self) -> "_Call | _NamedCall":
        before = "".join(self._between)
        self._between.clear()
        if self._format.before_arguments:
            return _NamedCall(self._format.name_in(before))
        return _Call(self._format.arguments_key)

    def _tell_arguments(self) -> None:
        if self._call is not None and self._call.is_told and self._call.arguments:
            arguments = "".join(self._call.arguments)
            self._call.arguments.clear()
            self._pieces.append(CallPiece(self._num_calls - 1, arguments=arguments))

    def _new_id(self) -> str:
        if self._format.id_len:
            return "".join(secrets.choice(ALPHANUMERIC) for _ in range(self._format.id_len))
        return f"call_{uuid.uuid4().hex}"


class _Nesting:
    """How deep in objects and arrays of JSON a text is that is read character by character."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False

    def push(self, char: str) -> None:
        if self.in_string:
            self.in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self.in_string = True
        elif char in "{[":
            self.depth += 1
        elif char in "}]":
            self.depth -= 1


class _NamedCall:
    """Reads one object that is the arguments of a call whose name stood before it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arguments: list[str] = []
        """What is new of them."""
        self.is_told = False
        self._nesting = _Nesting()

    @property
    def is_whole(self) -> bool:
        return self._nesting.depth == 0

    def push(self, char: str) -> None:
        self._nesting.push(char)
        self.arguments.append(char)


class _Call:
    """Reads one object, character by character, for two of its values."""

    def __init__(self, arguments_key: str) -> None:
        self.name = ""
        self.arguments: list[str] = []
        """What is new of them."""
        self.is_told = False
        self._nesting = _Nesting()
        self._arguments_key = arguments_key
        self._key = ""
        self._raw: list[str] = []
        self._in_value = False

    @property
    def is_whole(self) -> bool:
        return self._nesting.depth == 0

    def push(self, char: str) -> None:
        outer = self._nesting.depth <= 1 and not self._nesting.in_string
        self._nesting.push(char)
        if not outer:
            self._keep(char)
        elif char == ":" and not self._in_value:
            self._key = _decoded(self._take_raw())
            self._in_value = True
        elif char in ",}":
            self._end_value()
        elif self._nesting.depth and char not in " \n\r\t" and (self._in_value or char == '"'):
            self._keep(char)

    def _keep(self, char: str) -> None:
        if self._in_value and self._key == self._arguments_key:
            self.arguments.append(char)
        else:
            self._raw.append(char)

    def _end_value(self) -> None:
        raw = self._take_raw()
        if self._in_value and self._key == "name":
            self.name = _decoded(raw)
        self._in_value = False

    def _take_raw(self) -> str:
        raw = "".join(self._raw)
        self._raw.clear()
        return raw


def _decoded(raw: str) -> str:
    """A string of JSON; anything else is no key or name of ours."""
    try:
        value = json.loads(raw)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""

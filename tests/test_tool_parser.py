"""Tool calls found in text: every format, every split, and time that grows with the text alone."""

import re
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from service.config import TOOL_PARSERS
from service.text.tool_format import FORMATS, find_format
from service.text.tool_parser import CallPiece, ToolParser

Calls = list[tuple[str, str]]
HERMES_CALLS = (
    '<tool_call>\n{"name": "get", "arguments": {"a": "x}{\\"]", "b": [1, {"c": "é"}]}}\n'
    '</tool_call>\n<tool_call>\n{"name": "s\\u00e9t", "arguments": {}}\n</tool_call>'
)
EXPECTED: Calls = [("get", '{"a": "x}{\\"]", "b": [1, {"c": "é"}]}'), ("sét", "{}")]
CASES: list[tuple[str, str, str, Calls, bool]] = [
    ("hermes", f"Hi.  \n{HERMES_CALLS}", "Hi.", EXPECTED, True),
    ("hermes", "Hi <tool_cal", "Hi <tool_cal", [], False),
    ("hermes", "<tool_<tool_call", "<tool_<tool_call", [], False),
    ("hermes", '<tool_call>{"arguments": {"x": 1} , "name": "f"}', "", [("f", '{"x": 1}')], True),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a', "", [("f", '{"a')], False),
    ("hermes", '<tool_call>\n{"name": "f', "", [], False),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}', "", [], False),
    ("hermes", '<tool_call>{"name: 5}', "", [], False),
    ("hermes", f"a{' ' * 100}<tool_call>", f"a{' ' * 36}", [], False),
    (
        "mistral",
        'Hm. [TOOL_CALLS] [{"name": "a", "arguments": {"x": [1]}}, {"name": "b", "arguments": {}}]',
        "Hm.",
        [("a", '{"x": [1]}'), ("b", "{}")],
        True,
    ),
    (
        "llama3_json",
        '{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}',
        "",
        [("a", '{"x": 1}'), ("b", "{}")],
        True,
    ),
    (
        "mistral_v11",
        'Hm. [TOOL_CALLS]get[ARGS]{"x": [{"y": "}{\\"["}]}[TOOL_CALLS] set [ARGS] {}',
        "Hm.",
        [("get", '{"x": [{"y": "}{\\"["}]}'), ("set", "{}")],
        True,
    ),
    ("mistral_v11", "[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{}", "", [("f", "{}")], True),
    ("mistral_v11", "[TOOL_CALLS]a[TOOL_CALLS]b[ARGS]{}", "", [("b", "{}")], True),
    ("mistral_v11", '[TOOL_CALLS]f[ARGS]{"a": "b', "", [("f", '{"a": "b')], False),
    ("mistral_v11", "[TOOL_CALLS]f[ARGS]", "", [], False),
    ("mistral_v11", "[TOOL_CALLS]f{}", "", [], False),
    ("mistral_v11", "[TOOL_CALLS][ARGS]{}", "", [], False),
    ("mistral_v11", '[TOOL_CALLS][{"name": "f", "arguments": {}}]', "", [], False),
    ("mistral_v11", "f[ARGS]{} [TOOL_CALL", "f[ARGS]{} [TOOL_CALL", [], False),
    ("llama3_json", '<|python_tag|>{"name": "a", "parameters": {}}', "", [("a", "{}")], True),
    ("llama3_json", 'x {"name": "a"', 'x {"name": "a"', [], False),
    ("json", '{"name": "a\\', "", [], False),
    ("json", '{"name": "a\\x", "arguments": {}}', "", [], False),
    ("json", '{"nam', '{"nam', [], False),
    ("json", '{"name":"a"}', '{"name":"a"}', [], False),
    ("json", '{"name": "a", "arguments": {"b": 1}}', "", [("a", '{"b": 1}')], True),
]


def parse(format: str, pieces: Iterable[str]) -> tuple[str, Calls, bool]:
    parser = ToolParser(FORMATS[format])
    text, told = "", list[CallPiece]()
    for piece in pieces:
        text += parser.push(piece)
        told += parser.take_pieces()
    text += parser.flush()
    calls: Calls = []
    for new in told:
        if new.name:
            assert (new.index, new.arguments) == (len(calls), "")
            calls.append((new.name, ""))
        else:
            assert not new.id
            name, arguments = calls[new.index]
            calls[new.index] = name, arguments + new.arguments
    return text, calls, parser.has_whole_calls


@pytest.mark.parametrize(("format", "text", "content", "calls", "whole"), CASES)
def test_calls_are_found(format: str, text: str, content: str, calls: Calls, whole: bool) -> None:
    assert parse(format, [text]) == (content, calls, whole)
    assert parse(format, text) == (content, calls, whole)


@given(st.sampled_from(CASES), st.lists(st.integers(0, 200)))
def test_any_split_is_told_the_same(
    case: tuple[str, str, str, Calls, bool], cuts: list[int]
) -> None:
    format, text, *expected = case
    bounds = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    assert parse(format, pieces) == tuple(expected)


PIECES = st.text(alphabet='<tool_ca>{}"name: f,arguments[]') | st.sampled_from(
    [
        *(mark for format in FORMATS.values() for mark in format.marks),
        '{"name": "f", "arguments": {"a": "',
        '{"name": "f", "parameters": {',
        "f[ARGS]{",
    ]
)


@given(st.sampled_from(list(FORMATS)), st.lists(PIECES), st.lists(st.integers(0, 100)))
def test_any_text_is_told_the_same_however_it_is_split(
    format: str, pieces: list[str], cuts: list[int]
) -> None:
    text = "".join(pieces)
    whole = parse(format, [text])
    assert parse(format, pieces) == whole
    assert parse(format, text) == whole
    bounds = [0, *sorted(cuts), len(text)]
    assert parse(format, [text[a:b] for a, b in pairwise(bounds)]) == whole


@pytest.mark.no_cover
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "unit", ["<", "<tool_call", " ", "{", '{"name": "', "[TOOL_CALLS", "[ARGS]", '"\\']
)
def test_hostile_text_is_looked_at_a_bounded_number_of_times(format: str, unit: str) -> None:
    parser = ToolParser(FORMATS[format])
    text = unit * (50_000 // len(unit))
    shown = "".join(map(parser.push, text)) + parser.flush()  # quadratic, it would take minutes
    assert text.startswith(shown)


def test_nothing_is_found_behind_other_text_where_calls_come_first() -> None:
    parser = ToolParser(FORMATS["hermes"], only_at_start=True)
    assert parser.push(f"x{HERMES_CALLS}") == f"x{HERMES_CALLS}"
    assert not parser.has_whole_calls


def test_ids_are_unique_and_such_as_the_templates_take() -> None:
    ids = {name: set[str]() for name in FORMATS}
    for name, format in FORMATS.items():
        for _ in range(50):
            parser = ToolParser(format)
            parser.push(f"{format.begin}{format.opening}{format.head('f')}{{}}{format.tail}")
            ids[name].add(parser.take_pieces()[0].id)
    assert {len(found) for found in ids.values()} == {50}
    for name in ("mistral", "mistral_v11"):
        assert all(re.fullmatch("[a-zA-Z0-9]{9}", id_) for id_ in ids[name])
    assert all(id_.startswith("call_") for id_ in ids["hermes"])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ messages }}", "hermes"),
        ("{{ tools }} <tool_call>", "hermes"),
        ("{{ tools }} [TOOL_CALLS]", "mistral"),
        ("{{ tools }} [TOOL_CALLS] {{ name }} [ARGS]", "mistral_v11"),
        ('{{ tools }} {"name": x, "parameters": y}', "llama3_json"),
        ("{{ messages }} [TOOL_CALLS]", "hermes"),
    ],
)
def test_the_template_says_which_format(template: str, name: str) -> None:
    assert find_format("auto", template) is FORMATS[name]
    assert find_format("json", template) is FORMATS["json"]


def test_all_formats_can_be_asked_for() -> None:
    assert ("auto", *FORMATS) == TOOL_PARSERS

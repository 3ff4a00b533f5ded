"""What a client's Lark grammar may not do is found outside of its strings, regexes and comments."""

import pytest

from service.text.lark import find_lark_problem


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "<a>" /[<&~]+&&&&&&&&&/ // <x> %json',
        'start: "\\"<x>" # <x>\nfoo[lazy]: /a\n<x>\\/<y>/ "b"',
        'start: a\na[suffix="</x>"]: /.*/',
        'start: "never closed <x>',
        "start: /never closed <x>",
    ],
)
def test_what_stands_in_literals_is_nothing(grammar: str) -> None:
    assert find_lark_problem(grammar) == ""


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ("start: <|im_end|>", "control tokens"),
        ('start: "a" <[2]> "b"', "control tokens"),
        ('start: /a/ <x> "b"', "control tokens"),
        ("start: %json {}", "%json"),
        ('start: a b\na[stop=""]: /x*/', "stop and max_tokens"),
        ("start: a\na[max_tokens = 3]: /x*/", "stop and max_tokens"),
        ("start: " + "a " * 2000, "2001 names and literals"),
        ("start: A\nA: " + "&".join(["/a/"] * 10), "& and ~ 9 times"),
    ],
)
def test_what_may_not_be_is_named(grammar: str, problem: str) -> None:
    assert problem in find_lark_problem(grammar)


def test_hostile_literals_are_read_once() -> None:
    """Read again from each beginning, they would take minutes."""
    for piece in ('"\\', '"', "/\\", '\\"', "/"):
        find_lark_problem(piece * 30_000)

"""Grammars as they are written and checked; the cost of hostile ones is bounded."""

import random
from typing import Any

import pytest

from service.text.grammar import (
    ALONE,
    MAX_GRAMMAR_CHARS,
    MAX_REASON_CHARS,
    GrammarError,
    Part,
    check_grammar,
    choice_part,
    compose,
    escaped,
    json_part,
    lark_part,
    literal,
    regex_part,
)
from service.text.spellings import Spellings
from tests.fakes import END
from tests.fakes_engine import allowed_ids
from tests.fakes_grammar import GRAMMARS, draw, start

WEIRD = ['a"b', "a\\b", "a\nb", "🚀", "/", "\x01", "<|im_end|>", "\u2028", "%json", "a", "ab", "[b"]


def alone(part: Part) -> str:
    return compose({"answer": part}, ALONE)


def accepts(grammar: str, text: str) -> bool:
    try:
        constraint = start(grammar, text)
    except ValueError:
        return False
    return END in allowed_ids(constraint.allowed())


def test_choices_are_taken_literally() -> None:
    grammar = alone(choice_part(WEIRD))
    check_grammar(grammar)
    assert all(accepts(grammar, text) for text in WEIRD)
    assert not accepts(grammar, "b")


def test_a_regex_is_matched_as_a_whole() -> None:
    grammar = alone(regex_part("^a/b+$"))
    check_grammar(grammar)
    assert accepts(grammar, "a/bb")
    assert not accepts(grammar, "xa/b")


def test_literals_are_tokens_where_there_are_such() -> None:
    assert literal("a<x>b<x>", {"<x>": 7}) == '"a" <[7]> "b" <[7]>'
    assert literal("a<x>", {}) == '"a<x>"'


@pytest.mark.parametrize("text", ['{"name": "', "[TOOL_CALLS]", "</tool_call>", "a.b|c*é/\\"])
def test_escaped_text_matches_itself_alone(text: str) -> None:
    grammar = alone(lark_part(f"start: /{escaped(text)}/"))
    assert accepts(grammar, text)
    assert not accepts(grammar, text[:-1])


def test_keywords_that_arent_supported_are_refused_unless_it_may_be_lenient() -> None:
    schema = {"type": "object", "properties": {"a": {"uniqueItems": True}}}
    with pytest.raises(GrammarError, match="uniqueItems"):
        check_grammar(alone(json_part(schema)))
    check_grammar(alone(json_part(schema, lenient=True)))


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def fan_out(levels: int) -> dict[str, Any]:
    """Written out, it would have 2 ** levels leaves."""
    defs: dict[str, Any] = {"n0": {"type": "boolean"}}
    for i in range(1, levels + 1):
        ref = {"$ref": f"#/$defs/n{i - 1}"}
        defs[f"n{i}"] = {"type": "object", "properties": {"a": ref, "b": ref}}
    return {"$defs": defs, "$ref": f"#/$defs/n{levels}"}


MANY_RULES = "\n".join(f"r{i}: r{i + 1} | r{i + 1} r{i + 1}" for i in range(1500))
HOSTILE: dict[str, Part] = {
    "quantified quantifiers": regex_part("foo**"),
    "repeated repetitions": regex_part("((a{1,100}){1,100}){1,100}"),
    "ambiguous": regex_part("(a|aa)+$"),
    "many states": regex_part("(a|b)*a(a|b){30}"),
    "parentheses": regex_part("(" * 20_000 + "a" + ")" * 20_000),
    "alternatives": regex_part("|".join(f"(a{i}b.*c{i})" for i in range(3000))),
    "nested": json_part(nested(60)),
    "nested deeply": json_part(nested(120)),
    "enum": json_part({"enum": [f"value{i}" for i in range(5000)]}),
    "fan out": json_part(fan_out(30)),
    "itself": json_part({"$ref": "#"}),
    "many properties": json_part({"properties": {f"p{i}": {} for i in range(1500)}}),
    "many items": json_part({"type": "array", "minItems": 10**6}),
    "long strings": json_part({"type": "string", "minLength": 10**6, "maxLength": 10**9}),
    "product": json_part(
        {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(9)]} for i in range(9)]}
    ),
    "patterns": json_part({"allOf": [{"pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(8)]}),
    "remainders": json_part({"type": "integer", "allOf": [{"multipleOf": 97}, {"multipleOf": 89}]}),
    "rules": lark_part(f"start: r0\n{MANY_RULES}\nr1500: a\na: a"),
    "empty recursion": lark_part('start: a\na: a a | "x" |'),
    "intersections": lark_part("start: A\nA: " + " & ".join(["/(a|b)*a(a|b){9}/"] * 9)),
    "parentheses of rules": lark_part("start: " + "(" * 5000 + '"a"' + ")" * 5000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_meant_to_hurt_is_refused_or_compiles_soon(name: str) -> None:
    """Some would take hours."""
    try:
        check_grammar(alone(HOSTILE[name]))
        reason = ""
    except GrammarError as error:
        reason = str(error)
    assert len(reason) <= MAX_REASON_CHARS


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (json_part(nested(300)), "nested too deeply"),
        (regex_part("a" * MAX_GRAMMAR_CHARS), "65536 characters"),
        (lark_part("start: %json {}"), "%json"),
    ],
)
def test_what_isnt_tried_is_refused(part: Part, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        alone(part)


def test_what_took_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.text.grammar.MAX_CPU_SECONDS", 0)
    with pytest.raises(GrammarError, match="too long to compile"):
        check_grammar(alone(regex_part("a")))


SPELLED = Spellings(["<|end|>", "<|start|>"])


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (choice_part(["a<|end|>b"]), "a<|end|>b"),
        (json_part({"const": "<|end|>"}), '"<|end|>"'),
        (json_part({"properties": {"<|start|>": {}}, "required": ["<|start|>"]}), None),
        (regex_part("x\\x3c\\|end[|]>y"), "x<|end|>y"),
        (lark_part('start: "x\\x3c" "|end|>y"'), "x<|end|>y"),
        (json_part({"type": "string", "pattern": "^[<]\\|end\\|>$"}), '"<|end|>"'),
    ],
)
def test_the_spelling_of_a_control_token_is_no_such_token(part: Part, text: str | None) -> None:
    """Else the answer would end there, and not be whole."""
    grammar = compose({"answer": part}, ALONE, spellings=SPELLED)
    for seed in range(5):
        rng = random.Random(seed)
        constraint, ids = GRAMMARS.start(grammar, []), list[int]()
        while (token_id := draw(rng, allowed_ids(constraint.allowed()))) != END:
            ids.append(token_id)
            constraint.push([token_id])
        assert max(ids) < 256
        assert text is None or bytes(ids).decode() == text


def test_what_is_sure_to_be_one_text_is_told_as_it_is_encoded() -> None:
    assert "no_forcing" not in compose({"answer": choice_part(["ab"])}, ALONE, spellings=SPELLED)

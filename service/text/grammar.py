"""Grammars that an answer is to follow: written, and checked before the engine follows them.

The only file of the text side that knows llguidance. A Part is a grammar of one kind; `compose`
makes one whole of Lark rules and of the parts that these name as @name. Knows no request.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from llguidance import LLMatcher, LLParserLimits

from service.text.json_schema import SchemaError, check_schema, has_patterns
from service.text.lark import find_lark_problem
from service.text.spellings import NONE, Spellings

MAX_GRAMMAR_CHARS = 64 << 10
MAX_CPU_SECONDS = 0.5
"""What the compiler took here it takes in the engine again, from one of the cores."""
MAX_REASON_CHARS = 300
ALONE = "start: @answer"
"""The rules of an answer that follows its one part, `answer`."""
LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    max_grammar_size=50_000,
    verbose_errors=False,
)
"""Tighter than the engine's, so that what passes here passes there."""
JSON_OPTIONS = {
    # Where JSON may have whitespace; unbounded, a small model may write nothing else.
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,16}",
    "coerce_one_of": False,
    "lenient": False,
}
FREELY = '%llguidance {"no_forcing": true}\n'
ANY_TEXT = "/(?s:.*)/"


class GrammarError(ValueError):
    """The grammar can't be followed; the message is for who sent it."""


@dataclass(frozen=True, slots=True)
class Part:
    """A grammar in llguidance's form, without its name."""

    json_schema: Mapping[str, Any] | None = None
    lark_grammar: str | None = None
    is_obscure: bool = False
    """Whether what it forces can't be read off its text, as of regexes."""
    problem: str = ""
    """Why it can't be used at all."""


def json_part(schema: Mapping[str, Any], *, lenient: bool = False) -> Part:
    """lenient: keywords that aren't supported are left to the model's good will."""
    options = JSON_OPTIONS | {"coerce_one_of": lenient, "lenient": lenient}
    return Part(json_schema={**schema, "x-guidance": options}, is_obscure=has_patterns(schema))


def regex_part(pattern: str) -> Part:
    """The whole answer matches it."""
    written = orjson.loads(LLMatcher.grammar_from_regex(pattern))
    return Part(lark_grammar=written["grammars"][0]["lark_grammar"], is_obscure=True)


def choice_part(choices: Sequence[str]) -> Part:
    return Part(lark_grammar=f"start: {' | '.join(map(quoted, choices))}")


def lark_part(grammar: str) -> Part:
    return Part(lark_grammar=grammar, is_obscure=True, problem=find_lark_problem(grammar))


def quoted(text: str) -> str:
    """As a string of Lark."""
    return json.dumps(text, ensure_ascii=False)


def literal(text: str, token_ids: Mapping[str, int]) -> str:
    """A Lark expression for the text, in which some spellings are tokens of their own."""
    if not token_ids:
        return quoted(text)
    spellings = "|".join(map(re.escape, token_ids))
    pieces = re.split(f"({spellings})", text)
    return " ".join(
        f"<[{token_ids[piece]}]>" if piece in token_ids else quoted(piece)
        for piece in pieces
        if piece
    )


def escaped(text: str) -> str:
    """As a part of a regex between slashes."""
    return re.sub(r"[^\w\s]", lambda match: f"\\x{{{ord(match[0]):x}}}", text)


def compose(parts: Mapping[str, Part], rules: str, *, spellings: Spellings = NONE) -> str:
    """In llguidance's form. The rules begin with `start`. Raises GrammarError if it can't be.

    spellings: of tokens that are more than their text. Where the grammar leaves one text alone, it
    is told to the model as the tokenizer would encode it, such tokens among them, which may end
    the answer. So what may hold a spelling is left to the model, token by token.
    """
    text = _written(parts, rules)
    if any(part.is_obscure for part in parts.values()) or spellings.occur_in(text):
        return _written(parts, FREELY + rules)
    return text


def _written(parts: Mapping[str, Part], rules: str) -> str:
    problem = next((part.problem for part in parts.values() if part.problem), "")
    if problem:
        raise GrammarError(problem)
    grammars = [{"lark_grammar": rules}, *(_named(name, part) for name, part in parts.items())]
    try:
        text = orjson.dumps({"grammars": grammars}).decode()
    except orjson.JSONEncodeError:  # beyond 254 levels
        raise GrammarError("it is nested too deeply") from None
    if len(text) > MAX_GRAMMAR_CHARS:
        raise GrammarError(f"it has more than {MAX_GRAMMAR_CHARS} characters")
    return text


def _named(name: str, part: Part) -> dict[str, Any]:
    if part.json_schema is not None:
        return {"name": name, "json_schema": part.json_schema}
    return {"name": name, "lark_grammar": part.lark_grammar}


def check_grammar(grammar: str) -> None:
    """Of what `compose` made. Raises GrammarError. Takes a moment, or some seconds where the
    grammar is meant to hurt."""
    try:
        for one in orjson.loads(grammar)["grammars"]:
            check_schema(one.get("json_schema") or {})
    except SchemaError as error:
        raise GrammarError(str(error)) from None
    _compile(grammar)


def _compile(grammar: str) -> None:
    started = time.thread_time()
    problem = LLMatcher.validate_grammar(grammar, limits=LIMITS)
    if problem and not problem.startswith("WARNING"):
        raise GrammarError(" ".join(problem.split())[:MAX_REASON_CHARS])
    if time.thread_time() - started > MAX_CPU_SECONDS:
        raise GrammarError("it takes too long to compile; make it smaller")

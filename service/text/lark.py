"""What a client's Lark grammar may not do, found before it is compiled. Knows no compiler.

The compiler has more than a client should: control tokens, and rules that end at the end of a text,
would let an answer end before the grammar does.
"""

import re

MAX_INTERSECTIONS = 8
"""Whether regexes have a string in common takes time exponential in their number."""
MAX_SYMBOLS = 2000
"""Names and literals. Of an ambiguous grammar, a step's cost grows faster than their number."""
LITERALS = re.compile(r"""//[^\n]*|#[^\n]*|"(?:[^"\\\n]|\\.)*"?|/(?:[^/\\]|\\.)*/?""")
"""Comments, strings and regexes. Once begun, one is taken up to its end or the grammar's, so that
no character is looked at from several beginnings."""


def find_lark_problem(grammar: str) -> str:
    """Why it isn't tried; "": it is."""
    bare, num_literals = LITERALS.subn(" ", grammar)
    num_intersections = bare.count("&") + bare.count("~")
    if num_intersections > MAX_INTERSECTIONS:
        return f"it has & and ~ {num_intersections} times: {MAX_INTERSECTIONS} are the most"
    num_symbols = num_literals + len(re.findall(r"[\w-]+", bare))
    if num_symbols > MAX_SYMBOLS:
        return f"it has {num_symbols} names and literals: {MAX_SYMBOLS} are the most"
    if "%json" in bare:
        return "%json isn't supported; send the schema as one"
    if "<" in bare:
        return "control tokens can't be part of it"
    if re.search(r"\b(stop|max_tokens)\s*=", bare):
        return "stop and max_tokens aren't supported; use lazy or suffix"
    return ""

"""What a JSON schema may ask for, beyond what the grammar's compiler checks itself.

Some keywords cost the compiler far more than their length, whatever its limits; one it can't quite
keep. A schema is searched for them everywhere, since a $ref may point anywhere. Knows no compiler.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import lcm
from typing import Any

MAX_MULTIPLE = 10_000
"""The automaton of a remainder has a state for each; of several in one schema, as if combined."""
MAX_COMBINED_PATTERNS = 8
"""Whether patterns have a string in common takes time exponential in their number."""
MAX_PATTERN_PROPERTIES = 50
"""Each two must be disjoint."""
COMBINING = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
PATTERNS = frozenset({"pattern", "format"})


class SchemaError(ValueError):
    """The message is for who sent the schema."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises SchemaError."""
    objects = list(_objects(schema))
    for one in objects:
        _check_keywords(one)
    _check_multiples(objects)
    _check_patterns(objects)


def has_patterns(schema: Mapping[str, Any]) -> bool:
    return any("pattern" in one or "patternProperties" in one for one in _objects(schema))


def _objects(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    rest: list[Any] = [schema]
    while rest:
        value = rest.pop()
        if isinstance(value, Mapping):
            yield value
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)


def _check_keywords(schema: Mapping[str, Any]) -> None:
    least, required = schema.get("minProperties"), schema.get("required")
    if isinstance(least, int) and isinstance(required, list | None):
        # A key that may be any can come twice, and then counts once.
        most = len(required or ()) + 1
        if least > most:
            raise SchemaError(
                f"minProperties is {least}: {most} is the most where {most - 1} are required"
            )
    patterns = schema.get("patternProperties")
    if isinstance(patterns, Mapping) and len(patterns) > MAX_PATTERN_PROPERTIES:
        raise SchemaError(
            f"patternProperties has {len(patterns)} patterns: take {MAX_PATTERN_PROPERTIES} at most"
        )


def _check_multiples(objects: list[Mapping[str, Any]]) -> None:
    multiples = {one["multipleOf"] for one in objects if _is_number(one.get("multipleOf"))}
    combined = lcm(*map(_coefficient, multiples))
    if combined > MAX_MULTIPLE:
        raise SchemaError(
            "multipleOf: the least common multiple of all its values has digits "
            f"beyond {MAX_MULTIPLE}, take smaller or rounder ones"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _coefficient(number: float) -> int:
    """0.05 and 500 have 5."""
    digits = Decimal(repr(number)).normalize().as_tuple().digits
    return int("".join(map(str, digits))) or 1


def _check_patterns(objects: list[Mapping[str, Any]]) -> None:
    if not any(map(_combines_patterns, objects)):
        return
    num_patterns = sum(isinstance(one.get(key), str) for one in objects for key in PATTERNS)
    if num_patterns > MAX_COMBINED_PATTERNS:
        raise SchemaError(
            f"it has {num_patterns} patterns and formats and combines schemas: "
            f"{MAX_COMBINED_PATTERNS} are the most with allOf, or beside $ref, anyOf and oneOf"
        )


def _combines_patterns(schema: Mapping[str, Any]) -> bool:
    return "allOf" in schema or bool(schema.keys() & COMBINING and schema.keys() & PATTERNS)

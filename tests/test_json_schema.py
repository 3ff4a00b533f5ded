"""The bounds of JSON schemas that the grammar's compiler hasn't got itself."""

from typing import Any

import pytest

from service.text.json_schema import SchemaError, check_schema

PATTERN = {"type": "string", "pattern": "a.*b"}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"multipleOf": 10_000},
        {"anyOf": [{"multipleOf": 0.01}, {"multipleOf": 5}, {"multipleOf": 250}]},
        {"multipleOf": True},
        {"minProperties": 1},
        {"minProperties": 3, "required": ["a", "b"]},
        {"properties": {"minProperties": {"type": "string"}, "multipleOf": {}, "allOf": {}}},
        {"properties": {str(i): PATTERN for i in range(30)}},
        {"allOf": [PATTERN] * 8},
        {"patternProperties": {f"^{i}$": {} for i in range(50)}},
        {"minProperties": 9, "required": "no list, as the compiler will say"},
    ],
)
def test_what_costs_little_passes(schema: dict[str, Any]) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"multipleOf": 999_983}, "multipleOf"),
        ({"$defs": {"a": [{"multipleOf": 9973}]}, "multipleOf": 7}, "multipleOf"),
        ({"multipleOf": 1.23456789}, "multipleOf"),
        ({"items": {"minProperties": 2}}, "minProperties is 2: 1 is the most where 0 are required"),
        ({"minProperties": 3, "required": ["a"]}, "minProperties is 3: 2 is the most"),
        ({"allOf": [PATTERN] * 9}, "9 patterns"),
        ({"$defs": {"a": PATTERN}, "items": [PATTERN] * 8, "allOf": []}, "9 patterns"),
        ({**PATTERN, "$ref": "#/x", "x": [PATTERN] * 8}, "9 patterns"),
        ({"patternProperties": {f"^{i}$": {} for i in range(51)}}, "51 patterns"),
    ],
)
def test_what_would_cost_too_much_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        check_schema(schema)

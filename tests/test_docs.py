"""/docs: all that /openapi.json says, on a page that needs nothing from elsewhere."""

import re
from html import unescape

import pytest

from service.api.docs import content, values
from tests.description import SCHEMAS, operations
from tests.fakes import Client

ANSWER = Client(tokenizer_info=True, debug_endpoints=True).get("/docs")
TEXT = unescape(ANSWER.text)


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert ANSWER.status_code == 200
    assert ANSWER.headers["content-type"] == "text/html; charset=utf-8"
    assert ANSWER.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"<script|<link|<img|src=|https?://", ANSWER.text)
    assert Client().get("/redoc").status_code == 404


def test_every_route_and_field_is_on_it() -> None:
    for path, method, operation in operations():
        assert f"<code>{method.upper()} {path}</code>" in TEXT
        assert all(response["description"] in TEXT for response in operation["responses"].values())
    for name, schema in SCHEMAS.items():
        for field, about in schema.get("properties", {}).items():
            assert f'id="{name}"' in TEXT
            assert f"<code>{field}</code>" in TEXT
            assert about["description"] in TEXT


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, "anything"),
        ({"type": "integer", "minimum": 0, "exclusiveMaximum": 9}, "integer, ≥ 0, < 9"),
        ({"anyOf": [{"$ref": "#/x/Usage"}, {"type": "null"}]}, "Usage or null"),
        ({"enum": ["a", "é"]}, '"a", "é"'),
        ({"const": "a", "type": "string"}, '"a"'),
        (
            {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
            "array of (string, 4 characters at most), 2 at most",
        ),
    ],
)
def test_values_are_said_in_words(schema: dict[str, object], said: str) -> None:
    assert values(schema) == said
    assert content({"content": {"a/b": {"schema": schema}}}) == f"{said} (a/b)"
    assert content({}) == ""

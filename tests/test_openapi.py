"""/openapi.json says of every field what it is for, which values it takes, and gives one."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import Client

DESCRIPTION: dict[str, Any] = Client().get("/openapi.json").json()
REFUSED = {"functions", "function_call"}
"""Known only to be refused with better words."""
REQUESTS = ["ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"]


def fields() -> Iterator[tuple[str, str]]:
    for request in REQUESTS:
        properties = DESCRIPTION["components"]["schemas"][request]["properties"]
        yield from ((request, name) for name in properties.keys() - REFUSED)


def find(schema: Any, key: str) -> list[Any]:
    """The values of a key in a field's schema or in an alternative of it."""
    found = [schema[key]] if key in schema else []
    return found + [value for one in schema.get("anyOf", []) for value in find(one, key)]


@pytest.mark.parametrize(("request_name", "name"), sorted(fields()))
def test_every_field_is_described_with_an_example(request_name: str, name: str) -> None:
    schema = DESCRIPTION["components"]["schemas"][request_name]
    field = schema["properties"][name]
    [description] = find(field, "description")
    assert description.endswith(".")
    assert find(field, "examples")
    assert "default" in field or name in schema["required"]


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("temperature", 0, 2),
        ("frequency_penalty", -2, 2),
        ("n", 1, 128),
        ("repetition_penalty", 0.01, 100),
        ("prompt_logprobs", 0, 20),
    ],
)
def test_ranges_are_told(name: str, low: float, high: float) -> None:
    field = DESCRIPTION["components"]["schemas"]["ChatRequest"]["properties"][name]
    assert find(field, "minimum") == [low]
    assert find(field, "maximum") == [high]


def test_the_document_lists_every_route_and_parameter() -> None:
    text = (Path(__file__).parent.parent / "docs/api.md").read_text()
    listed = set(re.findall(r"`([a-z0-9_]+)`", text))
    assert {name for _, name in fields()} <= listed
    routes = {path for path in DESCRIPTION["paths"] if f"{path}`" not in text}
    assert routes == set()


def test_every_route_with_a_body_refers_to_its_schema() -> None:
    schemas = DESCRIPTION["components"]["schemas"]
    bodies = {
        path: route["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        for path, route in DESCRIPTION["paths"].items()
        if "post" in route
    }
    assert {"/tokenize", "/detokenize", "/v1/chat/completions/render"} < bodies.keys()
    assert {ref.rpartition("/")[2] for ref in bodies.values()} <= schemas.keys()

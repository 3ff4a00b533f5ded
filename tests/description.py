"""/openapi.json as the tests read it, and whether an answer is as it says."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from tests.fakes import Client, events_of

DESCRIPTION: dict[str, Any] = (
    Client(tokenizer_info=True, debug_endpoints=True).get("/openapi.json").json()
)
SCHEMAS: dict[str, Any] = DESCRIPTION["components"]["schemas"]
CHUNKS = {
    "/v1/chat/completions": "ChatCompletionChunk",
    "/v1/completions": "CompletionChunk",
}


def operations() -> Iterator[tuple[str, str, Any]]:
    """(path, method, operation)"""
    for path, route in DESCRIPTION["paths"].items():
        yield from ((path, method, operation) for method, operation in route.items())


@cache
def validator(reference: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": reference, "components": {"schemas": SCHEMAS}})


def check_value(value: Any, reference: str) -> None:
    """reference: such as #/components/schemas/Usage."""
    errors = [
        f"{error.json_path}: {error.message}" for error in validator(reference).iter_errors(value)
    ]
    assert errors == []


def check_answer(path: str, method: str, answer: httpx.Response) -> None:
    """path: as the description spells it."""
    said = DESCRIPTION["paths"][path][method]["responses"][str(answer.status_code)]["content"]
    content_type = answer.headers["content-type"].partition(";")[0]
    assert content_type in said
    if content_type == "application/json":
        check_value(answer.json(), said[content_type]["schema"]["$ref"])
    if content_type == "text/event-stream":
        for event in events_of(answer):
            check_value(event, f"#/components/schemas/{CHUNKS[path]}")

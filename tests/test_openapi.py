"""/openapi.json says of every field what it is for, which values it takes, and gives one; and of
every route how it answers, which is what it does."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from service.engine.protocol import EngineStatus
from tests.description import SCHEMAS, check_answer, operations
from tests.fakes import Client, FakeEngine, say
from tests.fakes_grammar import roomy
from tests.test_debug import make_client as steps_client
from tests.test_embeddings import embed
from tests.test_tools import CALL, TOOLS

REQUESTS = [
    *("ChatRequest", "CompletionRequest", "EmbeddingRequest"),
    *("TokenizeRequest", "DetokenizeRequest"),
]
PROBES = ["/livez", "/readyz", "/health", "/metrics", "/version"]


def properties() -> Iterator[tuple[str, str]]:
    """Of all objects that are sent either way."""
    for name, schema in SCHEMAS.items():
        yield from ((name, field) for field in schema.get("properties", ()))


def find(schema: Any, key: str) -> list[Any]:
    """The values of a key in a field's schema or in an alternative of it."""
    found = [schema[key]] if key in schema else []
    return found + [value for one in schema.get("anyOf", []) for value in find(one, key)]


@pytest.mark.parametrize(("name", "field"), sorted(properties()))
def test_every_field_is_described_with_an_example_that_it_takes(name: str, field: str) -> None:
    schema = SCHEMAS[name]["properties"][field]
    assert schema["description"].endswith(".")
    assert schema["examples"]
    whole = Draft202012Validator({**schema, "components": {"schemas": SCHEMAS}})
    for example in schema["examples"]:
        assert list(whole.iter_errors(example)) == []


@pytest.mark.parametrize(("name", "field"), sorted(properties()))
def test_every_number_is_bounded(name: str, field: str) -> None:
    schema = SCHEMAS[name]["properties"][field]
    if {"integer", "number"} & set(find(schema, "type")):
        lows, highs = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
        assert any(find(schema, key) for key in lows + highs)


@pytest.mark.parametrize("name", REQUESTS)
def test_every_field_that_may_be_left_out_has_a_default(name: str) -> None:
    schema = SCHEMAS[name]
    without = {field for field, value in schema["properties"].items() if "default" not in value}
    assert without == set(schema.get("required", ()))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("temperature", 0, 2),
        ("frequency_penalty", -2, 2),
        ("n", 1, 128),
        ("prompt_logprobs", 0, 20),
    ],
)
def test_ranges_are_told(name: str, low: float, high: float) -> None:
    field = SCHEMAS["ChatRequest"]["properties"][name]
    assert find(field, "minimum") == [low]
    assert find(field, "maximum") == [high]


def test_the_document_lists_every_route_and_parameter() -> None:
    text = (Path(__file__).parent.parent / "docs/api.md").read_text()
    listed = set(re.findall(r"`([a-z0-9_]+)`", text))
    assert {field for name in REQUESTS for field in SCHEMAS[name]["properties"]} <= listed
    routes = {path for path, _, _ in operations() if f"{path}`" not in text}
    assert routes == set()


@pytest.mark.parametrize(("path", "method", "operation"), list(operations()))
def test_every_route_says_how_it_may_refuse(path: str, method: str, operation: Any) -> None:
    responses = operation["responses"]
    expected = {"200", "500"}
    if path not in PROBES:
        expected |= {"401", "421"}
    if method == "post":
        expected |= {"400", "404", "408", "413", "415", "429", "503"}
    assert expected <= responses.keys()
    assert "422" not in responses
    for status, response in responses.items():
        if status != "200" and not (status == "503" and path in PROBES):
            schema = response["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}
            assert ("headers" in response) == (status in ("429", "503"))
    assert operation["security"] == ([{}] if path in PROBES else [{}, {"key": []}])
    for parameter in operation.get("parameters", []):
        assert parameter["description"]
        assert "example" in parameter or "examples" in parameter["schema"]


MESSAGES = [{"role": "user", "content": "Hi"}]
FULL = {"return_token_ids": True, "include_timings": True}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Hi", "logprobs": 2, "prompt_logprobs": 1, **FULL}),
    ("/v1/completions", {"prompt": ["Hi", "a"], "n": 2, "logprobs": 2, "echo": True}),
    ("/v1/completions", {"prompt": "Hi", "logprobs": 0, "stream": True, **FULL}),
    (
        "/v1/completions",
        {"prompt": "Hi", "stream": True, "stream_options": {"include_usage": True}},
    ),
    ("/v1/completions", {"prompt": ""}),
    ("/v1/chat/completions", {"messages": MESSAGES, "prompt_logprobs": 1, **FULL}),
    ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "n": 2}),
    ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": True, "stream": True, **FULL}),
    ("/v1/chat/completions", {"messages": MESSAGES, "tools": TOOLS}),
    ("/v1/chat/completions", {"messages": MESSAGES, "tools": TOOLS, "stream": True}),
    ("/v1/chat/completions", {"messages": MESSAGES, "model": "nope"}),
    ("/v1/chat/completions/render", {"messages": MESSAGES}),
    ("/tokenize", {"prompt": "Hi"}),
    ("/tokenize", {"messages": MESSAGES, "return_token_strs": True}),
    ("/detokenize", {"tokens": [72]}),
    ("/detokenize", {"tokens": [1 << 20]}),
]


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_answers_are_as_they_are_described(path: str, body: dict[str, Any]) -> None:
    client = roomy(say(f"<think>Hm.</think>Yes.{CALL}"), reasoning_parser="qwen3")
    check_answer(path, "post", client.post(path, body))


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_vectors_are_as_they_are_described(encoding: str) -> None:
    body = {"input": ["Hi", "a"], "encoding_format": encoding}
    check_answer("/v1/embeddings", "post", Client(FakeEngine(embed)).post("/v1/embeddings", body))


@pytest.mark.parametrize("phase", ["ready", "loading", "failed"])
@pytest.mark.parametrize(
    "path", [path for path, method, _ in operations() if method == "get" and "debug" not in path]
)
def test_what_is_got_is_as_it_is_described(path: str, phase: Any) -> None:
    engine = FakeEngine(status=EngineStatus(phase, "weights", 0.5))
    client = Client(engine, tokenizer_info=True)
    for name in ("tiny", "tiny-too", "nope"):
        check_answer(path, "get", client.get(path.format(name=name)))


@pytest.mark.parametrize("format", ["json", "chrome", "xml"])
def test_steps_are_as_they_are_described(format: str) -> None:
    answer = steps_client().get(f"/debug/steps?format={format}")
    check_answer("/debug/steps", "get", answer)

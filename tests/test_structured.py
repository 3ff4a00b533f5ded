"""Structured output over HTTP: what finishes keeps to its form, what can't be kept is refused."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from tests.fakes import Client, FakeEngine, events_of, say
from tests.fakes_grammar import obedient
from tests.schemas import SCHEMAS, TREE

CLIENT = obedient()
LAMP = {
    "type": "object",
    "properties": {"lit": {"type": "boolean"}, "room": {"enum": ["hall", "attic 🚀"]}},
    "required": ["lit", "room"],
    "additionalProperties": False,
}


def response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


def text_of(choice: dict[str, Any]) -> str:
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def validate(schema: dict[str, Any], text: str) -> None:
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, format_checker=FormatChecker())
    assert list(validator.iter_errors(json.loads(text))) == [], (schema, text)


def refusal(client: Client = CLIENT, **asked: Any) -> dict[str, Any]:
    answer = client.chat(**asked)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


@settings(max_examples=150, deadline=None)
@given(SCHEMAS, st.integers(0, 2**31), st.booleans())
def test_every_finished_answer_keeps_to_its_schema(
    schema: dict[str, Any], seed: int, in_chat: bool
) -> None:
    asked = {"response_format": response_format(schema), "n": 2, "seed": seed, "max_tokens": 500}
    answer = CLIENT.chat(**asked) if in_chat else CLIENT.complete(**asked)
    assert answer.status_code == 200, (schema, answer.text)
    for choice in answer.json()["choices"]:
        assert choice["finish_reason"] in ("stop", "length")
        if choice["finish_reason"] == "stop":
            validate(schema, text_of(choice))


def test_a_schema_may_refer_to_itself() -> None:
    for seed in range(20):
        answer = CLIENT.chat(response_format=response_format(TREE), seed=seed, max_tokens=400)
        [choice] = answer.json()["choices"]
        if choice["finish_reason"] == "stop":
            validate(TREE, text_of(choice))


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}|x/y"}}, "[0-9]{3}|x/y"),
        ({"structured_outputs": {"choice": ["yes", 'n"o', "é/\\"]}}, 'yes|n"o|é/\\\\'),
        ({"structured_outputs": {"grammar": 'start: "a" b+\nb: "b" | "c"'}}, "a[bc]+"),
        ({"structured_outputs": {"json": {"enum": [1, None]}}}, "1|null"),
        ({"structured_outputs": {"json": '{"enum": [1, null]}'}}, "1|null"),
        ({"structured_outputs": {"json_object": True}}, r"\{(.|\n)*\}"),
        ({"response_format": {"type": "json_object"}}, r"\{(.|\n)*\}"),
        ({"guided_regex": "[ab]{2}"}, "[ab]{2}"),
        ({"guided_choice": ["a", "ab"]}, "ab?"),
        ({"guided_grammar": 'start: "a"+'}, "a+"),
        ({"guided_json": {"type": "boolean"}}, "true|false"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_all_kinds_on_both_routes(asked: dict[str, Any], pattern: str, seed: int) -> None:
    for call in (CLIENT.chat, CLIENT.complete):
        answer = call(**asked, seed=seed, max_tokens=500)
        assert answer.status_code == 200, answer.text
        [choice] = answer.json()["choices"]
        if choice["finish_reason"] == "stop":
            assert re.fullmatch(pattern, text_of(choice))


def test_what_is_cut_says_so() -> None:
    answer = CLIENT.complete(response_format=response_format(LAMP), max_tokens=3).json()
    assert answer["choices"][0]["finish_reason"] == "length"


def test_any_text_is_as_if_nothing_was_asked() -> None:
    client = Client(FakeEngine(say("Hi")))
    assert text_of(client.chat(response_format={"type": "text"}).json()["choices"][0]) == "Hi"
    assert client.engine.submitted[0].grammar == ""


def test_the_stream_joined_is_the_whole() -> None:
    asked = {"response_format": response_format(LAMP), "seed": 3, "max_tokens": 300}
    whole = CLIENT.chat(**asked).json()["choices"][0]
    events = events_of(CLIENT.chat(**asked, stream=True))
    choices = [event["choices"][0] for event in events]
    assert "".join(c["delta"].get("content", "") for c in choices) == text_of(whole)
    assert choices[-1]["finish_reason"] == whole["finish_reason"] == "stop"


def test_whitespace_is_bounded() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    for seed in range(30):
        asked = {"response_format": response_format(schema), "seed": seed, "max_tokens": 200}
        assert not re.search(r"\s{17}", CLIENT.complete(**asked).json()["choices"][0]["text"])


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "properties": {"foo": "bar"}}, "must be an object or boolean"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "does not fetch"),
        ({"$ref": "file:///etc/passwd"}, "does not fetch"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "string", "format": "color"}, "color"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "file"}, "file"),
        ({"enum": []}, "nsatisfiable"),
        ({"minLength": 2, "maxLength": 1, "type": "string"}, "nsatisfiable"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "not"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "integer", "multipleOf": 999_983}, "multipleOf"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
    ],
)
def test_what_cant_be_kept_is_refused_with_the_reason(schema: dict[str, Any], reason: str) -> None:
    num_submitted = len(CLIENT.engine.submitted)
    error = refusal(response_format=response_format(schema))
    assert error["param"] == "response_format"
    assert reason in error["message"]
    assert len(CLIENT.engine.submitted) == num_submitted


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "x", "schema": {}}}},
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x y"}}},
            "response_format.json_schema.name",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": []}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "start: b"}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "start: %json {}"}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_requests_that_are_none_are_refused(asked: dict[str, Any], param: str) -> None:
    assert refusal(**asked)["param"] == param


@pytest.mark.parametrize(
    "other",
    [
        {"min_tokens": 2},
        {"bad_words": ["a"]},
        {"allowed_token_ids": [1]},
        {"ignore_eos": True},
        {"stop": "}"},
        {"stop_token_ids": [5]},
        {"include_stop_str_in_output": True},
    ],
)
def test_what_could_cut_or_block_an_answer_is_refused_beside_a_form(other: dict[str, Any]) -> None:
    error = refusal(response_format={"type": "json_object"}, **other)
    [name] = other
    assert error["param"] == name
    assert name in error["message"]
    assert "response_format" in error["message"]


def test_biases_and_penalties_dont_break_a_form() -> None:
    asked = {"logit_bias": {"125": -100}, "frequency_penalty": 2, "presence_penalty": 2}
    answer = CLIENT.complete(response_format=response_format(LAMP), max_tokens=500, **asked)
    validate(LAMP, text_of(answer.json()["choices"][0]))

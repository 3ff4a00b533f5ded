"""Structured output and tools on a real server, with a model too small to manage alone."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

SECONDS = 240
LAMP = {
    "type": "object",
    "properties": {"lit": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
    "required": ["lit", "room"],
    "additionalProperties": False,
}
LAMP_TOOL = {
    "type": "function",
    "function": {"name": "set_lamp", "description": "Switch a lamp", "parameters": LAMP},
}


def ask(url: str, **asked: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Is water wet?"}], "max_tokens": 120} | asked
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=SECONDS)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


@pytest.mark.slow
def test_a_schema_is_kept_by_many_at_once(url: str) -> None:
    schema = {"name": "lamp", "schema": LAMP}
    asked = {"response_format": {"type": "json_schema", "json_schema": schema}}
    with ThreadPoolExecutor(8) as pool:
        choices = list(pool.map(lambda seed: ask(url, seed=seed, **asked), range(8)))
    for choice in choices:
        assert choice["finish_reason"] == "stop"
        Draft202012Validator(LAMP).validate(json.loads(choice["message"]["content"]))


@pytest.mark.slow
def test_a_required_tool_is_called(url: str) -> None:
    asked = {"tools": [LAMP_TOOL], "tool_choice": "required", "temperature": 0}
    choice = ask(url, **asked)
    assert choice["finish_reason"] == "tool_calls"
    for call in choice["message"]["tool_calls"]:
        assert call["function"]["name"] == "set_lamp"
        Draft202012Validator(LAMP).validate(json.loads(call["function"]["arguments"]))


@pytest.mark.slow
def test_a_grammar_without_an_end_is_a_400(url: str) -> None:
    schema = {"name": "x", "schema": {"$ref": "#"}}
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=SECONDS)
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]["message"]

"""Structured output and tools on a real server, with a model too small to manage alone."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from jsonschema import Draft202012Validator
from openai.types.chat import ChatCompletionFunctionToolParam
from pydantic import BaseModel

SECONDS = 240
LAMP = {
    "type": "object",
    "properties": {"lit": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
    "required": ["lit", "room"],
    "additionalProperties": False,
}
LAMP_TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {"name": "set_lamp", "description": "Switch a lamp", "parameters": LAMP},
}


class Weather(BaseModel):
    city: str
    wet: bool
    level: int


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


@pytest.mark.slow
def test_openais_client_parses_answers_and_calls(url: str) -> None:
    with openai.OpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        timeout=SECONDS,
        _strict_response_validation=True,
    ) as client:
        model = client.models.list().data[0].id
        parsed = client.chat.completions.parse(
            model=model,
            messages=[{"role": "user", "content": "The weather in Oslo?"}],
            response_format=Weather,
            temperature=0,
            max_tokens=120,
        )
        assert isinstance(parsed.choices[0].message.parsed, Weather)
        called = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Switch on the lamp in the hall."}],
            tools=[LAMP_TOOL],
            tool_choice={"type": "function", "function": {"name": "set_lamp"}},
            parallel_tool_calls=False,
            max_tokens=120,
        )
        [call] = called.choices[0].message.tool_calls or []
        assert call.type == "function"
        again = client.chat.completions.create(
            model=model,
            messages=[
                {"role": "user", "content": "Switch on the lamp in the hall."},
                called.choices[0].message.model_dump(exclude_none=True),  # type: ignore[list-item]
                {"role": "tool", "tool_call_id": call.id, "content": "It is on."},
            ],
            tools=[LAMP_TOOL],
            max_tokens=5,
        )
        assert again.choices[0].message.content is not None

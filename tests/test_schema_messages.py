"""What clients may say of the text that a chat becomes."""

from typing import Any

import orjson
import pytest

from service.api.body import parse
from service.api.errors import ApiError
from service.api.schema_messages import ChatPrompt

MESSAGES = orjson.dumps([{"role": "user", "content": "Hi"}]).decode()


def prompt(fields: str = "{}") -> ChatPrompt:
    return parse(f'{{"messages": {MESSAGES}, {fields[1:]}'.replace(", }", "}").encode(), ChatPrompt)


def refusal(fields: str) -> dict[str, Any]:
    with pytest.raises(ApiError) as caught:
        prompt(fields)
    error: dict[str, Any] = caught.value.body["error"]
    return error


def test_a_chat_goes_on_with_its_last_message_or_after_it() -> None:
    assert prompt().begins_answer
    assert not prompt('{"add_generation_prompt": false}').begins_answer
    assert not prompt('{"continue_final_message": true}').begins_answer
    error = refusal('{"continue_final_message": true, "add_generation_prompt": true}')
    assert error["param"] == "add_generation_prompt"
    assert "continue_final_message" in error["message"]


def test_template_variables_are_bounded() -> None:
    fine = prompt('{"chat_template_kwargs": {"a": {"b": [1, null, "' + "x" * 16_000 + '"]}}}')
    assert fine.chat_template_kwargs["a"]["b"][:2] == [1, None]
    deep = "[" * 500 + "]" * 500
    for bad in ('{"a": "' + "x" * 17_000 + '"}', f'{{"a": {deep}}}', "[]", '"x"', "5"):
        error = refusal(f'{{"chat_template_kwargs": {bad}}}')
        assert error["param"] == "chat_template_kwargs"
        assert len(error["message"]) < 300

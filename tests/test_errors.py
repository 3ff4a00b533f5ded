"""Errors in OpenAI's shape, whatever goes wrong, and nothing of ours in them."""

import logging
from typing import Any

import orjson
import pytest

from service.api.errors import ApiError, as_api_error, shown
from service.engine.protocol import EngineStatus
from tests.fakes import Client, FakeEngine


def error_of(answer: Any) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def test_a_bad_parameter() -> None:
    answer = Client().chat(temperature=99)
    assert answer.status_code == 400
    assert error_of(answer) == {
        "message": "temperature is 99: input should be less than or equal to 2.",
        "type": "invalid_request_error",
        "param": "temperature",
        "code": None,
    }


def test_a_bad_parameter_of_a_stream_is_no_stream() -> None:
    answer = Client().chat(temperature=99, stream=True)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "temperature"


def test_an_unknown_model() -> None:
    answer = Client().chat(model="no-such-model")
    assert answer.status_code == 404
    error = error_of(answer)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "no-such-model" in error["message"]
    assert "tiny or tiny-too" in error["message"]


@pytest.mark.parametrize("path", ["/", "/v1/no/such", "/v1/chat/completions/", "/v1//models"])
def test_an_unknown_route(path: str) -> None:
    answer = Client().get(path)
    assert answer.status_code == 404
    assert error_of(answer)["code"] == "not_found"
    assert path in error_of(answer)["message"]


def test_a_wrong_method() -> None:
    answer = Client().get("/v1/completions")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert error_of(answer)["code"] == "method_not_allowed"


def test_a_wrong_content_type_and_a_big_body() -> None:
    client = Client(max_body_bytes=100)
    answer = client.request(
        "POST",
        "/v1/completions",
        content=b"prompt=Hi",
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert (answer.status_code, error_of(answer)["code"]) == (415, "unsupported_media_type")
    answer = client.complete(prompt="x" * 100)
    assert (answer.status_code, error_of(answer)["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("phase", ["starting", "loading", "restarting", "failed", "stopped"])
def test_an_engine_that_is_not_ready(phase: Any) -> None:
    answer = Client(FakeEngine(status=EngineStatus(phase, "at /secret/path"))).chat()
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    error = error_of(answer)
    assert (error["type"], error["code"]) == ("server_error", phase)
    assert phase in error["message"]
    assert "secret" not in error["message"]


def test_a_bug_is_logged_and_told_by_its_id_alone(caplog: pytest.LogCaptureFixture) -> None:
    def script(request: Any) -> Any:
        raise KeyError("a secret")

    answer = Client(FakeEngine(script)).chat()
    assert answer.status_code == 500
    error = error_of(answer)
    assert answer.headers["x-request-id"] in error["message"]
    assert "secret" not in answer.text
    assert "a secret" in caplog.text


def test_an_api_error_is_itself(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        error = ApiError(418, "short and stout")
        assert as_api_error(error) is error
    assert not caplog.records


def test_values_are_shown_as_json_and_not_at_length() -> None:
    assert shown(True) == "true"
    assert shown({"a": None}) == '{"a":null}'
    assert len(shown("x" * 10_000)) < 100


DEEP = b"[" * 300 + b"]" * 300
PART = b'{"messages": [{"role": "user", "content": [{"type": %s}]}]}'


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", DEEP, None),
        ("completions", b'{"prompt": %s}' % DEEP, "prompt"),
        ("completions", b'{"prompt": "Hi", "tools": %s}' % DEEP, "tools"),
        ("chat/completions", PART % DEEP, "messages[0].content"),
    ],
)
def test_a_value_too_deep_to_be_shown_is_refused_all_the_same(
    path: str, body: bytes, param: str | None
) -> None:
    headers = {"content-type": "application/json"}
    answer = Client().request("POST", f"/v1/{path}", content=body, headers=headers)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert "a deeply nested value" in error_of(answer)["message"]


@pytest.mark.parametrize(("levels", "text"), [(40, "[" * 40 + "]" * 40), (255, None), (1024, None)])
def test_values_are_shown_at_any_depth_that_is_read(levels: int, text: str | None) -> None:
    value = orjson.loads("[" * levels + "]" * levels)
    assert shown(value) == (text or "a deeply nested value")

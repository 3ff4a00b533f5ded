"""What clients may send: every name of the contract, every bound, and no crash for any JSON."""

from typing import Any, get_type_hints

import orjson
import pytest
from hypothesis import given, settings, strategies as st
from openai.types import completion_create_params as completion_params
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
    completion_create_params as chat_params,
)
from pydantic import BaseModel, ValidationError

from service.api.body import parse
from service.api.errors import ApiError
from service.api.schema import ChatRequest, CompletionRequest
from service.api.schema_generation import GenerationRequest, StreamOptions
from service.api.schema_messages import Message
from service.api.unsupported import NEUTRAL, find_unsupported

ROUTES: list[type[GenerationRequest]] = [ChatRequest, CompletionRequest]
MINIMAL: dict[type[GenerationRequest], dict[str, Any]] = {
    ChatRequest: {"messages": [{"role": "user", "content": "Hi"}]},
    CompletionRequest: {"prompt": "Hi"},
}
IGNORED_ON_PURPOSE = {
    *("metadata", "prediction", "prompt_cache_key", "prompt_cache_options"),
    *("prompt_cache_retention", "safety_identifier", "service_tier", "store", "user"),
}

# The names of the outside contract, its sections 2 to 4.
CONTRACT = {
    *("model", "stream", "stream_options", "max_tokens", "n", "stop", "logprobs", "user"),
    *("prompt", "echo", "best_of", "suffix"),
    *("messages", "max_completion_tokens", "top_logprobs", "response_format"),
    *("tools", "tool_choice", "parallel_tool_calls"),
    *("temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("stop_token_ids", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
    *("bad_words", "allowed_token_ids", "truncate_prompt_tokens", "prompt_logprobs"),
    *("return_token_ids", "add_generation_prompt", "continue_final_message"),
    *("chat_template", "chat_template_kwargs", "structured_outputs", "priority", "cache_salt"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
}
OF_THE_OTHER_ROUTE = {ChatRequest: {"prompt"}, CompletionRequest: {"messages"}}


def request(route: type[GenerationRequest], **fields: Any) -> GenerationRequest:
    return parse(orjson.dumps(MINIMAL[route] | fields), route)


def chat(**fields: Any) -> ChatRequest:
    return parse(orjson.dumps(MINIMAL[ChatRequest] | fields), ChatRequest)


def complete(**fields: Any) -> CompletionRequest:
    return parse(orjson.dumps(MINIMAL[CompletionRequest] | fields), CompletionRequest)


def refusal(route: type[GenerationRequest], **fields: Any) -> dict[str, Any]:
    with pytest.raises(ApiError) as caught:
        request(route, **fields)
    assert caught.value.status == 400
    error: dict[str, Any] = caught.value.body["error"]
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize("route", ROUTES)
def test_every_parameter_of_the_contract_is_honoured_or_refused(
    route: type[GenerationRequest],
) -> None:
    honoured = route.model_fields.keys()
    assert CONTRACT - honoured - NEUTRAL.keys() == OF_THE_OTHER_ROUTE[route]


@pytest.mark.parametrize(
    ("params", "route"),
    [
        (chat_params.CompletionCreateParamsNonStreaming, ChatRequest),
        (chat_params.CompletionCreateParamsStreaming, ChatRequest),
        (completion_params.CompletionCreateParamsNonStreaming, CompletionRequest),
        (completion_params.CompletionCreateParamsStreaming, CompletionRequest),
    ],
)
def test_every_parameter_of_openais_client_is_known(
    params: type[Any], route: type[GenerationRequest]
) -> None:
    names = get_type_hints(params).keys()
    assert names & {"model", "temperature", "stream"} == {"model", "temperature", "stream"}
    assert names <= route.model_fields.keys() | NEUTRAL.keys()


@pytest.mark.parametrize(
    ("params", "ours"),
    [
        (ChatCompletionStreamOptionsParam, StreamOptions),
        (ChatCompletionDeveloperMessageParam, Message),
        (ChatCompletionSystemMessageParam, Message),
        (ChatCompletionUserMessageParam, Message),
        (ChatCompletionAssistantMessageParam, Message),
        (ChatCompletionToolMessageParam, Message),
    ],
)
def test_every_key_of_openais_objects_is_known(params: type[Any], ours: type[BaseModel]) -> None:
    assert get_type_hints(params).keys() <= ours.model_fields.keys()


@pytest.mark.parametrize("name", sorted(IGNORED_ON_PURPOSE))
@pytest.mark.parametrize("route", ROUTES)
def test_what_changes_no_answer_may_have_any_value(
    route: type[GenerationRequest], name: str
) -> None:
    for value in ("x", 0, True, {"a": ["b"]}):
        assert request(route, **{name: value}) == request(route)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", sorted(NEUTRAL.keys() - IGNORED_ON_PURPOSE))
def test_unsupported_parameter_is_refused_by_name_unless_it_changes_nothing(
    route: type[GenerationRequest], name: str
) -> None:
    if name in route.model_fields:
        return
    for neutral in (None, *NEUTRAL[name]):
        assert request(route, **{name: neutral}) == request(route)
    error = refusal(route, **{name: "surely not"})
    assert error["param"] == name
    assert error["code"] == "unsupported_parameter"
    assert name in error["message"]
    assert "surely not" in error["message"]


@pytest.mark.parametrize(("name", "value"), [("length_penalty", True), ("use_beam_search", 0)])
def test_true_is_not_one_and_false_not_zero(name: str, value: object) -> None:
    assert find_unsupported({name: value}, CompletionRequest) == name


def test_unknown_keys_are_ignored() -> None:
    assert chat(user="me", nonsense={"a": [1]}) == chat()


@pytest.mark.parametrize("route", ROUTES)
def test_null_means_absent(route: type[GenerationRequest]) -> None:
    optional = route.model_fields.keys() - {"prompt", "messages"}
    assert request(route, **dict.fromkeys(optional)) == request(route)


INTEGERS = ["max_tokens", "min_tokens", "n", "top_k", "seed", "priority", "prompt_logprobs"]
FLOATS = [
    *("temperature", "top_p", "min_p"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
]
FLAGS = [
    *("stream", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
    *("add_special_tokens", "include_timings", "return_token_ids", "return_tokens_as_token_ids"),
    *("add_generation_prompt", "continue_final_message"),
]


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
@pytest.mark.parametrize("value", ["3", "1", True, [1], {}, ""])
def test_numbers_are_numbers(name: str, value: object) -> None:
    assert refusal(ChatRequest, **{name: value})["param"] == name


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [1.0, 0.5, 2.0**70])
def test_integers_are_written_as_integers(name: str, value: float) -> None:
    assert refusal(CompletionRequest, **{name: value})["param"] == name


@pytest.mark.parametrize("name", FLOATS)
def test_an_integer_is_fine_as_a_number(name: str) -> None:
    assert getattr(chat(**{name: 1}), name) == 1.0


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [1, 0, "true", []])
def test_flags_are_true_or_false(name: str, value: object) -> None:
    assert refusal(ChatRequest, **{name: value})["param"] == name


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("max_tokens", [1, 2**31], [-1]),
        ("min_tokens", [0, 1, 2**31], [-1, "1", 1.0, True]),
        ("n", [1, 128], [0, -1, 129, 10**9, 2**63]),
        ("temperature", [0, 2], [-0.1, 2.1, 99]),
        ("top_p", [0.1, 1], [0, -1, 1.1]),
        ("top_k", [-1, 0, 10**7], [-2]),
        ("min_p", [0, 1], [-0.1, 1.1]),
        ("repetition_penalty", [1e-300, 0.001, 1, 101], [0, -1, "1"]),
        ("frequency_penalty", [-2, 0, 2], [-2.1, 2.1, True]),
        ("presence_penalty", [-2, 0, 2], [-2.1, 2.1, [1]]),
        (
            "logit_bias",
            [{}, {"0": -100, "1234567890": 100.0}, dict.fromkeys(map(str, range(1024)), 1)],
            [
                *({"a": 1}, {"-1": 1}, {"1.0": 1}, {" 1": 1}, {"01": 1}, {"1" * 11: 1}, {"": 1}),
                *({"1": 101}, {"1": "1"}, {"1": None}, {"1": True}, [1, 2], "1"),
                dict.fromkeys(map(str, range(1025)), 1),
            ],
        ),
        ("bad_words", [[], ["x"] * 64, ["x" * 64]], [[""], ["x"] * 65, ["x" * 65], [1], "x"]),
        ("allowed_token_ids", [[0], [1, 2]], [[], [-1], ["1"], [True], [1.0], 1]),
        ("truncate_prompt_tokens", [-1, 1, 2**31], [0, -2, "1", 1.0]),
        ("prompt_logprobs", [0, 20], [-1, 21, True, "1", 49152]),
        ("seed", [-(2**63), 0, 2**63 - 1], [2**63]),
        ("stop", [[], "a", ["a"] * 16, "a" * 256], ["", [""], ["a"] * 17, "a" * 257, [1], 7]),
        ("stop_token_ids", [[], [0, 2]], [[-1], ["a"], 5]),
        ("priority", [-(2**31), 0, 2**31 - 1], [-(2**31) - 1, 2**31, 2**63]),
        ("cache_salt", ["x", "é" * 256], ["", "x" * 257, 5, ["x"]]),
        ("model", ["x"], [5, ["x"]]),
    ],
)
@pytest.mark.parametrize("route", ROUTES)
def test_bounds_of_both_routes(
    route: type[GenerationRequest], name: str, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        request(route, **{name: value})
    for value in bad:
        assert refusal(route, **{name: value})["param"].startswith(name)


def test_bounds_of_completions_logprobs() -> None:
    assert complete(logprobs=0).num_logprobs == 0
    assert complete(logprobs=20).num_logprobs == 20
    assert complete().num_logprobs is None
    for bad in (-1, 21, True, "1"):
        assert refusal(CompletionRequest, logprobs=bad)["param"] == "logprobs"


def test_bounds_of_chat_logprobs() -> None:
    assert chat(logprobs=True).num_logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).num_logprobs == 20
    assert chat(top_logprobs=0).num_logprobs is None
    for bad in (-1, 21, 49152, True):
        assert refusal(ChatRequest, logprobs=True, top_logprobs=bad)["param"] == "top_logprobs"
    assert "logprobs: true" in refusal(ChatRequest, top_logprobs=3)["message"]
    assert refusal(ChatRequest, logprobs=1)["param"] == "logprobs"


def test_the_first_of_many_mistakes_is_enough() -> None:
    """All of a million would take seconds."""
    lists = {"stop": "", "stop_token_ids": -1, "allowed_token_ids": -1, "bad_words": ""}
    for name, bad in (lists | {"messages": None}).items():
        with pytest.raises(ValidationError) as caught:
            ChatRequest.model_validate(MINIMAL[ChatRequest] | {name: [bad] * 10_000})
        assert caught.value.error_count() == 1


def test_one_stop_string_is_a_list_of_one() -> None:
    assert chat(stop="END").stop == ["END"]


def test_stream_options_are_of_streams_only() -> None:
    assert refusal(ChatRequest, stream_options={})["param"] == "stream_options"
    asked = chat(stream=True, stream_options={"include_usage": True})
    assert asked.stream_options is not None
    assert asked.stream_options.include_usage
    bad = refusal(ChatRequest, stream=True, stream_options={"include_usage": 1})
    assert bad["param"] == "stream_options.include_usage"


def test_the_newer_name_of_the_limit_wins() -> None:
    assert chat(max_tokens=5).token_limit == 5
    assert chat(max_tokens=5, max_completion_tokens=3).token_limit == 3
    assert chat().token_limit is None
    assert complete().token_limit == 16


def test_best_of_is_n_or_more() -> None:
    assert complete(n=2).num_drawn == 2
    assert complete(best_of=3, n=2).num_drawn == 3
    assert complete(best_of=2, n=2, stream=True).num_drawn == 2
    for bad in ({"best_of": 1, "n": 2}, {"best_of": 129}, {"best_of": 2, "stream": True}):
        assert refusal(CompletionRequest, **bad)["param"] == "best_of"
    error = refusal(CompletionRequest, prompt=["a"] * 100, best_of=3)
    assert "is 300" in error["message"]
    assert refusal(ChatRequest, best_of=2)["code"] == "unsupported_parameter"


def test_only_completions_may_generate_nothing() -> None:
    assert complete(max_tokens=0).token_limit == 0
    assert refusal(ChatRequest, max_tokens=0)["param"] == "max_tokens"
    assert refusal(ChatRequest, max_completion_tokens=0)["param"] == "max_completion_tokens"


@pytest.mark.parametrize(
    ("fields", "num_scored"),
    [
        ({}, None),
        ({"logprobs": 3}, None),
        ({"echo": True}, None),
        ({"echo": True, "logprobs": 3}, 3),
        ({"prompt_logprobs": 0}, 0),
        ({"prompt_logprobs": 5, "echo": True, "logprobs": 3}, 5),
        ({"echo": True, "max_tokens": 0}, 0),
        ({"echo": True, "max_tokens": 0, "logprobs": 1}, 1),
        ({"max_tokens": 0}, None),
    ],
)
def test_prompts_are_scored_where_their_logprobs_are_shown(
    fields: dict[str, Any], num_scored: int | None
) -> None:
    assert complete(**fields).num_scored == num_scored


def test_prompt_logprobs_are_of_whole_answers() -> None:
    assert chat(prompt_logprobs=1).num_scored == 1
    for route in ROUTES:
        assert refusal(route, prompt_logprobs=1, stream=True)["param"] == "prompt_logprobs"


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("Hi", ["Hi"]),
        (["Hi", "you"], ["Hi", "you"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_forms_of_prompts(given: Any, prompts: list[Any]) -> None:
    assert complete(prompt=given).prompt == prompts


@pytest.mark.parametrize(
    "given",
    ["", [], [[]], [""], ["Hi", ""], [[1], []], {"a": 1}, 5, [1, "two", [3]], [-1], [True], [1.0]],
)
def test_empty_and_mixed_prompts_are_refused(given: Any) -> None:
    assert refusal(CompletionRequest, prompt=given)["param"] == "prompt"


def test_number_of_prompts_and_choices_is_bounded() -> None:
    complete(prompt=["a"] * 128, n=2)
    assert "129 prompts" in refusal(CompletionRequest, prompt=["a"] * 129)["message"]
    assert "is 258" in refusal(CompletionRequest, prompt=["a"] * 86, n=3)["message"]


def test_required_parameters_are_named() -> None:
    for route, name in ((ChatRequest, "messages"), (CompletionRequest, "prompt")):
        for body in (b"{}", orjson.dumps({name: None})):
            with pytest.raises(ApiError, match=f"{name} is required"):
                parse(body, route)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hi", "messages"),
        ([{"content": "Hi"}], "messages[0].role"),
        ([{"role": "wizard", "content": "Hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        (["Hi"], "messages[0]"),
        ([{"role": "user", "content": "Hi"}] * 5000, "messages"),
    ],
)
def test_bad_messages_are_refused_where_they_are(messages: Any, param: str) -> None:
    assert refusal(ChatRequest, messages=messages)["param"] == param


def message(**fields: Any) -> Message:
    return chat(messages=[fields]).messages[0]


def test_text_parts_are_joined_line_by_line() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert message(role="user", content=parts).for_template()["content"] == "one\ntwo"


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image_url", "image_url": {}}, "image_url"),
        ({"type": "text"}, "string"),
        ({"type": "text", "text": 5}, "string"),
        ({"text": "no type"}, "type"),
        ("Hi", "object"),
    ],
)
def test_other_parts_are_refused(part: Any, said: str) -> None:
    error = refusal(ChatRequest, messages=[{"role": "user", "content": [part]}])
    assert error["param"] == "messages[0].content"
    assert said in error["message"]


def test_what_a_template_sees_of_a_message() -> None:
    assert message(role="developer", content="Be brief", name="boss").for_template() == {
        "role": "system",
        "content": "Be brief",
        "name": "boss",
    }
    assert message(role="assistant").for_template() == {"role": "assistant", "content": ""}
    assert message(role="tool", content="42", tool_call_id="a").for_template() == {
        "role": "tool",
        "content": "42",
        "tool_call_id": "a",
    }


@pytest.mark.parametrize(
    ("name", "empty", "value"),
    [
        ("audio", None, {"id": "a"}),
        ("function_call", None, {"name": "f", "arguments": "{}"}),
        ("refusal", "", "No."),
        ("tools", [], [{"type": "function"}]),
    ],
)
def test_what_no_template_is_given_yet_is_refused(name: str, empty: Any, value: Any) -> None:
    assert message(role="assistant", content="x", **{name: empty}).content == "x"
    error = refusal(ChatRequest, messages=[{"role": "assistant", "content": "x", name: value}])
    assert error["param"] == f"messages[0].{name}"
    assert error["code"] == "unsupported_parameter"


def test_obfuscation_of_streams_is_refused() -> None:
    assert chat(stream=True, stream_options={"include_obfuscation": False}).stream_options
    error = refusal(ChatRequest, stream=True, stream_options={"include_obfuscation": True})
    assert error["param"] == "stream_options.include_obfuscation"
    assert error["code"] == "unsupported_parameter"


TEXT = st.text(alphabet='a0 {"\\\0\né🚀', max_size=10)  # an alphabet of all of Unicode loads slowly
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def size_of_answer(body: bytes, route: type[GenerationRequest]) -> int:
    try:
        parse(body, route)
    except ApiError as error:
        return len(orjson.dumps(error.body))
    return 0


@settings(max_examples=100)
@given(
    fields=st.dictionaries(st.sampled_from(sorted(CONTRACT)), JSON, max_size=4),
    route=st.sampled_from(ROUTES),
)
def test_whatever_is_sent_is_taken_or_refused_briefly(
    fields: dict[str, Any], route: type[GenerationRequest]
) -> None:
    assert size_of_answer(orjson.dumps(MINIMAL[route] | fields), route) < 1000

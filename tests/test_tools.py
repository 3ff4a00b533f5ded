"""Tools over HTTP: what is offered, what is called, and how it is told, whole and streamed."""

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator

from service.text.chat_template import ChatTemplate
from service.text.model import TextModel
from service.text.tool_format import FORMATS
from tests.fakes import Client, FakeEngine, events_of, make_text, say
from tests.fakes_grammar import obedient, roomy, specially_obedient
from tests.schemas import SCHEMAS

CLIENT = obedient()
LAMP = {
    "type": "object",
    "properties": {"lit": {"type": "boolean"}, "room": {"$ref": "#/$defs/room"}},
    "required": ["lit", "room"],
    "additionalProperties": False,
    "$defs": {"room": {"type": "string", "enum": ["kitchen", "hall 🚀"]}},
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "parameters": parameters, **more}
    return {"type": "function", "function": function}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


TOOLS = [tool("set_lamp", LAMP, description="Switch a lamp"), tool("set"), tool("now")]
SCHEMA_OF = {"set_lamp": LAMP, "set": NOTHING, "now": NOTHING}
TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: "
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}{% endfor %}|{% endfor %}"
)


def client_with(template: str, script: Any = None, **config: Any) -> Client:
    tokenizer = make_text().tokenizer
    text = TextModel(tokenizer, ChatTemplate(template), {})
    return Client(FakeEngine(script or say("Hi")), text=text, **config)


def prompt_of(client: Client) -> str:
    ids = client.engine.submitted[-1].prompt_ids
    return make_text().tokenizer.decode(ids, skip_special_tokens=False)


def check_calls(choice: dict[str, Any], schemas: dict[str, Any]) -> None:
    calls = choice["message"]["tool_calls"]
    assert len({call["id"] for call in calls}) == len(calls)
    for call in calls:
        assert call["type"] == "function"
        assert call["id"].startswith("call_")
        schema = schemas[call["function"]["name"]]
        arguments = json.loads(call["function"]["arguments"])
        assert list(Draft202012Validator(schema).iter_errors(arguments)) == []


def joined(events: list[Any]) -> dict[str, Any]:
    """The message that a client makes of a stream's deltas."""
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    for event in events:
        delta = event["choices"][0]["delta"]
        message["content"] += delta.get("content", "")
        for piece in delta.get("tool_calls", ()):
            if "id" in piece:
                assert piece["index"] == len(message["tool_calls"])
                assert piece["function"]["arguments"] == ""
                message["tool_calls"].append({"name": piece["function"]["name"], "arguments": ""})
            else:
                assert list(piece) == ["index", "function"]
                call = message["tool_calls"][piece["index"]]
                call["arguments"] += piece["function"]["arguments"]
    return message


@pytest.mark.parametrize("parser", FORMATS)
@pytest.mark.parametrize("choice", ["required", "auto", named("set_lamp"), named("set")])
@pytest.mark.parametrize("parallel", [True, False])
def test_calls_keep_to_their_schemas(parser: str, choice: Any, parallel: bool) -> None:
    client = obedient(1, tool_parser=parser)
    num_calls = set()
    for seed in range(8):
        asked = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel}
        answer = client.chat(**asked, seed=seed, max_tokens=2000).json()["choices"][0]
        message = answer["message"]
        if choice == "auto" and "tool_calls" not in message:
            assert answer["finish_reason"] in ("stop", "length")
            continue
        num_calls.add(len(message["tool_calls"]))
        if answer["finish_reason"] == "tool_calls":
            assert message["content"] is None or choice == "auto"
            check_ids = {**answer, "message": {**message, "tool_calls": with_ids(message)}}
            check_calls(check_ids, SCHEMA_OF)
        if isinstance(choice, dict):
            names = {call["function"]["name"] for call in message["tool_calls"]}
            assert names == {choice["function"]["name"]}
    calls_often = parallel and not isinstance(choice, dict)
    assert calls_often or num_calls <= {1}


def with_ids(message: dict[str, Any]) -> list[Any]:
    """Ids of Mistral's templates are nine letters and digits."""
    return [
        {**call, "id": "call_" + call["id"]} if len(call["id"]) == 9 else call
        for call in message["tool_calls"]
    ]


@settings(max_examples=60, deadline=None)
@given(SCHEMAS, st.integers(0, 2**31))
def test_any_schema_of_arguments_is_kept(schema: dict[str, Any], seed: int) -> None:
    asked = {"tools": [tool("f", schema, strict=True)], "tool_choice": "required"}
    answer = CLIENT.chat(**asked, seed=seed, max_tokens=600, parallel_tool_calls=False)
    [choice] = answer.json()["choices"]
    if choice["finish_reason"] == "tool_calls":
        check_calls(choice, {"f": schema})


@pytest.mark.parametrize("parser", FORMATS)
def test_the_stream_joined_is_the_whole(parser: str) -> None:
    client = obedient(2, tool_parser=parser)
    for seed in range(6):
        asked = {"tools": TOOLS, "tool_choice": "required", "seed": seed, "max_tokens": 900}
        whole = client.chat(**asked).json()["choices"][0]
        events = events_of(client.chat(**asked, stream=True))
        calls = [call["function"] for call in whole["message"]["tool_calls"]]
        assert joined(events) == {"content": whole["message"]["content"] or "", "tool_calls": calls}
        assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_choices_call_each_for_itself() -> None:
    answer = CLIENT.chat(tools=TOOLS, tool_choice="required", n=3, max_tokens=2000).json()
    ids = [call["id"] for c in answer["choices"] for call in c["message"]["tool_calls"]]
    assert len(answer["choices"]) == 3
    assert len(set(ids)) == len(ids) >= 3


CALL = '<tool_call>\n{"name": "set_lamp", "arguments": {"lit": true}}\n</tool_call>'


def test_text_and_calls() -> None:
    client = roomy(say(f"I do.\n{CALL}"))
    answer = client.chat(tools=[tool("set_lamp")]).json()["choices"][0]
    assert answer["message"]["content"] == "I do."
    [call] = answer["message"]["tool_calls"]
    assert call["function"] == {"name": "set_lamp", "arguments": '{"lit": true}'}
    assert answer["finish_reason"] == "tool_calls"


def test_cut_calls_are_of_length() -> None:
    client = roomy(say(CALL[:-13], finish_reason="length"))
    answer = client.chat(tools=[tool("set_lamp")]).json()["choices"][0]
    assert answer["finish_reason"] == "length"
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == '{"lit": true}'


def test_stops_are_looked_for_in_the_content_alone() -> None:
    client = roomy(say(f"One. Two.{CALL}"))
    answer = client.chat(tools=[tool("set_lamp")], stop="lit").json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    answer = client.chat(tools=[tool("set_lamp")], stop="Two").json()["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == ("One. ", "stop")


def test_logprobs_and_ids_come_with_calls() -> None:
    client = roomy(say(f"I{CALL}"))
    asked = {"tools": [tool("set_lamp")], "logprobs": True, "return_token_ids": True}
    whole = client.chat(**asked).json()["choices"][0]
    events = events_of(client.chat(**asked, stream=True))
    choices = [event["choices"][0] for event in events]
    ids = [id_ for choice in choices for id_ in choice.get("token_ids", ())]
    entries = [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
    assert ids == whole["token_ids"]
    assert entries == whole["logprobs"]["content"]


def test_no_tools_are_offered_where_none_may_be_called() -> None:
    client = roomy(say(CALL))
    answer = client.chat(tools=TOOLS, tool_choice="none").json()["choices"][0]
    assert answer["message"]["content"] == CALL
    assert "tool_calls" not in answer["message"]
    assert "set_lamp" not in prompt_of(client)
    assert client.engine.submitted[0].grammar == ""


def test_a_template_that_knows_no_tools_is_given_a_prompt() -> None:
    client = obedient()
    system = {"role": "system", "content": "Be brief."}
    client.chat(messages=[system, {"role": "user", "content": "Hi"}], tools=TOOLS)
    prompt = prompt_of(client)
    assert prompt.startswith("<|start|>system\nBe brief.\n\nYou may call")
    assert '"name": "set_lamp", "description": "Switch a lamp"' in prompt
    client.chat(tools=TOOLS)
    assert prompt_of(client).startswith("<|start|>system\nYou may call")


HISTORY = [
    {"role": "user", "content": "Light?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "now", "arguments": '{"x": 1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "dark"},
]


def test_a_template_that_knows_no_tools_reads_calls_as_text() -> None:
    client = Client()
    client.chat(messages=HISTORY)
    call = '<tool_call>\n{"name": "now", "arguments": {"x": 1}}\n</tool_call>'
    assert prompt_of(client) == (
        f"<|start|>user\nLight?<|end|><|start|>assistant\n{call}<|end|>"
        "<|start|>user\n<tool_response>\ndark\n</tool_response><|end|><|start|>assistant\n"
    )


def test_a_template_is_given_tools_and_calls() -> None:
    client = client_with(TOOL_TEMPLATE)
    client.chat(messages=HISTORY)
    assert prompt_of(client) == 'user: Light?|assistant: a now {"x": 1}|tool: dark|'
    client.chat(tools=[tool("f")], tool_choice="auto")
    tools = [tool("f", {"type": "object", "properties": {}})]
    assert prompt_of(client) == f"{json.dumps(tools)}user: Hi|"


def test_arguments_are_text_where_the_template_wants_text() -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ 'tools: ' + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    client = client_with(template)
    client.chat(messages=HISTORY)
    assert prompt_of(client) == 'tools: {"x": 1}'


def test_arguments_that_are_no_object_stay_as_they_are() -> None:
    client = client_with(TOOL_TEMPLATE)
    for arguments in ("{", "[1]"):
        function: dict[str, Any] = {"name": "f", "arguments": arguments}
        call = {"role": "assistant", "tool_calls": [{"function": function}]}
        client.chat(messages=[call])
        assert json.dumps(arguments) in prompt_of(client)
    function = {"name": "f", "arguments": {"a": 1}}
    client.chat(messages=[{"role": "assistant", "tool_calls": [{"function": function}]}])
    assert '{"a": 1}' in prompt_of(client)


def test_what_the_template_refuses_is_refused_once_with_the_first_reason() -> None:
    template = "{{ raise_exception('no ' ~ messages[0].tool_calls[0].function.arguments) }} tools"
    function = {"name": "f", "arguments": {"a": 1}}
    answer = client_with(template).chat(
        messages=[{"role": "assistant", "tool_calls": [{"function": function}]}]
    )
    assert answer.status_code == 400
    assert "no {'a': 1}" in answer.json()["error"]["message"]


def test_content_follows_its_schema_where_nothing_is_called() -> None:
    asked = {"tools": TOOLS, "response_format": {"type": "json_object"}, "max_tokens": 900}
    kinds = set()
    for seed in range(20):
        choice = CLIENT.chat(**asked, seed=seed).json()["choices"][0]
        kinds.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
        if choice["finish_reason"] == "tool_calls":
            check_calls(choice, SCHEMA_OF)
    assert "tool_calls" in kinds
    assert "stop" in kinds
    choice = CLIENT.chat(**asked, tool_choice="required").json()["choices"][0]
    assert choice["message"]["tool_calls"]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("a"), tool("a")]}, "tools"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools"),
        ({"tools": [tool("a", {"type": "string"})]}, "tools[0].function.parameters"),
        (
            {"tools": [tool("b"), tool("a", {"properties": {"x": 1}})]},
            "tools[1].function.parameters",
        ),
        (
            {"tools": [tool("a", {"not": {}}, strict=True)]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": named("nope")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": TOOLS, "min_tokens": 3}, "min_tokens"),
        ({"tools": TOOLS, "stop_token_ids": [3]}, "stop_token_ids"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"messages": [{"role": "user", "content": "", "tool_calls": [{}]}]}, None),
    ],
)
def test_requests_that_are_none_are_refused(asked: dict[str, Any], param: str | None) -> None:
    answer = CLIENT.chat(**asked)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert param is None or error["param"] == param


def test_tools_may_be_too_many_together() -> None:
    schema = {"enum": [f"value {i}" for i in range(300)]}
    tools = [tool(f"f{i}", {"properties": {"a": schema}}) for i in range(30)]
    error = CLIENT.chat(tools=tools).json()["error"]
    assert error["param"] == "tools"
    assert "65536 characters" in error["message"]


def test_only_assistants_call() -> None:
    call = {"function": {"name": "f"}}
    answer = CLIENT.chat(messages=[{"role": "user", "content": "", "tool_calls": [call]}])
    assert answer.json()["error"]["param"] == "messages[0].tool_calls"


def test_older_forms_advise() -> None:
    assert "tool_choice" in CLIENT.chat(functions=[{"name": "f"}]).json()["error"]["message"]
    assert CLIENT.chat(functions=[], function_call="none").status_code == 200


def test_what_cant_be_enforced_of_a_schema_only_advises_unless_it_is_strict() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    answer = CLIENT.chat(tools=[tool("f", schema)], tool_choice="required", max_tokens=900)
    assert answer.status_code == 200


def test_a_model_without_a_mark_for_calls_takes_tools_or_a_form() -> None:
    client = obedient(tool_parser="json")
    answer = client.chat(tools=TOOLS, response_format={"type": "json_object"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize("parser", ["hermes", "mistral", "mistral_v11", "llama3_json"])
def test_marks_may_be_control_tokens(parser: str) -> None:
    client = specially_obedient(tool_parser=parser, reasoning_parser="qwen3")
    asked = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 900}
    choice = client.chat(**asked, tool_choice="required").json()["choices"][0]
    assert choice["finish_reason"] in ("tool_calls", "length")
    client.chat(**asked)
    required, optional = (request.grammar for request in client.engine.submitted)
    format = FORMATS[parser]
    mark = client.app.state.served.serving().format.token_ids[format.begin or format.tag]
    assert f"<[{mark}]>" in optional
    assert (f"<[{mark}]>" in required) == (parser != "llama3_json")


def test_names_may_come_first_with_an_id_behind_them() -> None:
    """What the model drew is read as calls, token by token, though its marks are no text."""
    client = specially_obedient(tool_parser="mistral_v11")
    asked = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 2000, "logprobs": True}
    token_ids = client.app.state.served.serving().format.token_ids
    num_ids = 0
    for seed in range(8):
        choice = client.chat(**asked, seed=seed, return_token_ids=True).json()["choices"][0]
        if choice["finish_reason"] == "tool_calls":
            check_calls({"message": {"tool_calls": with_ids(choice["message"])}}, SCHEMA_OF)
            drawn = choice["token_ids"]
            assert drawn.count(token_ids["[ARGS]"]) == len(choice["message"]["tool_calls"])
            num_ids += drawn.count(token_ids["[CALL_ID]"])
    assert num_ids > 0

"""Thoughts told apart from answers: by text, over HTTP, and before what a grammar asks for."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from service.config import REASONING_PARSERS
from service.engine.messages import Event, FinishReason, Request
from service.text.chat_template import ChatTemplate
from service.text.model import TextModel
from service.text.reasoning import FORMATS, Place, ReasoningParser, find_format
from tests.fakes import END, Client, events_of, make_text, say
from tests.fakes_grammar import obedient, roomy, specially_obedient, start, with_special_marks

CASES: list[tuple[Place, str, str, str]] = [
    ("before", "<think>\nhm  \n</think>\n\nyes ", "hm", "yes "),
    ("before", "<thin", "", "<thin"),
    ("before", " yes", "", " yes"),
    ("before", "<think>", "", ""),
    ("before", "no <think>x</think>", "", "no <think>x</think>"),
    ("inside", "\nhm </thin</think>", "hm </thin", ""),
    ("inside", "hm </think", "hm </think", ""),
    ("inside", "hm</think>\n<think>", "hm", "<think>"),
    ("after", " yes </think>", "", " yes </think>"),
]


def parse(place: Place, pieces: list[str]) -> tuple[str, str]:
    parser = ReasoningParser(FORMATS["qwen3"], place)
    told = [*map(parser.push, pieces), parser.flush()]
    return "".join(thoughts for thoughts, _ in told), "".join(answer for _, answer in told)


@pytest.mark.parametrize(("place", "text", "thoughts", "answer"), CASES)
def test_thoughts_are_found(place: Place, text: str, thoughts: str, answer: str) -> None:
    assert parse(place, [text]) == (thoughts, answer)
    assert parse(place, list(text)) == (thoughts, answer)


@given(
    st.sampled_from(["before", "inside", "after"]),
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/think>", " ", "\n", "x", "<th"])),
)
def test_any_split_is_told_the_same(place: Place, pieces: list[str]) -> None:
    text = "".join(pieces)
    assert parse(place, pieces) == parse(place, [text]) == parse(place, list(text))


@pytest.mark.parametrize(
    ("template", "name"),
    [("{{ messages }}", None), ("<think>x</think>", "qwen3"), ("[THINK]", "mistral")],
)
def test_the_template_says_which_format(template: str, name: str | None) -> None:
    assert find_format("auto", template) is (FORMATS[name] if name else None)
    assert find_format("none", template) is None
    assert find_format("deepseek_r1", template) is FORMATS["deepseek_r1"]


def test_all_formats_can_be_asked_for() -> None:
    assert ("auto", "none", *FORMATS) == REASONING_PARSERS


@pytest.mark.parametrize(
    ("name", "prompt", "begins", "place"),
    [
        ("qwen3", "assistant\n", True, "before"),
        ("qwen3", "assistant\n<think>\n", True, "inside"),
        ("qwen3", "<think>\n\n</think>\n\n", True, "after"),
        ("deepseek_r1", "assistant\n", True, "inside"),
        ("deepseek_r1", "I was say", False, "before"),
    ],
)
def test_the_prompt_says_where_an_answer_begins(
    name: str, prompt: str, begins: bool, place: Place
) -> None:
    assert FORMATS[name].place(prompt, begins=begins) == place


def thinking(text: str, **config: Any) -> Client:
    return roomy(say(text), **{"reasoning_parser": "qwen3"} | config)


def test_thoughts_are_told_under_both_names() -> None:
    client = thinking("<think>Hm.</think>\nYes.")
    message = client.chat().json()["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "Yes.",
        "refusal": None,
        "reasoning_content": "Hm.",
        "reasoning": "Hm.",
    }
    deltas = [event["choices"][0]["delta"] for event in events_of(client.chat(stream=True))]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."


def test_thoughts_alone_are_no_content() -> None:
    client = thinking("<think>Hm.")
    choice = client.chat().json()["choices"][0]
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning"] == "Hm."


def test_thoughts_are_left_out_where_nobody_wants_them() -> None:
    client = thinking("<think>Hm.</think>Yes.")
    asked = {"include_reasoning": False, "return_token_ids": True}
    choice = client.chat(**asked).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Yes.", "refusal": None}
    events = events_of(client.chat(**asked, stream=True))
    choices = [event["choices"][0] for event in events]
    assert "".join(c["delta"].get("content", "") for c in choices) == "Yes."
    assert not any("reasoning" in c["delta"] for c in choices)
    assert [i for c in choices for i in c.get("token_ids", ())] == choice["token_ids"]


def test_without_a_parser_all_is_content() -> None:
    client = thinking("<think>Hm.</think>Yes.", reasoning_parser="none")
    assert client.chat().json()["choices"][0]["message"]["content"] == "<think>Hm.</think>Yes."


def test_stops_are_looked_for_in_the_content_alone() -> None:
    client = thinking("<think>A stop.</think>Yes. A stop.")
    choice = client.chat(stop="stop").json()["choices"][0]
    assert choice["message"]["content"] == "Yes. A "
    assert choice["message"]["reasoning"] == "A stop."


def test_the_template_finds_the_format_and_opens_thoughts() -> None:
    template = "{{ messages[0].content }}</think><think>\n"
    text = TextModel(make_text().tokenizer, ChatTemplate(template), {})
    client = roomy(say("Hm.</think>Yes."), text=text)
    message = client.chat().json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Hm.", "Yes.")


@pytest.mark.parametrize("parser", ["qwen3", "deepseek_r1", "mistral"])
def test_a_form_holds_behind_the_thoughts(parser: str) -> None:
    client = obedient(3, reasoning_parser=parser)
    asked = {"response_format": {"type": "json_object"}, "max_tokens": 300}
    for seed in range(4):
        choice = client.chat(**asked, seed=seed).json()["choices"][0]
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
    [grammar] = {request.grammar for request in client.engine.submitted}
    opening = {"qwen3": "<think>x", "deepseek_r1": "x", "mistral": "[THINK]x"}[parser]
    start(grammar, f"{opening}{FORMATS[parser].end}\n{{}}")


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_come_behind_the_thoughts(choice: str) -> None:
    client = obedient(4, reasoning_parser="qwen3")
    tools = [{"type": "function", "function": {"name": "now"}}]
    client.chat(tools=tools, tool_choice=choice, max_tokens=50)
    grammar = client.engine.submitted[0].grammar
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for text in (call, f"<think>Hm </think>\n{call}"):
        start(grammar, text)


def test_both_names_are_taken_in_the_history() -> None:
    template = "{% for m in messages %}[{{ m.reasoning_content }}]{% endfor %}"
    text = TextModel(make_text().tokenizer, ChatTemplate(template), {})
    client = roomy(say("Hi"), text=text)
    client.chat(
        messages=[
            {"role": "assistant", "content": "a", "reasoning": "one"},
            {"role": "assistant", "content": "b", "reasoning_content": "two"},
        ]
    )
    ids = client.engine.submitted[0].prompt_ids
    assert make_text().tokenizer.decode(ids) == "[one][two]"


def test_marks_may_be_control_tokens() -> None:
    text = with_special_marks()
    begin, end = (text.tokenizer.mark_ids[mark] for mark in ("[THINK]", "[/THINK]"))
    ids = [begin, *b"Hm.", end, *b"Yes.", END]

    def script(request: Request) -> Iterator[Event]:
        for token_id in ids:
            reason: FinishReason | None = "stop" if token_id == END else None
            yield Event(request_id=request.id, token_ids=[token_id], finish_reason=reason)

    client = roomy(script, text=text, reasoning_parser="mistral")
    message = client.chat().json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Hm.", "Yes.")
    obedient_client = specially_obedient(reasoning_parser="mistral")
    obedient_client.chat(response_format={"type": "json_object"}, max_tokens=20)
    [request] = obedient_client.engine.submitted
    assert f"<[{begin}]>" in request.grammar
    assert f"<[{end}]>" in request.grammar

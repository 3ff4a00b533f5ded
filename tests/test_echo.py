"""Completions that begin with their prompt, and those that only score it."""

from collections.abc import Iterator
from typing import Any

import pytest

from service.engine.messages import Event, Request
from tests.fakes import START, Client, FakeEngine, events_of, make_text, say


def complete(text: str = " you", **body: Any) -> Any:
    answer = Client(FakeEngine(say(text, finish_reason="length"))).complete(echo=True, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("prompt", ["Hi", "é🚀 <|start|>!", [*"é".encode()]])
def test_the_text_begins_with_the_prompt(prompt: Any) -> None:
    given = prompt if isinstance(prompt, str) else bytes(prompt).decode()
    answer = complete(prompt=prompt)
    assert answer["choices"][0]["text"] == f"{given} you"
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 4


def test_each_choice_begins_with_its_own_prompt() -> None:
    choices = complete(prompt=["a", "bc"], n=2)["choices"]
    assert [choice["text"] for choice in choices] == ["a you", "a you", "bc you", "bc you"]


def test_what_is_truncated_is_not_echoed() -> None:
    answer = complete(prompt=["one two", [*b"three"]], truncate_prompt_tokens=3)
    assert [choice["text"] for choice in answer["choices"]] == ["two you", "ree you"]
    assert answer["usage"]["prompt_tokens"] == 6


def test_logprobs_are_of_the_prompt_too() -> None:
    choice = complete("b", prompt="é!", logprobs=1)["choices"][0]
    assert choice["logprobs"] == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa9", "!", "b"],
        "token_logprobs": [None, -0.25 * 0xA9, -0.25 * 0x21, -0.5],
        "top_logprobs": [
            None,
            {"a": -1.0, "bytes:\\xa9": -0.25 * 0xA9},
            {"a": -1.0, "!": -0.25 * 0x21},
            {"b": -0.5},
        ],
        "text_offset": [0, 0, 1, 2],
    }
    text, offsets = choice["text"], choice["logprobs"]["text_offset"]
    assert (text, text[offsets[-1] :]) == ("é!b", "b")


def test_the_stream_begins_with_the_prompt() -> None:
    client = Client(FakeEngine(say(" you")))
    prompts = ["Hi", "é"]
    asked = {"prompt": prompts, "echo": True, "logprobs": 1}
    whole = client.complete(**asked).json()["choices"]
    chunks = [event["choices"][0] for event in events_of(client.complete(stream=True, **asked))]
    for index, choice in enumerate(whole):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert own[0]["text"].startswith(prompts[index])
        assert "".join(chunk["text"] for chunk in own) == choice["text"]
        parts = [chunk["logprobs"] for chunk in own if chunk["logprobs"] is not None]
        for key, values in choice["logprobs"].items():
            assert [value for part in parts for value in part[key]] == values


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_scoring_generates_nothing(stream: bool, logprobs: int | None) -> None:
    client = Client()
    asked = {"echo": True, "max_tokens": 0, "logprobs": logprobs, "stream": stream}
    answer = client.complete(**asked, stream_options={"include_usage": True} if stream else None)
    assert client.engine.submitted[0].num_prompt_logprobs == (logprobs or 0)
    if stream:
        text, end, usage = events_of(answer)
        choice = text["choices"][0] | {"finish_reason": end["choices"][0]["finish_reason"]}
    else:
        usage = answer.json()
        choice = usage["choices"][0]
    assert usage["usage"]["completion_tokens"] == 0
    assert (choice["text"], choice["finish_reason"]) == ("Hi", "length")
    if logprobs is None:
        assert choice["logprobs"] is None
    else:
        assert choice["logprobs"]["token_logprobs"] == [None, -0.25 * ord("i")]


def test_a_stop_string_in_the_prompt_ends_nothing() -> None:
    assert complete("a#b", prompt="x#y", stop="#")["choices"][0]["text"] == "x#ya"


def test_the_token_that_begins_all_texts_is_not_echoed() -> None:
    client = Client(FakeEngine(say("!", finish_reason="length")), text=make_text(bos_id=START))
    choice = client.complete(echo=True, logprobs=0).json()["choices"][0]
    assert client.engine.submitted[0].prompt_ids == [START, *b"Hi"]
    assert choice["text"] == "Hi!"
    assert choice["logprobs"]["tokens"] == ["<|start|>", "H", "i", "!"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_no_time_was_left_to_score_has_no_logprobs(stream: bool) -> None:
    """The other choice has a token, so that the call isn't answered with 504."""

    def script(request: Request) -> Iterator[Event | None]:
        if request.id.endswith("-1"):
            yield None
        yield from say("!", finish_reason="length")(request)

    asked = {"prompt": "Hi", "echo": True, "logprobs": 1, "n": 2, "max_tokens": 1}
    answer = Client(FakeEngine(script)).post(
        "/v1/completions", asked | {"stream": stream}, headers={"x-request-deadline-ms": "300"}
    )
    chunks = [event["choices"][0] for event in events_of(answer)] if stream else []
    scored, late = (
        [[chunk for chunk in chunks if chunk["index"] == index] for index in (0, 1)]
        if stream
        else [[choice] for choice in answer.json()["choices"]]
    )
    assert "".join(choice["text"] for choice in scored) == "Hi!"
    assert "".join(choice["text"] for choice in late) == "Hi"
    assert [
        token for choice in scored if choice["logprobs"] for token in choice["logprobs"]["tokens"]
    ] == ["H", "i", "!"]
    assert not any(values for choice in late for values in (choice["logprobs"] or {}).values())


def test_prompts_that_no_time_was_left_to_score_have_no_prompt_logprobs() -> None:
    def script(request: Request) -> Iterator[Event | None]:
        if request.prompt_ids == [*b"late"]:
            yield None
        yield from say("!", finish_reason="length")(request)

    asked = {"prompt": ["x", "xy", "late"], "prompt_logprobs": 0, "max_tokens": 1}
    answer = Client(FakeEngine(script)).post(
        "/v1/completions", asked, headers={"x-request-deadline-ms": "300"}
    )
    one, two, late = (choice["prompt_logprobs"] for choice in answer.json()["choices"])
    assert (one, len(two), late) == ([None], 2, None)

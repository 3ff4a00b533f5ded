"""What vLLM adds to OpenAI's answers: ids beside texts, and the logprobs of prompts."""

from typing import Any

import pytest

from tests.fakes import END, Client, FakeEngine, events_of, make_text, say

CHAT_PROMPT = make_text().tokenizer.encode("<|start|>user\nHi<|end|><|start|>assistant\n")


def client(text: str = "é!") -> Client:
    return Client(FakeEngine(say(text)))


def choices_of(events: list[Any]) -> list[Any]:
    return [choice for event in events for choice in event["choices"]]


def test_no_ids_unless_asked_for() -> None:
    for answer in (client().chat(), client().complete()):
        assert "token_ids" not in answer.text
        assert "prompt_logprobs" not in answer.text


def test_completions_have_ids_in_each_choice() -> None:
    asked = {"prompt": ["a", "bc"], "n": 2, "return_token_ids": True}
    choices = client().complete(**asked).json()["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [[97]] * 2 + [[98, 99]] * 2
    assert [choice["token_ids"] for choice in choices] == [[*"é!".encode(), END]] * 4


def test_chats_have_the_prompts_ids_once() -> None:
    answer = client().chat(n=2, return_token_ids=True).json()
    assert answer["prompt_token_ids"] == CHAT_PROMPT
    assert [choice["token_ids"] for choice in answer["choices"]] == [[*"é!".encode(), END]] * 2


def test_streamed_completions_have_the_prompts_ids_in_the_first_chunk() -> None:
    events = events_of(client().complete(stream=True, n=2, return_token_ids=True))
    for index in range(2):
        first, *rest = [c for c in choices_of(events) if c["index"] == index]
        assert first["prompt_token_ids"] == [*b"Hi"]
        assert all("prompt_token_ids" not in choice for choice in rest)
        ids = [token_id for choice in (first, *rest) for token_id in choice["token_ids"]]
        assert ids == [*"é!".encode(), END]


def test_streamed_chats_have_the_prompts_ids_in_the_first_chunk() -> None:
    first, *rest = events_of(client().chat(stream=True, return_token_ids=True))
    assert first["prompt_token_ids"] == CHAT_PROMPT
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert all("prompt_token_ids" not in event for event in rest)
    assert [choice["token_ids"] for choice in choices_of([first, *rest])] == [
        [],
        [*"é".encode()],  # its first byte waits for the second
        [*b"!"],
        [END],
    ]


def test_an_empty_stream_has_ids_too() -> None:
    [end] = events_of(client("").complete(stream=True, return_token_ids=True))
    [choice] = end["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([*b"Hi"], [END])


@pytest.mark.parametrize("route", ["chat", "complete"])
def test_tokens_may_be_spelled_as_ids(route: str) -> None:
    asked: dict[str, Any] = {"chat": {"logprobs": True, "top_logprobs": 2}}.get(
        route, {"logprobs": 2}
    )
    answer = getattr(client("!"), route)(return_tokens_as_token_ids=True, **asked)
    logprobs = answer.json()["choices"][0]["logprobs"]
    if route == "chat":
        [entry] = logprobs["content"]
        assert (entry["token"], entry["bytes"]) == ("token_id:33", [33])
        assert [top["token"] for top in entry["top_logprobs"]] == ["token_id:33", "token_id:97"]
    else:
        assert logprobs["tokens"] == ["token_id:33"]
        assert logprobs["top_logprobs"] == [{"token_id:33": -0.5, "token_id:97": -2.0}]


def test_prompt_logprobs_have_a_place_for_each_token() -> None:
    choices = client().complete(prompt="aé", prompt_logprobs=1, n=2).json()["choices"]
    likeliest = {"logprob": -1.0, "rank": 1, "decoded_token": "a"}
    for choice in choices:
        assert choice["prompt_logprobs"] == [
            None,
            {
                "97": likeliest,
                "195": {"logprob": -0.25 * 195, "rank": 30, "decoded_token": "\ufffd"},
            },
            {
                "97": likeliest,
                "169": {"logprob": -0.25 * 169, "rank": 30, "decoded_token": "\ufffd"},
            },
        ]


def test_prompt_logprobs_of_chats_stand_beside_the_choices() -> None:
    answer = client().chat(prompt_logprobs=0, n=2).json()
    first, *rest = answer["prompt_logprobs"]
    assert first is None
    assert [list(place) for place in rest] == [[str(id_)] for id_ in CHAT_PROMPT[1:]]
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])


def test_each_wish_for_logprobs_has_its_own_number() -> None:
    asked = {"echo": True, "logprobs": 1, "prompt_logprobs": 3}
    [choice] = client("!").complete(**asked).json()["choices"]
    assert choice["logprobs"]["top_logprobs"][1].keys() == {"a", "i"}
    assert choice["prompt_logprobs"][1].keys() == {"97", "98", "99", "105"}

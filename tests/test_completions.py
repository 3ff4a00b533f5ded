"""Completions over HTTP: the forms of prompts, the order of choices, the lists of logprobs."""

from collections.abc import Sequence
from typing import Any

import pytest

from model.batch import TokenLogprobs
from service.engine.messages import Event, Request
from tests.fakes import VOCAB_SIZE, Client, FakeEngine, Script, events_of, say


def echo(request: Request) -> Any:
    """Each prompt is answered by itself, so that answers can be told apart."""
    text = bytes(request.prompt_ids).decode()
    return say(text, finish_reason="length")(request)


def test_an_answer() -> None:
    answer = Client(FakeEngine(say(" there"))).complete().json()
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"text": " there", "index": 0, "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 7,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_a_stream() -> None:
    events = events_of(Client(FakeEngine(say("Hi"))).complete(stream=True))
    assert {event["object"] for event in events} == {"text_completion"}
    assert [event["choices"] for event in events] == [
        [{"text": text, "index": 0, "logprobs": None, "finish_reason": reason}]
        for text, reason in [("H", None), ("i", None), ("", "stop")]
    ]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("Hi", ["Hi"]),
        (["Hi", "you"], ["Hi", "you"]),
        (list(b"Hi"), ["Hi"]),
        ([list(b"Hi"), list(b"you")], ["Hi", "you"]),
    ],
)
def test_text_and_ids_are_the_same(prompt: Any, texts: list[str]) -> None:
    answer = Client(FakeEngine(echo)).complete(prompt=prompt).json()
    assert [choice["text"] for choice in answer["choices"]] == texts


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_numbered_prompt_by_prompt(stream: bool) -> None:
    answer = Client(FakeEngine(echo)).complete(prompt=["a", "bc"], n=2, stream=stream)
    chunks = events_of(answer) if stream else [answer.json()]
    texts = dict.fromkeys(range(4), "")
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "a", 1: "a", 2: "bc", 3: "bc"}


def test_long_prompts_give_what_short_ones_give() -> None:
    """They are encoded in a thread."""
    prompts = ["x" * 150 for _ in range(30)]
    answer = Client(FakeEngine(echo)).complete(prompt=prompts).json()
    assert [choice["text"] for choice in answer["choices"]] == prompts


def test_the_limit_is_sixteen_unless_told() -> None:
    client = Client()
    client.complete()
    client.complete(max_tokens=5)
    assert [request.max_tokens for request in client.engine.submitted] == [16, 5]


@pytest.mark.parametrize(
    "prompt",
    ["x" * 185, [97] * 185, ["Hi", "x" * 185], "x" * 3_000_000],
    ids=["text", "ids", "second", "huge"],
)
def test_a_prompt_beyond_the_context_is_refused(prompt: Any) -> None:
    client = Client()
    answer = client.complete(prompt=prompt)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert not client.engine.submitted
    assert client.complete(prompt="x" * 184).status_code == 200


def test_ids_outside_the_vocabulary_are_refused() -> None:
    client = Client()
    answer = client.complete(prompt=[[1], [VOCAB_SIZE]])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert "258" in answer.json()["error"]["message"]
    assert client.complete(prompt=[VOCAB_SIZE - 1]).status_code == 200


def test_logprobs() -> None:
    client = Client(FakeEngine(say("bé")))
    logprobs = client.complete(logprobs=2).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["b", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [
            {"b": -0.5, "a": -2.0},
            {"bytes:\\xc3": -0.5, "a": -2.0},
            {"bytes:\\xa9": -0.5, "a": -2.0},
        ],
        "text_offset": [0, 1, 1],
    }
    first, second, _ = events_of(client.complete(logprobs=2, stream=True))
    streamed = [chunk["choices"][0]["logprobs"] for chunk in (first, second)]
    for key, values in logprobs.items():
        assert streamed[0][key] + streamed[1][key] == values


def test_logprobs_without_alternatives_list_the_chosen_token() -> None:
    logprobs = Client(FakeEngine(say("b"))).complete(logprobs=0).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"b": -0.5}]


def test_logprobs_of_a_swallowed_end_are_sent_with_it() -> None:
    """A stop string has no text, but its tokens were generated and are listed."""
    client = Client(FakeEngine(say("a#b")))
    asked = {"stop": "#b", "logprobs": 0}
    whole = client.complete(**asked).json()
    assert whole["choices"][0]["text"] == "a"
    assert whole["choices"][0]["logprobs"]["tokens"] == ["a", "#", "b"]
    assert whole["usage"]["completion_tokens"] == 3
    events = events_of(client.complete(stream=True, **asked))
    texts = [event["choices"][0]["text"] for event in events]
    assert texts == ["a", "", ""]
    assert events[1]["choices"][0]["logprobs"]["tokens"] == ["#", "b"]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "stop"]


def test_several_tokens_at_once() -> None:
    def script(request: Request) -> list[Event]:
        return [Event(request_id=request.id, token_ids=list(b"abc"), finish_reason="length")]

    answer = Client(FakeEngine(script)).complete().json()
    assert answer["choices"][0]["text"] == "abc"
    assert answer["usage"]["completion_tokens"] == 3


def likelihoods(*logprobs: Sequence[float]) -> Script:
    """The sequences of a prompt, of "a", "b", … as often as they have logprobs."""

    def script(request: Request) -> list[Event]:
        number = int(request.id.rpartition("-")[2]) % len(logprobs)
        scores = [TokenLogprobs(logprob, []) for logprob in logprobs[number]]
        ids = [97 + number] * len(scores)
        event = Event(request_id=request.id, token_ids=ids, logprobs=scores, finish_reason="length")
        return [event]

    return script


def test_the_best_of_several_are_the_likeliest_by_token() -> None:
    engine = FakeEngine(likelihoods([-3.0], [-1.0, -1.5, -1.1], [float("-inf")], [-2.0, -0.1]))
    asked = {"prompt": ["one", "two"], "best_of": 4, "n": 2, "return_token_ids": True}
    answer = Client(engine).complete(**asked).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in answer["choices"]] == ["dd", "bbb"] * 2
    assert answer["choices"][3]["prompt_token_ids"] == [*b"two"]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 2 * (1 + 3 + 1 + 2)
    assert answer["usage"]["prompt_tokens"] == len("onetwo")
    [request] = [r for r in engine.submitted if r.id.endswith("-7")]
    assert request.prompt_ids == [*b"two"]


def test_the_best_show_their_logprobs_where_asked() -> None:
    engine = FakeEngine(likelihoods([-3.0], [-1.0]))
    [choice] = Client(engine).complete(best_of=2, logprobs=0).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-1.0]


@pytest.mark.parametrize("most", [4, 16])
def test_a_request_has_as_many_stop_strings_as_the_server_allows(most: int) -> None:
    client = Client(FakeEngine(say("abcdef")), max_stops=most)
    stops = [*"vwxyz", *"VWXYZ", *"01234", "d"]
    answer = client.complete(stop=stops[-most:]).json()["choices"][0]
    assert (answer["text"], answer["finish_reason"]) == ("abc", "stop")
    refused = client.complete(stop=[*stops[-most:], "e"])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stop")

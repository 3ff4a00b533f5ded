"""Chat completions over HTTP, whole and streamed, word for word."""

from typing import Any

import pytest

from tests.fakes import MAX_MODEL_LEN, Client, FakeEngine, events_of, make_text, say


def joined(events: list[Any], index: int = 0) -> str:
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(c["delta"].get("content", "") for c in choices if c["index"] == index)


def test_an_answer() -> None:
    answer = Client(FakeEngine(say("Hé!"))).chat().json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    message = {"role": "assistant", "content": "Hé!", "refusal": None}
    prompt = "<|start|>user\nHi<|end|><|start|>assistant\n"
    prompt_tokens = len(make_text().tokenizer.encode(prompt))
    assert answer == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 5,
            "total_tokens": prompt_tokens + 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_the_template_writes_the_prompt() -> None:
    client = Client()
    client.chat(messages=[{"role": "developer", "content": [{"type": "text", "text": "Brief."}]}])
    [request] = client.engine.submitted
    text = make_text().tokenizer.decode(request.prompt_ids, skip_special_tokens=False)
    assert text == "<|start|>system\nBrief.<|end|><|start|>assistant\n"


def test_a_stream() -> None:
    events = events_of(Client(FakeEngine(say("Hi"))).chat(stream=True))
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert all("usage" not in event for event in events)
    assert [event["choices"] for event in events] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in [
            ({"role": "assistant", "content": ""}, None),
            ({"content": "H"}, None),
            ({"content": "i"}, None),
            ({}, "stop"),
        ]
    ]


def test_an_empty_answer() -> None:
    client = Client(FakeEngine(say("")))
    assert client.chat().json()["choices"][0]["message"]["content"] == ""
    events = events_of(client.chat(stream=True))
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {},
    ]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("text", ['a\\n"\0🚀é', "line\nline"])
def test_the_stream_joined_is_the_whole(n: int, text: str) -> None:
    client = Client(FakeEngine(say(text, finish_reason="length")))
    whole = client.chat(n=n).json()
    options = {"include_usage": True}
    events = events_of(client.chat(n=n, stream=True, stream_options=options))
    assert [choice["message"]["content"] for choice in whole["choices"]] == [text] * n
    assert [joined(events, index) for index in range(n)] == [text] * n
    *rest, last = events
    assert all(event["usage"] is None for event in rest)
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]


def test_usage_on_every_chunk() -> None:
    options = {"continuous_usage_stats": True}
    events = events_of(Client(FakeEngine(say("Hi"))).chat(stream=True, stream_options=options))
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 1, 2, 3]
    assert all(event["choices"] for event in events)


def test_logprobs() -> None:
    client = Client(FakeEngine(say("🚀")))
    asked = {"logprobs": True, "top_logprobs": 2}
    whole = client.chat(**asked).json()["choices"][0]["logprobs"]
    assert whole["refusal"] is None
    assert b"".join(bytes(entry["bytes"]) for entry in whole["content"]) == "🚀".encode()
    assert whole["content"][0] == {
        "token": "\ufffd",
        "logprob": -0.5,
        "bytes": [0xF0],
        "top_logprobs": [
            {"token": "\ufffd", "logprob": -0.5, "bytes": [0xF0]},
            {"token": "a", "logprob": -2.0, "bytes": [97]},
        ],
    }
    opening, text, end = events_of(client.chat(stream=True, **asked))
    assert opening["choices"][0]["logprobs"] is None
    assert text["choices"][0]["logprobs"] == whole
    assert end["choices"][0]["logprobs"] is None
    assert (
        client.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        == []
    )


def test_the_limit_is_the_context_unless_told() -> None:
    client = Client()
    client.chat()
    client.chat(max_tokens=7)
    client.chat(max_tokens=7, max_completion_tokens=5)
    default, old, new = client.engine.submitted
    assert default.max_tokens == MAX_MODEL_LEN - len(default.prompt_ids)
    assert (old.max_tokens, new.max_tokens) == (7, 5)


def test_a_chat_beyond_the_context_is_refused() -> None:
    client = Client()
    for messages in ([{"role": "user", "content": "x" * 190}], None):
        asked = {"messages": messages} if messages else {"max_tokens": 190}
        answer = client.chat(**asked)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == "messages"
        assert str(MAX_MODEL_LEN) in error["message"]
    assert not client.engine.submitted


def test_what_the_template_refuses_is_refused() -> None:
    answer = Client().chat(messages=[{"role": "user", "content": "refuse"}])
    assert answer.status_code == 400
    assert "no such chat" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "messages"

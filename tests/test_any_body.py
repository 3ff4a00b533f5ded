"""Whatever the parameters: an answer that OpenAI's client can read, or an error in OpenAI's shape;
and the stream of it, joined, is the whole."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import structs
from openai.types import Completion
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from service.api.schema import ChatRequest, CompletionRequest
from service.engine.messages import Event, Request
from service.text.chat_template import ChatTemplate
from service.text.model import TextModel
from tests.bodies import (
    CHATS,
    COMPLETIONS,
    FLAG,
    TEXTS,
    WHOLE_CHATS,
    WHOLE_COMPLETIONS,
    Body,
)
from tests.description import check_answer
from tests.fakes import (
    END,
    START,
    TEMPLATE,
    events_of,
    logprobs_of,
    make_text,
    prompt_logprobs_of,
    say,
)
from tests.fakes_grammar import obey, roomy

JSON = st.recursive(
    st.none() | FLAG | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


def script(request: Request) -> Iterator[Event | None]:
    """Up to max_tokens of one text, or what the request's grammar allows; each sequence of a call
    says another letter in the text, and thinks first or not."""
    if request.max_tokens == 0:
        yield from say("")(request)
        return
    if request.grammar:
        yield from map(partial(scored, request), OBEY(request))
        return
    number = int(request.id.rpartition("-")[2])
    thoughts = b"<think> Hm.</think> " if number % 2 else b""
    ids = [*thoughts, *"Hé🚀 b c".encode(), START, 97 + number % 26, *b"!x", END]
    ends = [i for i, token_id in enumerate(ids) if token_id in request.stop_token_ids]
    ids = ids[: min([*(end + 1 for end in ends), request.max_tokens])]
    for number, token_id in enumerate(ids):
        stops = token_id in request.stop_token_ids
        is_last = number == len(ids) - 1
        yield Event(
            request_id=request.id,
            token_ids=[token_id],
            logprobs=logprobs_of(request, token_id),
            prompt_logprobs=prompt_logprobs_of(request) if number == 0 else (),
            finish_reason=("stop" if stops else "length") if is_last else None,
        )


def scored(request: Request, event: Event | None) -> Event:
    assert event is not None
    [token_id] = event.token_ids
    return structs.replace(event, logprobs=logprobs_of(request, token_id))


OBEY = obey(0)
TEXT = TextModel(make_text().tokenizer, ChatTemplate(f"{TEMPLATE}{{{{ mood }}}}"))
CLIENT = roomy(script, text=TEXT, reasoning_parser="qwen3")
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def post(path: str, body: Body) -> httpx.Response:
    """The answer, which is as /openapi.json says."""
    answer = CLIENT.request(
        "POST", path, content=orjson.dumps(body), headers={"content-type": "application/json"}
    )
    check_answer(path, "post", answer)
    return answer


def answered(path: str, body: Body) -> Any:
    answer = post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@settings(max_examples=60, deadline=None)
@given(WHOLE_CHATS)
def test_chats_are_answered_as_openais_client_reads_them(body: Body) -> None:
    answer = answered(CHAT, body)
    read = ChatCompletion.model_validate(answer)
    assert [choice.index for choice in read.choices] == list(range(body.get("n", 1)))
    assert read.usage is not None
    assert read.usage.total_tokens == read.usage.prompt_tokens + read.usage.completion_tokens
    for choice in read.choices:
        assert (choice.logprobs is not None) == body.get("logprobs", False)
    if body.get("return_token_ids"):
        assert len(answer["prompt_token_ids"]) == read.usage.prompt_tokens


@settings(max_examples=60, deadline=None)
@given(WHOLE_COMPLETIONS)
def test_completions_are_answered_as_openais_client_reads_them(body: Body) -> None:
    answer = answered(COMPLETION, body)
    for choice in answer["choices"]:
        if body.get("echo") and choice["logprobs"]:
            check_begins_with_null(choice["logprobs"])
    read = Completion.model_validate(answer)
    assert len(read.choices) % body.get("n", 1) == 0
    for choice in read.choices:
        if choice.logprobs is not None:
            lists = choice.logprobs.model_dump(exclude_unset=True).values()
            assert len({len(values) for values in lists}) == 1


def check_begins_with_null(logprobs: Body) -> None:
    """As OpenAI's API does, of which OpenAI's client knows nothing."""
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    logprobs["token_logprobs"][0] = 0.0
    logprobs["top_logprobs"][0] = {}


def joined(value: Any, more: Any) -> Any:
    """Texts and lists end to end, calls by their index; of the rest, what comes last counts."""
    if isinstance(value, dict) and isinstance(more, dict):
        return value | {key: joined(value.get(key), more[key]) for key in more}
    if isinstance(value, str) and isinstance(more, str):
        return value + more
    if isinstance(value, list) and isinstance(more, list):
        return value + more
    return value if more is None else more


def joined_choices(answer: httpx.Response) -> list[Any]:
    choices: dict[int, Any] = {}
    for event in events_of(answer):
        for choice in event["choices"]:
            choices[choice["index"]] = joined(choices.get(choice["index"]), choice)
    return [choices[index] for index in sorted(choices)]


def calls_of(message: Body) -> list[tuple[str, str]]:
    """Names and arguments of calls, whole or in pieces; their ids aren't the same twice."""
    calls: list[tuple[str, str]] = []
    for piece in message.get("tool_calls", ()):
        name, arguments = piece["function"].get("name"), piece["function"]["arguments"]
        if name is None:
            calls[-1] = calls[-1][0], calls[-1][1] + arguments
        else:
            calls.append((name, arguments))
    return calls


def comparable(choice: Any) -> Any:
    """Without what isn't the same each time, and with what a stream never says at all."""
    message = choice.get("message") or choice.get("delta") or {}
    return {
        "text": choice.get("text", message.get("content") or ""),
        "thoughts": (message.get("reasoning"), message.get("reasoning_content")),
        "calls": calls_of(message),
        "logprobs": choice["logprobs"],
        "finish_reason": choice["finish_reason"],
        "token_ids": choice.get("token_ids"),
        "prompt_token_ids": choice.get("prompt_token_ids"),
        "timings": sorted(choice.get("timings", ())),
    }


STREAM_OPTIONS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "include_usage": FLAG,
        "continuous_usage_stats": FLAG,
        "include_obfuscation": st.just(False),
    },
)


def check_stream(path: str, body: Body, options: Body | None) -> None:
    """Its choices joined are those of the whole answer, and its usage is the whole's at the end."""
    whole = answered(path, body)
    answer = post(path, body | {"stream": True, "stream_options": options})
    choices = list(map(comparable, joined_choices(answer)))
    expected = list(map(comparable, whole["choices"]))
    for choice, said in zip(choices, expected, strict=True):
        if choice["logprobs"] is None and said["logprobs"]:
            assert not any(said["logprobs"].values()), "no token had any"
            choice["logprobs"] = said["logprobs"]
    assert choices == expected
    check_usage(events_of(answer), whole["usage"], options or {})


def check_usage(events: list[Body], usage: Body, options: Body) -> None:
    if options.get("include_usage"):
        last = events.pop()
        assert (last["choices"], last["usage"]) == ([], usage)
    for event in events:
        if options.get("continuous_usage_stats"):
            assert event["usage"]["completion_tokens"] <= usage["completion_tokens"]
        else:
            assert ("usage" in event) == options.get("include_usage", False)
            assert event.get("usage") is None


@settings(max_examples=60, deadline=None)
@given(CHATS, STREAM_OPTIONS)
def test_the_stream_of_a_chat_joined_is_the_whole(body: Body, options: Body | None) -> None:
    check_stream(CHAT, body, options)


@settings(max_examples=60, deadline=None)
@given(COMPLETIONS, STREAM_OPTIONS)
def test_the_stream_of_a_completion_joined_is_the_whole(body: Body, options: Body | None) -> None:
    check_stream(COMPLETION, body, options)


@pytest.mark.parametrize(
    ("route", "bodies"), [(ChatRequest, WHOLE_CHATS), (CompletionRequest, WHOLE_COMPLETIONS)]
)
def test_every_parameter_is_drawn(route: type[BaseModel], bodies: SearchStrategy[Body]) -> None:
    """But those of streams, which the tests of streams add."""
    seen = set[str]()

    @settings(max_examples=400, derandomize=True, database=None, deadline=None)
    @given(bodies)
    def look(body: Body) -> None:
        seen.update(body)

    look()
    assert route.model_fields.keys() - seen == {"stream", "stream_options"}


def check_shape(answer: httpx.Response) -> None:
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["type"] == "invalid_request_error"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_body_with_anything_in_it_is_answered_or_refused(data: st.DataObject) -> None:
    path, bodies = data.draw(
        st.sampled_from(
            [
                (CHAT, WHOLE_CHATS),
                (COMPLETION, WHOLE_COMPLETIONS),
                ("/tokenize", WHOLE_COMPLETIONS),
                ("/tokenize", CHATS),
                (f"{CHAT}/render", WHOLE_CHATS),
                ("/detokenize", st.just({"tokens": [1]})),
            ]
        )
    )
    names = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, "tokens", "suffix"})
    changes = st.dictionaries(st.sampled_from(names), JSON, min_size=1, max_size=2)
    check_shape(post(path, data.draw(bodies) | data.draw(changes)))

"""Whatever the parameters: an answer that OpenAI's client can read, or an error in OpenAI's shape;
and the stream of it, joined, is the whole."""

from collections.abc import Iterator
from typing import Any

import httpx
import orjson
from hypothesis import given, settings, strategies as st
from hypothesis.strategies import SearchStrategy
from openai.types import Completion
from openai.types.chat import ChatCompletion

from service.engine.messages import Event, Request
from tests.description import check_answer
from tests.fakes import (
    END,
    START,
    VOCAB_SIZE,
    Client,
    FakeEngine,
    events_of,
    logprobs_of,
    prompt_logprobs_of,
)

Body = dict[str, Any]

IDS = st.integers(0, VOCAB_SIZE - 1)
FLAG = st.booleans()
COMMON: dict[str, SearchStrategy[Any]] = {
    "model": st.just("tiny-too"),
    "max_tokens": st.integers(1, 12),
    "min_tokens": st.integers(0, 1),
    "n": st.integers(1, 3),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, 300),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.01, 100),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(IDS.map(str), st.floats(-100, 100), max_size=3),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": st.sampled_from(["é", [], ["b c", "!"], ["🚀", "x", "\n"]]),
    "stop_token_ids": st.lists(IDS, max_size=2),
    "bad_words": st.lists(st.sampled_from(["zz", "🚀"]), max_size=2),
    "allowed_token_ids": st.just([*range(128)]),
    "ignore_eos": FLAG,
    "include_stop_str_in_output": FLAG,
    "skip_special_tokens": FLAG,
    "spaces_between_special_tokens": FLAG,
    "truncate_prompt_tokens": st.just(-1) | st.integers(1, 9),
    "return_token_ids": FLAG,
    "return_tokens_as_token_ids": FLAG,
    "priority": st.integers(-9, 9),
    "include_timings": FLAG,
    "cache_salt": st.just("pepper"),
    "add_special_tokens": FLAG,
    "user": st.just("me"),
    "stop_reason": st.just("unknown keys are ignored"),
}
TEXTS = st.text(alphabet="a é🚀<\n", min_size=1, max_size=8)
PROMPTS = st.one_of(
    TEXTS,
    st.lists(TEXTS, min_size=1, max_size=3),
    st.lists(IDS, min_size=1, max_size=5),
    st.lists(st.lists(IDS, min_size=1, max_size=3), min_size=1, max_size=2),
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "tool"]), "content": TEXTS}),
    min_size=1,
    max_size=3,
)
SHOWN: SearchStrategy[Body] = st.sampled_from(
    [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}]
)


def both(first: SearchStrategy[Body], second: SearchStrategy[Body]) -> SearchStrategy[Body]:
    return st.builds(lambda a, b: a | b, first, second)


CHATS = both(
    st.fixed_dictionaries(
        {"messages": MESSAGES},
        optional=COMMON
        | {
            "max_completion_tokens": st.integers(1, 9),
            "continue_final_message": st.just(False),
            "add_generation_prompt": FLAG,
        },
    ),
    SHOWN,
)
COMPLETIONS = st.fixed_dictionaries(
    {"prompt": PROMPTS}, optional=COMMON | {"logprobs": st.integers(0, 3), "echo": FLAG}
)
OF_WHOLE_ANSWERS = {"prompt_logprobs": st.integers(0, 3)}
WHOLE_CHATS = both(CHATS, st.fixed_dictionaries({}, optional=OF_WHOLE_ANSWERS))
WHOLE_COMPLETIONS = both(
    COMPLETIONS, st.fixed_dictionaries({}, optional=OF_WHOLE_ANSWERS | {"best_of": st.just(3)})
)
JSON = st.recursive(
    st.none() | FLAG | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


def script(request: Request) -> Iterator[Event]:
    """Up to max_tokens of one text; each sequence of a call says another letter in it."""
    letter = 97 + int(request.id.rpartition("-")[2]) % 26
    ids = [*"Hé🚀 b c".encode(), START, letter, *b"!x", END]
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


CLIENT = Client(FakeEngine(script))
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
    """Texts and lists end to end; of the rest, what comes last counts."""
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


def comparable(choice: Any) -> Any:
    """Without what isn't the same each time, and with what a stream never says at all."""
    message = choice.get("message") or choice.get("delta") or {}
    return {
        "text": choice.get("text", message.get("content")),
        "logprobs": choice["logprobs"],
        "finish_reason": choice["finish_reason"],
        "token_ids": choice.get("token_ids"),
        "prompt_token_ids": choice.get("prompt_token_ids"),
    }


def check_stream(path: str, body: Body) -> None:
    whole = [comparable(choice) for choice in answered(path, body)["choices"]]
    streamed = [
        comparable(choice) for choice in joined_choices(post(path, body | {"stream": True}))
    ]
    for given_whole, given_streamed in zip(whole, streamed, strict=True):
        if given_streamed["logprobs"] is None and given_whole["logprobs"]:
            assert not any(given_whole["logprobs"].values()), "no token had any"
            given_streamed["logprobs"] = given_whole["logprobs"]
    assert streamed == whole


@settings(max_examples=60, deadline=None)
@given(CHATS)
def test_the_stream_of_a_chat_joined_is_the_whole(body: Body) -> None:
    check_stream(CHAT, body)


@settings(max_examples=60, deadline=None)
@given(COMPLETIONS)
def test_the_stream_of_a_completion_joined_is_the_whole(body: Body) -> None:
    check_stream(COMPLETION, body)


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
    names = [*COMMON, "logprobs", "echo", "best_of", "prompt", "messages", "tokens", "stream"]
    changes = st.dictionaries(st.sampled_from(names), JSON, min_size=1, max_size=2)
    check_shape(post(path, data.draw(bodies) | data.draw(changes)))

"""OpenAI's own client against the default model, its answers checked by the client's own types."""

import asyncio
from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolChoiceOptionParam
from pydantic import BaseModel

from tests.processes import wait_until
from tests.served import SECONDS, metric

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Is it wet in Oslo?"}]
PROMPT = "The capital of France is"


class Weather(BaseModel):
    city: str
    wet: bool


class SetLamp(BaseModel):
    """Switch a lamp."""

    room: Literal["hall", "kitchen"]
    lit: bool


TOOLS = [openai.pydantic_function_tool(SetLamp), openai.pydantic_function_tool(Weather)]
CHOICES: list[ChatCompletionToolChoiceOptionParam] = [
    "required",
    {"type": "function", "function": {"name": "SetLamp"}},
]


def connect(base_url: str, *, strict: bool) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=base_url,
        api_key="none",
        max_retries=0,
        timeout=SECONDS,
        _strict_response_validation=strict,
    )


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with connect(base_url, strict=True) as client:
        yield client


@pytest.fixture(scope="module")
def lax_client(base_url: str) -> Iterator[openai.OpenAI]:
    """For what its types deny though OpenAI sends it: chunks of a completion that aren't the last,
    and vectors in base64, which it decodes after checking them."""
    with connect(base_url, strict=False) as client:
        yield client


def test_models(client: openai.OpenAI, model: str) -> None:
    assert model in [each.id for each in client.models.list()]
    assert client.models.retrieve(model).object == "model"


def test_completions(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=[PROMPT, PROMPT], max_tokens=2, temperature=0
    )
    assert [choice.text for choice in answer.choices] == [" Paris."] * 2


def test_completions_stream(lax_client: openai.OpenAI, model: str) -> None:
    stream = lax_client.completions.create(
        model=model, prompt=PROMPT, max_tokens=2, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == " Paris."


def test_a_chat_says_the_same_at_once_and_streamed(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=16, temperature=0
    )
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=MESSAGES,
            max_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 16


def test_the_stream_helper_gathers_what_it_tells(client: openai.OpenAI, model: str) -> None:
    with client.chat.completions.stream(
        model=model, messages=MESSAGES, stop=["."], temperature=0, logprobs=True, top_logprobs=2
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    deltas = [event.delta for event in events if event.type == "content.delta"]
    assert "".join(deltas) == final.message.content
    assert final.finish_reason == "stop"
    assert final.logprobs is not None
    assert final.logprobs.content is not None
    assert {len(entry.top_logprobs) for entry in final.logprobs.content} == {2}


def test_an_answer_is_parsed(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(
        model=model, messages=MESSAGES, response_format=Weather, max_tokens=100, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Weather)


def test_a_stream_is_parsed_as_it_comes(client: openai.OpenAI, model: str) -> None:
    with client.chat.completions.stream(
        model=model, messages=MESSAGES, response_format=Weather, max_tokens=100, temperature=0
    ) as stream:
        events = list(stream)
    [done] = [event for event in events if event.type == "content.done"]
    assert isinstance(done.parsed, Weather)
    partial = [event.parsed for event in events if event.type == "content.delta" and event.parsed]
    assert partial[-1] == done.parsed.model_dump()
    assert partial[0] != partial[-1]


@pytest.mark.parametrize("choice", CHOICES, ids=["required", "named"])
def test_a_tool_is_called_with_arguments_of_its_type(
    client: openai.OpenAI, model: str, choice: ChatCompletionToolChoiceOptionParam
) -> None:
    answer = client.chat.completions.parse(
        model=model,
        messages=MESSAGES,
        tools=TOOLS,
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=100,
        temperature=0,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    [call] = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, SetLamp | Weather)


def test_a_call_comes_piece_by_piece(client: openai.OpenAI, model: str) -> None:
    with client.chat.completions.stream(
        model=model,
        messages=MESSAGES,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=100,
        temperature=0,
    ) as stream:
        events = list(stream)
        [call] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, SetLamp | Weather)
    pieces = [
        event.arguments_delta
        for event in events
        if event.type == "tool_calls.function.arguments.delta"
    ]
    assert len(pieces) > 2
    assert "".join(pieces) == call.function.arguments


def test_what_a_tool_said_goes_back_to_the_model(client: openai.OpenAI, model: str) -> None:
    called = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=100,
    )
    message = called.choices[0].message
    [call] = message.tool_calls or []
    answer = client.chat.completions.create(
        model=model,
        messages=[
            *MESSAGES,
            message.model_dump(exclude_none=True),  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": call.id, "content": "It is done."},
        ],
        tools=TOOLS,
        max_tokens=5,
    )
    assert answer.choices[0].message.content is not None


def test_embeddings_are_the_same_however_they_travel(
    client: openai.OpenAI, lax_client: openai.OpenAI, model: str
) -> None:
    """Unless told otherwise the client asks for base64."""
    texts = ["a lamp", "the hall"]
    decoded = lax_client.embeddings.create(model=model, input=texts)
    as_floats = client.embeddings.create(model=model, input=texts, encoding_format="float")
    assert [each.index for each in as_floats.data] == [0, 1]
    for one, other in zip(decoded.data, as_floats.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding)


def test_embeddings_of_token_ids(client: openai.OpenAI, model: str) -> None:
    answer = client.embeddings.create(
        model=model, input=[1, 2, 3], dimensions=8, encoding_format="float"
    )
    assert len(answer.data[0].embedding) == 8
    assert answer.usage.prompt_tokens == 3


def test_many_at_once_from_one_asynchronous_client(base_url: str, model: str) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(
            base_url=base_url,
            api_key="none",
            timeout=SECONDS,
            _strict_response_validation=True,
        ) as client:
            create = client.chat.completions.create
            answers = await asyncio.gather(
                *(
                    create(model=model, messages=MESSAGES, max_tokens=8, temperature=0)
                    for _ in range(4)
                )
            )
            stream = await create(
                model=model, messages=MESSAGES, max_tokens=8, temperature=0, stream=True
            )
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return ["".join(texts), *(answer.choices[0].message.content for answer in answers)]

    assert len(set(asyncio.run(ask()))) == 1


def test_leaving_a_stream_ends_the_work_for_it(client: openai.OpenAI, model: str, url: str) -> None:
    with client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=4000,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:
        next(stream)
        assert metric(url, "octavo_requests_running") == 1
    wait_until(lambda: metric(url, "octavo_requests_running") == 0)

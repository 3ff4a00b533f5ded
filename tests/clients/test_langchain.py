"""LangChain's models of OpenAI's API, pointed at octavo as its users point them."""

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.served import SECONDS

langchain_openai = pytest.importorskip("langchain_openai")
tools = pytest.importorskip("langchain_core.tools")

QUESTION = "Is it wet in Oslo?"


class Weather(BaseModel):
    """What the weather is like."""

    city: str
    wet: bool


class Lamp(BaseModel):
    room: Literal["hall", "kitchen"]
    lit: bool


@pytest.fixture(scope="module")
def server(base_url: str, model: str) -> dict[str, Any]:
    return {
        "base_url": base_url,
        "api_key": "none",
        "model": model,
        "timeout": SECONDS,
        "max_retries": 0,
    }


@pytest.fixture(scope="module")
def chat(server: dict[str, Any]) -> Any:
    return langchain_openai.ChatOpenAI(**server, temperature=0, max_tokens=80)


@pytest.fixture(scope="module")
def set_lamp() -> Any:
    def set_lamp(room: str, lit: bool) -> str:
        """Switch a lamp."""
        return f"in the {room}: {lit}"

    return tools.tool(args_schema=Lamp)(set_lamp)


def test_invoke_and_stream_and_batch_say_the_same(server: dict[str, Any]) -> None:
    chat = langchain_openai.ChatOpenAI(**server, temperature=0, max_tokens=16)
    whole = chat.invoke(QUESTION)
    assert whole.usage_metadata["total_tokens"] > whole.usage_metadata["output_tokens"] > 0
    assert whole.response_metadata["finish_reason"] == "length"
    chunks = list(chat.stream(QUESTION, stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    [usage] = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage["total_tokens"] == whole.usage_metadata["total_tokens"]
    assert [each.content for each in chat.batch([QUESTION] * 2)] == [whole.content] * 2


def test_completions_say_the_same_too(server: dict[str, Any]) -> None:
    llm = langchain_openai.OpenAI(**server, temperature=0, max_tokens=2)
    prompt = "The capital of France is"
    assert llm.invoke(prompt) == "".join(llm.stream(prompt)) == " Paris."
    assert llm.batch([prompt] * 2) == [" Paris."] * 2


@pytest.mark.parametrize("choice", ["any", "set_lamp"])
def test_a_bound_tool_is_called_at_once_and_streamed(chat: Any, set_lamp: Any, choice: str) -> None:
    bound = chat.bind_tools([set_lamp], tool_choice=choice, strict=True, parallel_tool_calls=False)
    [call] = bound.invoke("Light the hall.").tool_calls
    assert call["name"] == "set_lamp"
    Lamp.model_validate(call["args"])
    first, *rest = bound.stream("Light the hall.")
    streamed = sum(rest, start=first)
    assert [each["args"] for each in streamed.tool_calls] == [call["args"]]
    assert streamed.invalid_tool_calls == []


def test_what_a_tool_said_goes_back_to_the_model(chat: Any, set_lamp: Any) -> None:
    bound = chat.bind_tools([set_lamp], tool_choice="any", strict=True, parallel_tool_calls=False)
    called = bound.invoke("Light the hall.")
    said = set_lamp.invoke(called.tool_calls[0])
    answer = chat.bind_tools([set_lamp]).invoke([("user", "Light the hall."), called, said])
    assert answer.content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_of_its_type(chat: Any, method: str) -> None:
    structured = chat.with_structured_output(Weather, method=method, strict=True)
    assert isinstance(structured.invoke(QUESTION), Weather)


def test_an_asynchronous_stream_is_the_same(server: dict[str, Any]) -> None:
    chat = langchain_openai.ChatOpenAI(**server, temperature=0, max_tokens=16)

    async def gather() -> str:
        return "".join([chunk.content async for chunk in chat.astream(QUESTION)])

    assert asyncio.run(gather()) == chat.invoke(QUESTION).content


def test_embeddings_of_documents_and_of_a_query(server: dict[str, Any]) -> None:
    """Without check_embedding_ctx_length it would send ids of OpenAI's tokenizer, not ours."""
    embeddings = langchain_openai.OpenAIEmbeddings(**server, check_embedding_ctx_length=False)
    first, second = embeddings.embed_documents(["a lamp", "the hall"])
    assert first == pytest.approx(embeddings.embed_query("a lamp"))
    assert len(first) == len(second)
    assert first != pytest.approx(second, rel=0.1)
    short = langchain_openai.OpenAIEmbeddings(
        **server, check_embedding_ctx_length=False, dimensions=8
    )
    assert len(short.embed_query("a lamp")) == 8

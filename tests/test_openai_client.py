"""OpenAI's own client against a real server on a real socket, with a scripted engine behind it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import openai
import pytest
import uvicorn
from openai.types.chat import ChatCompletionUserMessageParam

from tests.fakes import Client, FakeEngine, Script, fail_after, hang_after, say

MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hi"}]


@contextmanager
def serving(script: Script) -> Iterator[tuple[openai.OpenAI, FakeEngine]]:
    engine = FakeEngine(script)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(Client(engine).app, http="httptools", loop="uvloop", log_config=None)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        try:
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=30) as client:
                yield client, engine
        finally:
            server.should_exit = True
            thread.join()


def test_chat() -> None:
    with serving(say("Hello 🚀")) as (client, _):
        answer = client.chat.completions.create(model="tiny", messages=MESSAGES, n=2, seed=1)
        assert [choice.message.content for choice in answer.choices] == ["Hello 🚀"] * 2
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2 * len("Hello 🚀".encode()) + 2


def test_chat_stream() -> None:
    with serving(say("Hello 🚀")) as (client, _):
        stream = client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(texts) == "Hello 🚀"
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens > 10


def test_chat_logprobs() -> None:
    with serving(say("Hi")) as (client, _):
        answer = client.chat.completions.create(
            model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert [entry.token for entry in logprobs.content] == ["H", "i"]
        assert len(logprobs.content[0].top_logprobs) == 2


def test_completions() -> None:
    with serving(say(" there")) as (client, _):
        answer = client.completions.create(model="tiny", prompt=["Hi", "Hi"], logprobs=1)
        assert [choice.text for choice in answer.choices] == [" there"] * 2
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4, 5]
        stream = client.completions.create(model="tiny", prompt="Hi", stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == " there"


def test_models() -> None:
    with serving(say("")) as (client, _):
        assert [model.id for model in client.models.list()] == ["tiny", "tiny-too"]
        assert client.models.retrieve("tiny-too").owned_by == "octavo"


def test_errors_are_the_clients_exceptions() -> None:
    with serving(fail_after("ab")) as (client, _):
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=99)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError) as missing:
            client.models.retrieve("nope")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model="tiny", prompt="Hi")
        with pytest.raises(openai.APIError, match="failed on this request"):
            list(client.completions.create(model="tiny", prompt="Hi", stream=True))


def test_a_client_that_hangs_up_cancels() -> None:
    with serving(hang_after("ab")) as (client, engine):
        stream = client.completions.create(model="tiny", prompt="Hi", n=3, stream=True)
        next(stream)
        assert len(engine.running) == 3
        stream.close()
        deadline = time.monotonic() + 30
        while engine.running and time.monotonic() < deadline:
            time.sleep(0.002)
        assert len(engine.cancelled) == 3

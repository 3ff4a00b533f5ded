"""OpenAI's own client where it must get what no model can be made to say: an engine with a script
is behind a real server, and what comes out of the client is known to the letter.

The client checks all answers against its types, but for streams of completions: OpenAI's chunks,
like ours, have no finish_reason before the last, which its type of them denies.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from service.auth import KeyRing, Tenant
from tests.fakes import Client, FakeEngine, Script, fail_after, hang_after, listening, say
from tests.processes import wait_until

MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hi"}]
KEYS = KeyRing({sha256(b"sk-right").digest(): Tenant("someone")})


@contextmanager
def scripted(script: Script, keys: KeyRing | None = None) -> Iterator[tuple[str, FakeEngine]]:
    """The base URL of a server, and what is behind it."""
    engine = FakeEngine(script)
    with listening(Client(engine, keys)) as (host, port):
        yield f"http://{host}:{port}/v1", engine


@contextmanager
def calling(
    script: Script, keys: KeyRing | None = None, *, key: str = "none", strict: bool = True
) -> Iterator[tuple[openai.OpenAI, FakeEngine]]:
    with (
        scripted(script, keys) as (url, engine),
        openai.OpenAI(
            base_url=url,
            api_key=key,
            max_retries=0,
            timeout=30,
            _strict_response_validation=strict,
        ) as client,
    ):
        yield client, engine


def test_chat() -> None:
    with calling(say("Hello 🚀")) as (client, _):
        answer = client.chat.completions.create(model="tiny", messages=MESSAGES, n=2, seed=1)
    assert [choice.message.content for choice in answer.choices] == ["Hello 🚀"] * 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2 * len("Hello 🚀".encode()) + 2


def test_chat_stream() -> None:
    with calling(say("Hello 🚀")) as (client, _):
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
    with calling(say("Hi")) as (client, _):
        answer = client.chat.completions.create(
            model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2
        )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["H", "i"]
    assert len(logprobs.content[0].top_logprobs) == 2


def test_completions() -> None:
    with calling(say(" there")) as (client, _):
        answer = client.completions.create(model="tiny", prompt=["Hi", "Hi"], logprobs=1)
    assert [choice.text for choice in answer.choices] == [" there"] * 2
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4, 5]


def test_completions_stream() -> None:
    with calling(say(" there"), strict=False) as (client, _):
        chunks = list(client.completions.create(model="tiny", prompt="Hi", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == " there"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_models() -> None:
    with calling(say("")) as (client, _):
        assert [model.id for model in client.models.list()] == ["tiny", "tiny-too"]
        assert client.models.retrieve("tiny-too").owned_by == "octavo"


def test_a_bad_request_is_told_with_its_parameter() -> None:
    with (
        calling(say("")) as (client, _),
        pytest.raises(openai.BadRequestError) as bad,
    ):
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=99)
    assert (bad.value.type, bad.value.param) == ("invalid_request_error", "temperature")
    assert bad.value.request_id


def test_a_wrong_key_is_an_authentication_error() -> None:
    with (
        calling(say(""), KEYS, key="sk-wrong") as (client, _),
        pytest.raises(openai.AuthenticationError) as wrong,
    ):
        client.models.list()
    assert wrong.value.code == "invalid_api_key"


def test_the_right_key_is_let_in() -> None:
    with calling(say("Hi"), KEYS, key="sk-right") as (client, _):
        assert client.completions.create(model="tiny", prompt="Hi").choices[0].text == "Hi"


def test_an_unknown_model_is_not_found() -> None:
    with calling(say("")) as (client, _):
        with pytest.raises(openai.NotFoundError) as missing:
            client.models.retrieve("nope")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nope", messages=MESSAGES)


def test_too_many_requests_are_a_rate_limit_that_says_when_to_come_again() -> None:
    once = KeyRing({sha256(b"sk-right").digest(): Tenant("someone", requests_per_minute=1)})
    with calling(say("Hi"), once, key="sk-right") as (client, _):
        client.completions.create(model="tiny", prompt="Hi")
        with pytest.raises(openai.RateLimitError) as limited:
            client.completions.create(model="tiny", prompt="Hi")
    assert limited.value.code == "rate_limit_exceeded"
    assert 1 <= int(limited.value.response.headers["retry-after"]) <= 60


def test_a_failure_of_the_server_is_told_at_once_or_in_the_stream() -> None:
    with calling(fail_after("ab"), strict=False) as (client, _):
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model="tiny", prompt="Hi")
        with pytest.raises(openai.APIError, match="failed on this request"):
            list(client.completions.create(model="tiny", prompt="Hi", stream=True))


def test_a_client_that_hangs_up_cancels() -> None:
    with calling(hang_after("ab"), strict=False) as (client, engine):
        stream = client.completions.create(model="tiny", prompt="Hi", n=3, stream=True)
        next(stream)
        assert len(engine.running) == 3
        stream.close()
        wait_until(lambda: not engine.running)
        assert len(engine.cancelled) == 3


def test_a_task_that_is_cancelled_cancels_what_it_awaits() -> None:
    async def give_up(url: str, engine: FakeEngine) -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            create = client.chat.completions.create(model="tiny", messages=MESSAGES)
            asking = asyncio.create_task(create)
            await asyncio.to_thread(wait_until, lambda: bool(engine.running))
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    with scripted(hang_after("ab")) as (url, engine):
        asyncio.run(give_up(url, engine))
        wait_until(lambda: not engine.running)
        assert len(engine.cancelled) == 1

"""Prompts become ids that fit, or are refused; long ones off the event loop."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from service.api.errors import ApiError
from service.api.prompts import INLINE_CHARS, encode_chat, encode_prompts, max_new_tokens
from service.api.schema_messages import ChatPrompt, Message
from service.api.served import Serving
from service.engine.messages import EngineInfo
from service.text.chat_template import ChatTemplate
from service.text.model import TextModel
from tests.fakes import MAX_MODEL_LEN, START, Client, make_text


def make_serving() -> Serving:
    serving: Serving = Client().app.state.served.serving()
    return serving


@pytest.mark.parametrize(("prompt_len", "asked", "limit"), [(1, 9, 9), (1, None, 9), (9, 1, 1)])
def test_what_fits(prompt_len: int, asked: int | None, limit: int) -> None:
    assert max_new_tokens(prompt_len, asked, max_model_len=10, param="prompt") == limit


@pytest.mark.parametrize(("prompt_len", "asked"), [(1, 10), (10, None), (10, 1), (999, None)])
def test_what_does_not_fit(prompt_len: int, asked: int | None) -> None:
    with pytest.raises(ApiError, match=f"10 tokens.*{prompt_len}") as caught:
        max_new_tokens(prompt_len, asked, max_model_len=10, param="input")
    error = caught.value.body["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")


def test_nothing_to_go_on_from() -> None:
    with pytest.raises(ApiError, match="no tokens") as caught:
        max_new_tokens(0, 5, max_model_len=10, param="messages")
    assert caught.value.body["error"]["param"] == "messages"


class Watched(ChatTemplate):
    """Remembers the thread that renders."""

    thread = 0

    def render(self, *args: Any, **kwargs: Any) -> str:
        self.thread = threading.get_ident()
        return super().render(*args, **kwargs)


@pytest.mark.parametrize(
    ("messages", "inline"),
    [
        ([Message(role="user", content="Hi")], True),
        ([Message(role="user", content="x" * INLINE_CHARS)], False),
        ([Message(role="assistant")] * INLINE_CHARS, False),
    ],
)
def test_long_chats_are_encoded_in_a_thread(messages: list[Message], inline: bool) -> None:
    template = Watched("{% for m in messages %}{{ m.content }}{% endfor %}")
    serving = replace(
        make_serving(),
        text=TextModel(make_text().tokenizer, template),
        info=EngineInfo(max_model_len=INLINE_CHARS, vocab_size=258, page_size=1, num_pages=1),
    )
    text, encoded = asyncio.run(encode_chat(ChatPrompt(messages=messages), serving))
    assert (template.thread == threading.get_ident()) == inline
    assert text == bytes(encoded).decode() == "".join(m.content or "" for m in messages)


def test_text_that_cannot_fit_is_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = make_serving()
    longest = MAX_MODEL_LEN * serving.text.tokenizer.max_token_bytes
    assert asyncio.run(encode_prompts(["x" * longest], serving, add_special_tokens=True))
    monkeypatch.setattr(serving.text.tokenizer, "encode", None)
    for text in ("x" * (longest + 1), "é" * (longest // 2 + 1)):
        with pytest.raises(ApiError, match="bytes of text"):
            asyncio.run(encode_prompts([text], serving, add_special_tokens=True))


@pytest.mark.parametrize("add", [False, True])
def test_special_tokens_are_added_to_texts_where_asked_for(add: bool) -> None:
    text = make_text(bos_id=START)
    serving = replace(make_serving(), text=text)
    message = Message(role="user", content="Hi")
    start = [START] if add else []
    asked = ChatPrompt(messages=[message], add_special_tokens=add)
    rendered, chat = asyncio.run(encode_chat(asked, serving))
    assert rendered == text.chat_template.render([message.for_template()])
    assert chat == start + text.tokenizer.encode(rendered, add_special_tokens=False)
    prompts = asyncio.run(encode_prompts(["Hi", [1, 2]], serving, add_special_tokens=add))
    assert prompts == [[*start, *b"Hi"], [1, 2]]


def kept(**fields: Any) -> tuple[list[int], int]:
    """The prompt that is submitted for "abc", and how many tokens may follow it."""
    client = Client()
    answer = client.complete(**{"prompt": "abc"} | fields)
    assert answer.status_code == 200, answer.text
    [request] = client.engine.submitted
    return request.prompt_ids, request.max_tokens


@pytest.mark.parametrize("prompt", ["abc", [*b"abc"]])
def test_the_end_of_a_prompt_is_kept(prompt: Any) -> None:
    for num_kept, left in ((1, b"c"), (2, b"bc"), (3, b"abc"), (2**40, b"abc"), (-1, b"abc")):
        assert kept(prompt=prompt, truncate_prompt_tokens=num_kept)[0] == [*left]


def test_a_prompt_is_cut_so_that_what_follows_fits() -> None:
    long = "x" * 1000 + "y"
    prompt_ids, max_tokens = kept(prompt=long, truncate_prompt_tokens=-1, max_tokens=30)
    assert (len(prompt_ids), prompt_ids[-1], max_tokens) == (MAX_MODEL_LEN - 30, ord("y"), 30)
    prompt_ids, _ = kept(prompt=long, truncate_prompt_tokens=-1, max_tokens=0, echo=True)
    assert len(prompt_ids) == MAX_MODEL_LEN
    client = Client()
    messages = [{"role": "user", "content": long}]
    assert client.chat(messages=messages, truncate_prompt_tokens=-1).status_code == 200
    [request] = client.engine.submitted
    assert (len(request.prompt_ids), request.max_tokens) == (MAX_MODEL_LEN - 1, 1)


def test_what_cannot_be_cut_enough_is_too_long() -> None:
    for fields in ({"truncate_prompt_tokens": MAX_MODEL_LEN}, {"max_tokens": MAX_MODEL_LEN}):
        answer = Client().complete(**{"prompt": "x" * 999, "truncate_prompt_tokens": -1} | fields)
        assert answer.json()["error"]["code"] == "context_length_exceeded"


VARIED = ChatTemplate(
    "{% for m in messages %}<{{ m.content }}>{% endfor %}{{ style }}"
    "{% if add_generation_prompt %}:{% endif %}"
)


def rendered(**fields: Any) -> str:
    client = Client(text=TextModel(make_text().tokenizer, VARIED))
    assert client.chat(**fields).status_code == 200
    return bytes(client.engine.submitted[0].prompt_ids).decode()


def test_a_chat_may_go_on_with_its_last_message() -> None:
    assert rendered() == "<Hi>:"
    assert rendered(add_generation_prompt=False) == "<Hi>"
    assert rendered(continue_final_message=True) == "<Hi"


def test_variables_reach_the_template() -> None:
    assert rendered(chat_template_kwargs={"style": "!"}) == "<Hi>!:"


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "add_generation_prompt", "x"])
def test_variables_that_the_template_does_not_ask_for_are_refused(name: str) -> None:
    client = Client(text=TextModel(make_text().tokenizer, VARIED))
    error = client.chat(chat_template_kwargs={name: "a"}).json()["error"]
    assert error["param"] == "chat_template_kwargs"
    assert f'"{name}"' in error["message"]
    assert "asks for style" in error["message"]
    none = Client().chat(chat_template_kwargs={name: "a"}).json()["error"]
    assert "asks for none" in none["message"]


def test_a_last_message_that_cannot_go_on_is_a_mistake_of_the_clients() -> None:
    text = TextModel(make_text().tokenizer, ChatTemplate("{{ messages | length }}"))
    answer = Client(text=text).chat(continue_final_message=True)
    assert answer.status_code == 400
    assert "continue_final_message" in answer.json()["error"]["message"]

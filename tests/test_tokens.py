"""The tokenizer's routes: ids of texts and chats, texts of ids, and nothing generated."""

from typing import Any

import pytest

from service.api.schema_tokens import MAX_TOKENS
from tests.fakes import END, MAX_MODEL_LEN, START, TEMPLATE, VOCAB_SIZE, Client, make_text

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = "<|start|>user\nHi<|end|><|start|>assistant\n"
CHAT_IDS = make_text().tokenizer.encode(CHAT)


def ask(path: str, client: Client | None = None, **body: Any) -> Any:
    answer = (client or Client()).post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(path: str, **body: Any) -> Any:
    answer = Client().post(path, body)
    assert answer.status_code in (400, 404), answer.text
    return answer.json()["error"]


@pytest.mark.parametrize(("path", "bos_id"), [("/tokenize", None), ("/tokenize", START)])
def test_a_prompt_becomes_ids(path: str, bos_id: int | None) -> None:
    client = Client(text=make_text(bos_id=bos_id))
    begin = [] if bos_id is None else [bos_id]
    ids = [*begin, *"é!".encode()]
    expected = {"count": len(ids), "max_model_len": MAX_MODEL_LEN, "tokens": ids}
    assert ask(path, client, prompt="é!") == expected | {"token_strs": None}
    bare = ask(path, client, prompt="é!", add_special_tokens=False)
    assert bare["tokens"] == [*"é!".encode()]


def test_tokens_are_spelled_as_the_vocabulary_does() -> None:
    answer = ask("/tokenize", prompt=" é<|end|>", return_token_strs=True)
    assert answer["token_strs"] == ["Ġ", "Ã", "©", "<|end|>"]


def test_no_text_is_no_tokens() -> None:
    assert ask("/tokenize", prompt="")["count"] == 0


def test_a_chat_becomes_the_ids_that_a_completion_of_it_has() -> None:
    client = Client()
    client.chat()
    assert ask("/tokenize", client, messages=MESSAGES)["tokens"] == CHAT_IDS
    assert client.engine.submitted[0].prompt_ids == CHAT_IDS
    continued = ask("/tokenize", client, messages=MESSAGES, continue_final_message=True)
    assert continued["tokens"] == make_text().tokenizer.encode("<|start|>user\nHi")
    added = ask(
        "/tokenize",
        Client(text=make_text(bos_id=START)),
        messages=MESSAGES,
        add_special_tokens=True,
    )
    assert added["tokens"] == [START, *CHAT_IDS]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "Hi", "messages": MESSAGES}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"prompt": "Hi", "model": "nope"}, "model"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"messages": MESSAGES, "chat_template": "{{ 1 }}"}, "chat_template"),
    ],
)
def test_what_cannot_be_tokenized_is_refused_by_name(body: Any, param: str) -> None:
    assert refusal("/tokenize", **body)["param"] == param


@pytest.mark.parametrize("ids", [[], [*"é!".encode()], [END, *b"x" * 5000], [0xC3]])
def test_ids_become_text_with_the_special_tokens(ids: list[int]) -> None:
    text = bytes(id_ for id_ in ids if id_ != END).decode(errors="replace")
    expected = ("<|end|>" if END in ids else "") + text
    assert ask("/detokenize", tokens=ids) == {"prompt": expected}


@pytest.mark.parametrize(
    "tokens", [None, "Hi", [-1], [VOCAB_SIZE], ["1"], [1.0], [2**70], [1] * (MAX_TOKENS + 1)]
)
def test_what_is_no_list_of_ids_is_refused(tokens: Any) -> None:
    assert refusal("/detokenize", tokens=tokens)["param"].startswith("tokens")


def test_a_completion_can_be_rendered_without_being_run() -> None:
    client = Client()
    asked = {"messages": MESSAGES, "model": "tiny", "temperature": 0, "max_tokens": 5}
    answer = ask("/v1/chat/completions/render", client, **asked)
    assert answer == {
        "prompt": CHAT,
        "prompt_token_ids": CHAT_IDS,
        "count": len(CHAT_IDS),
        "max_model_len": MAX_MODEL_LEN,
    }
    short = ask("/v1/chat/completions/render", client, truncate_prompt_tokens=3, **asked)
    assert short["prompt_token_ids"] == CHAT_IDS[-3:]
    assert not client.engine.submitted
    bad = refusal("/v1/chat/completions/render", messages=MESSAGES, temperature=9)
    assert bad["param"] == "temperature"
    assert refusal("/v1/chat/completions/render", messages=MESSAGES, model="x")["param"] == "model"


def test_the_tokenizers_config_is_shown_where_it_is_wanted() -> None:
    assert Client().get("/tokenizer_info").status_code == 404
    client = Client(tokenizer_info=True, text=make_text(bos_id=START))
    assert client.get("/tokenizer_info").json() == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|start|>",
        "eos_token": "<|end|>",
        "pad_token": None,
        "additional_special_tokens": ["<|end|>", "<|start|>"],
        "model_max_length": MAX_MODEL_LEN,
        "vocab_size": VOCAB_SIZE,
        "chat_template": TEMPLATE,
    }
    without = Client(tokenizer_info=True, text=make_text()).get("/tokenizer_info").json()
    assert without["bos_token"] is None

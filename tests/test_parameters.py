"""What parameters do to a real model's answers, through a real server."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.served import SECONDS

PROMPT = "The three primary colours are"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=SECONDS) as client:
        yield client


def complete(client: httpx.Client, **fields: Any) -> Any:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 24, "return_token_ids": True}
    answer = client.post("/v1/completions", json=body | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_scoring_a_text_gives_the_logprobs_that_it_was_generated_with(
    client: httpx.Client,
) -> None:
    made = complete(client, logprobs=2)
    scored = complete(
        client,
        prompt=made["prompt_token_ids"] + made["token_ids"],
        max_tokens=0,
        echo=True,
        logprobs=2,
        prompt_logprobs=0,
    )
    assert scored["text"] == PROMPT + made["text"]
    start = len(made["prompt_token_ids"])
    for key in ("tokens", "text_offset"):
        offset = len(PROMPT) if key == "text_offset" else ""
        expected = [value + offset for value in made["logprobs"][key]]
        assert scored["logprobs"][key][start:] == expected
    got = scored["logprobs"]["token_logprobs"][start:]
    assert got == pytest.approx(made["logprobs"]["token_logprobs"], abs=0.02)
    ranks = [
        place[str(token_id)]["rank"]
        for token_id, place in zip(
            made["token_ids"], scored["prompt_logprobs"][start:], strict=True
        )
    ]
    assert ranks == [1] * len(ranks), "what was drawn greedily was the likeliest"


def test_what_is_banned_is_not_generated(client: httpx.Client) -> None:
    plain = complete(client)
    first = plain["token_ids"][0]
    for ban in (
        {"logit_bias": {str(first): -100}},
        {"bad_words": [plain["text"].split()[0]]},
        {"allowed_token_ids": [i for i in range(100, 2000) if i != first]},
    ):
        choice = complete(client, **ban)
        assert first not in choice["token_ids"]
        assert choice["text"].split()[:1] != plain["text"].split()[:1]


def test_what_is_allowed_or_favoured_is_generated(client: httpx.Client) -> None:
    assert set(complete(client, allowed_token_ids=[500, 501])["token_ids"]) <= {500, 501}
    assert complete(client, logit_bias={"777": 100}, max_tokens=3)["token_ids"] == [777] * 3


def test_penalties_make_the_favoured_take_turns(client: httpx.Client) -> None:
    """Of two ids that nothing else comes near, the model likes one better, by less than 20."""
    favoured = {"logit_bias": {"777": 100, "778": 100}, "max_tokens": 40}
    assert set(complete(client, **favoured)["token_ids"]) <= {777, 778}
    drawn = complete(client, **favoured, frequency_penalty=2)["token_ids"]
    assert abs(drawn.count(777) - drawn.count(778)) <= 11
    first, second, *_ = complete(client, **favoured, repetition_penalty=1.5)["token_ids"]
    assert {first, second} == {777, 778}


def test_no_end_comes_before_the_least_number_of_tokens(client: httpx.Client) -> None:
    stop = complete(client)["token_ids"][0]
    ended = complete(client, stop_token_ids=[stop])
    assert (ended["token_ids"], ended["finish_reason"]) == ([stop], "stop")
    longer = complete(client, stop_token_ids=[stop], min_tokens=10)
    assert stop not in longer["token_ids"][:10]
    assert len(longer["token_ids"]) > 10


def test_a_seed_decides_and_the_best_of_several_is_among_them(client: httpx.Client) -> None:
    asked = {"temperature": 1.2, "seed": 11, "logprobs": 0, "max_tokens": 8}
    assert complete(client, **asked) == complete(client, **asked)
    assert complete(client, **asked) != complete(client, **asked | {"seed": 12})
    body = {"prompt": PROMPT, **asked}
    drawn = client.post("/v1/completions", json=body | {"n": 4}).json()["choices"]

    def mean(choice: Any) -> float:
        logprobs = choice["logprobs"]["token_logprobs"]
        return sum(logprobs) / len(logprobs)

    best = client.post("/v1/completions", json=body | {"best_of": 4}).json()
    assert best["choices"][0]["text"] == max(drawn, key=mean)["text"]
    assert best["usage"]["completion_tokens"] == 32


def test_a_chat_goes_on_with_its_last_message(client: httpx.Client) -> None:
    said = "The capital of France is"
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": said},
    ]
    body = {"messages": messages, "temperature": 0, "max_tokens": 5}
    answer = client.post("/v1/chat/completions", json=body | {"continue_final_message": True})
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    rendered = client.post(
        "/v1/chat/completions/render", json=body | {"continue_final_message": True}
    )
    assert rendered.json()["prompt"].endswith(f"assistant\n{said}")


def test_the_tokenizers_routes_agree_with_completions(client: httpx.Client) -> None:
    choice = complete(client, max_tokens=1)
    tokenized = client.post("/tokenize", json={"prompt": PROMPT, "return_token_strs": True}).json()
    assert tokenized["tokens"] == choice["prompt_token_ids"]
    assert "".join(tokenized["token_strs"]).replace("Ġ", " ") == PROMPT
    back = client.post("/detokenize", json={"tokens": tokenized["tokens"]}).json()
    assert back == {"prompt": PROMPT}

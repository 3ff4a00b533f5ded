"""Bodies that ask for too much, for nothing, or aren't quite JSON (CVE-2024-8768, CVE-2024-8939,
CVE-2026-34756): refused with 400 before anything is tokenized or submitted, and never a 5xx."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import httpx
import orjson
import pytest
from pydantic import BaseModel

from service.api.schema import ChatRequest, CompletionRequest
from tests.fakes import MAX_MODEL_LEN, Client, FakeEngine, listening, say
from tests.security.wire import Address, exchange, request, status_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    CHAT: (ChatRequest, {"messages": [{"role": "user", "content": "Hi"}]}),
    COMPLETIONS: (CompletionRequest, {"prompt": "Hi"}),
}
SIZES = ["-1", "0", str(1 << 31), str(1 << 63), str(10**30)]
NO_NUMBERS = ["1e400", "NaN", "-Infinity", '"3"']


def is_number(annotation: Any) -> bool:
    """int, or perhaps int; not a list of them."""
    if get_origin(annotation) in (list, dict):
        return False
    return annotation in (int, float) or any(map(is_number, get_args(annotation)))


def number_fields() -> list[tuple[str, str]]:
    return [
        (path, name)
        for path, (model, _) in BODIES.items()
        for name, field in model.model_fields.items()
        if is_number(field.annotation)
    ]


def post(client: Client, path: str, **raw: str) -> httpx.Response:
    """With these values as they are written."""
    _, body = BODIES[path]
    fields = [orjson.dumps(body).decode()[1:-1], *(f'"{name}":{raw[name]}' for name in raw)]
    content = "{" + ",".join(fields) + "}"
    headers = {"content-type": "application/json"}
    return client.request("POST", path, content=content, headers=headers)


@pytest.fixture(scope="module")
def client() -> Client:
    return Client(FakeEngine(say("Hello.")))


def test_numbers_are_found_among_the_fields() -> None:
    found = {name for _, name in number_fields()}
    assert {"n", "max_tokens", "seed", "top_k", "temperature", "best_of", "priority"} <= found


@pytest.mark.parametrize(("path", "name"), number_fields())
@pytest.mark.parametrize("value", SIZES)
def test_a_number_of_any_size_is_taken_or_refused(
    client: Client, path: str, name: str, value: str
) -> None:
    answer = post(client, path, **{name: value})
    assert answer.status_code in (200, 400)
    assert answer.status_code == 200 or answer.json()["error"]["message"]


@pytest.mark.parametrize(("path", "name"), number_fields())
@pytest.mark.parametrize("value", [*NO_NUMBERS, "true"])
def test_what_is_no_number_is_refused(client: Client, path: str, name: str, value: str) -> None:
    num_before = len(client.engine.submitted)
    answer = post(client, path, **{name: value})
    assert answer.status_code == 400
    assert len(client.engine.submitted) == num_before


@pytest.mark.parametrize(
    "asked",
    [
        *({"n": 10**9}, {"best_of": 10**9}, {"n": 129}, {"best_of": 129}),
        *({"logprobs": -1}, {"logprobs": 21}, {"prompt_logprobs": 21}),
        *({"prompt": ["Hi"] * 10**5}, {"prompt": ["Hi"] * 129}, {"prompt": ["Hi"] * 3, "n": 128}),
        *({"stop": ["a"] * 10**5}, {"stop": "a" * 257}),
        *({"prompt": [[1]] * 10**5}, {"prompt": [1] * (MAX_MODEL_LEN + 1)}),
        *({"logit_bias": {str(i): 1 for i in range(10**5)}}, {"bad_words": ["a"] * 10**5}),
    ],
    ids=lambda asked: ",".join(asked),
)
def test_what_would_cost_too_much_is_refused_before_it_costs(
    client: Client, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = client.app.state.served.serving().text.tokenizer
    monkeypatch.setattr(tokenizer, "encode", None)
    num_before = len(client.engine.submitted)
    answer = client.post(COMPLETIONS, {"prompt": [1]} | asked)
    assert answer.status_code == 400, answer.text
    assert len(client.engine.submitted) == num_before


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], ["Hi", ""], [[1], []], None])
def test_empty_prompts(client: Client, prompt: Any) -> None:
    num_before = len(client.engine.submitted)
    assert client.post(COMPLETIONS, {"prompt": prompt}).status_code == 400
    assert len(client.engine.submitted) == num_before


@pytest.mark.parametrize("messages", [[], None, {}, [{}], [[]], [{"role": "user"}]])
def test_empty_chats(client: Client, messages: Any) -> None:
    assert client.post(CHAT, {"messages": messages}).status_code == 400


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    with listening(Client(FakeEngine(say("Hello.")))) as address:
        yield address


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"{",
            b'{"prompt": "Hi"',
            b'{"prompt": "Hi"}}',
            b'{"prompt": "Hi",}',
            b"nothing",
            b"\x00",
        ),
        *(
            b'{"prompt": "\xff\xfe"}',
            b'{"prompt": "\xed\xa0\x80"}',
            b'{"prompt": "\\ud800"}',
        ),
        *(b'\xef\xbb\xbf{"prompt": "Hi"}', b'{"prompt": NaN}', b"{'prompt': 'Hi'}"),
        *(b'{"a":' * 100_000, b"[" * 100_000, b'{"prompt": ' + b"[" * 2000 + b"]" * 2000 + b"}"),
        *(b'"Hi"', b"[]", b"null", b"1", b'{"prompt": "Hi\x01"}'),
    ],
    ids=range(20),
)
def test_what_is_not_quite_json_is_400(address: Address, body: bytes) -> None:
    sent = request(body=body, content_type="application/json")
    assert status_of(exchange(address, sent)) == 400


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"prompt": "Hi\\u0000"}', 200),
        (b'{"prompt": "Hi", "prompt": "you"}', 200),
        (b'{"prompt": "Hi", "unknown": {"a": [1]}}', 200),
        (b' \r\n\t{"prompt": "Hi"} \n', 200),
    ],
)
def test_what_is_json_is_taken(address: Address, body: bytes, status: int) -> None:
    assert status_of(exchange(address, request(body=body))) == status


@pytest.mark.parametrize(
    "headers",
    [
        *({"content_type": "text/plain"}, {"content_type": "multipart/form-data; boundary=x"}),
        *({"content_type": "application/x-www-form-urlencoded"}, {"content_encoding": "gzip"}),
        *({"content_encoding": "br, gzip"}, {"origin": "https://evil.example"}),
    ],
)
def test_what_is_sent_as_something_else_is_415(address: Address, headers: dict[str, str]) -> None:
    response = exchange(address, request(body=b'{"prompt": "Hi"}', **headers))
    assert status_of(response) == 415


def test_a_failure_of_ours_tells_its_id_and_nothing_else(address: Address) -> None:
    def script(request: object) -> Any:
        raise RuntimeError("/home/secret/path and a prompt")

    engine = FakeEngine(script)
    with listening(Client(engine)) as broken:
        response = exchange(broken, request(body=b'{"prompt": "my secret"}', x_request_id="id-1"))
    assert status_of(response) == 500
    assert response.count(b"id-1") == 2
    for secret in (b"secret", b"Traceback", b"RuntimeError", b"service/", b".py"):
        assert secret not in response

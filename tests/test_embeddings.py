"""POST /v1/embeddings: vectors of length 1, each of its own text."""

import asyncio
import base64
import math
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from service.api.caller import Caller
from service.api.embeddings import Embedding, unit
from service.api.errors import ApiError
from service.api.schema_embeddings import EmbeddingRequest
from service.engine.messages import Event, Request
from tests.fakes import (
    MAX_MODEL_LEN,
    Client,
    Connection,
    FakeEngine,
    fail_after,
    hang_after,
    read_metric,
)


def embed(request: Request) -> Iterator[Event]:
    """3, 4, 0 and the prompt's length, twice as long as in reality."""
    vector = [6.0, 8.0, 0.0, 2.0 * len(request.prompt_ids)]
    yield Event(request_id=request.id, embedding=vector, finish_reason="length")


def ask(client: Client | None = None, **body: Any) -> httpx.Response:
    return (client or Client(FakeEngine(embed))).post("/v1/embeddings", {"input": "Hi"} | body)


def test_a_text_has_a_vector_of_length_one() -> None:
    answer = ask(model="tiny").json()
    assert answer["object"] == "list"
    assert answer["model"] == "tiny"
    [entry] = answer["data"]
    assert (entry["object"], entry["index"]) == ("embedding", 0)
    length = math.hypot(3, 4, 2)
    assert entry["embedding"] == pytest.approx([3 / length, 4 / length, 0, 2 / length], rel=1e-6)
    assert answer["usage"] == {"prompt_tokens": 2, "total_tokens": 2}


@pytest.mark.parametrize(
    ("texts", "lens"),
    [(["a", "bcd"], [1, 3]), ([97, 98, 99], [3]), ([[97], [98, 99]], [1, 2])],
)
def test_every_text_has_its_own_in_order(texts: Any, lens: list[int]) -> None:
    client = Client(FakeEngine(embed))
    answer = ask(client, input=texts).json()
    assert [entry["index"] for entry in answer["data"]] == list(range(len(lens)))
    ratios = [e["embedding"][3] / e["embedding"][0] for e in answer["data"]]
    assert ratios == pytest.approx([length / 3 for length in lens], rel=1e-6)
    assert answer["usage"]["prompt_tokens"] == sum(lens)
    assert [request.max_tokens for request in client.engine.submitted] == [0] * len(lens)


def test_base64_is_the_same_numbers_as_little_endian_floats() -> None:
    [floats] = ask().json()["data"]
    [packed] = ask(encoding_format="base64").json()["data"]
    assert array("f", base64.b64decode(packed["embedding"])).tolist() == floats["embedding"]


def test_fewer_dimensions_are_the_first_ones_scaled_anew() -> None:
    [entry] = ask(dimensions=2).json()["data"]
    assert entry["embedding"] == pytest.approx([0.6, 0.8], rel=1e-6)
    answer = ask(dimensions=5)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "dimensions"


def test_a_vector_of_zeros_stays_one() -> None:
    assert unit([0.0, 0.0], None) == [0.0, 0.0]


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_the_pooling_reaches_the_engine(pooling: str) -> None:
    client = Client(FakeEngine(embed))
    ask(client, pooling=pooling)
    assert client.engine.submitted[0].pooling == pooling


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [999]}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"pooling": "max"}, "pooling"),
        ({"model": "other"}, "model"),
    ],
)
def test_mistakes_are_named(body: dict[str, Any], param: str) -> None:
    answer = ask(**body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


def test_a_text_without_tokens_is_refused() -> None:
    serving = Client().app.state.served.serving()
    ticket = serving.ticket("embd", None, Caller())
    with pytest.raises(ApiError, match="no tokens at 1"):
        Embedding(ticket, EmbeddingRequest(input=["Hi"]), [[1], []], serving)


def test_a_text_beyond_the_context_is_refused() -> None:
    answer = ask(input="a" * (MAX_MODEL_LEN + 1))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert ask(input="a" * MAX_MODEL_LEN).status_code == 200


@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("refused", 400)])
def test_a_failure_of_one_is_the_failure_of_all(reason: Any, status: int) -> None:
    def script(request: Request) -> Any:
        return (fail_after("", reason) if request.id.endswith("1") else hang_after(""))(request)

    client = Client(FakeEngine(script))
    assert ask(client, input=["a", "b", "c"]).status_code == status
    assert not client.engine.running
    assert len(client.engine.cancelled) == 2


def test_a_deadline_ends_the_call() -> None:
    client = Client(FakeEngine(hang_after("")))
    answer = client.post("/v1/embeddings", {"input": "Hi"}, headers={"x-request-deadline-ms": "50"})
    assert answer.status_code == 504
    metrics = client.app.state.served.metrics
    assert read_metric(metrics, "requests_total", outcome="deadline") == 1
    assert read_metric(metrics, "rejections_total", reason="deadline") == 1
    assert not client.engine.running


class LateEngine(FakeEngine):
    """Takes its time to take a request."""

    @asynccontextmanager
    async def submit(self, request: Request) -> AsyncIterator[AsyncIterator[Event]]:
        await asyncio.sleep(0.6)
        async with super().submit(request) as events:
            yield events


def test_a_deadline_that_passes_before_there_is_anything_to_wait_for() -> None:
    client = Client(LateEngine(embed))
    answer = client.post(
        "/v1/embeddings", {"input": "Hi"}, headers={"x-request-deadline-ms": "500"}
    )
    assert answer.status_code == 504
    metrics = client.app.state.served.metrics
    assert read_metric(metrics, "requests_total", outcome="deadline") == 1
    assert client.engine.cancelled


def test_a_client_that_leaves_cancels_its_texts() -> None:
    client = Client(FakeEngine(hang_after("")))

    async def scenario() -> None:
        connection = Connection(client.app, "/v1/embeddings", {"input": ["a", "b"]})
        running = asyncio.create_task(connection.run())
        while len(client.engine.running) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        connection.disconnect()
        await running

    asyncio.run(scenario())
    assert len(client.engine.cancelled) == 2
    metrics = client.app.state.served.metrics
    assert read_metric(metrics, "requests_total", outcome="cancelled") == 2


def test_places_in_the_queue_are_given_back() -> None:
    client = Client(FakeEngine(embed), max_queued_requests=2)
    for _ in range(3):
        assert ask(client, input=["a", "b"]).status_code == 200
    assert client.app.state.served.serving().admission.num_requests == 0

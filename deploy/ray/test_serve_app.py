"""Two replicas of the default model on a local Ray: octavo's answers, whole and streamed; sessions
that stay where their beginning is cached; a replica that is killed, and replaced.

Not part of `make test`, since Ray has an environment of its own: `make test-ray`.
"""

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import yaml
from openai import OpenAI
from pydantic import ValidationError
from ray import serve
from ray.serve.schema import ServeDeploySchema

from deploy.ray.serve_app import Options, octavo
from tests.processes import children, command_of, wait_until
from tests.served import SECONDS

MODEL = "smollm2-135m"
OPTIONS = {
    "model": MODEL,
    "min_replicas": 2,
    "max_replicas": 2,
    "engine": {"kv_cache_memory": 128 << 20},
}
OBJECT_STORE_BYTES = 200_000_000
"""Requests don't go through it; Ray's own share would be a third of the memory."""
SESSIONS = [f"session-{number}" for number in range(8)]
"""All of them on one of two replicas: once in 128 runs."""
BEGINNING = "There once was a lighthouse on a rock, and in it lived a keeper with his two dogs. "
NUM_CLIENTS = 4


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a Ray that is this process's own, and ends with it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
    )
    try:
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(octavo(Options.model_validate(OPTIONS)))
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def replica_pids() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if b"ray::ServeReplica" in command_of(pid)]


def descendants(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from descendants(child)


def ask(url: str, prompt: str, session: str = "") -> httpx.Response:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0}
    headers = {"x-session-id": session} if session else {}
    return httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=SECONDS)


def num_cached(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    num: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return num


def metrics(url: str, session: str) -> dict[str, float]:
    """Of the replica where this session is."""
    text = httpx.get(f"{url}/metrics", headers={"x-session-id": session}, timeout=SECONDS).text
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def num_answered(url: str) -> dict[float, float]:
    """By each replica that has a session, told apart by how long its engine took to start."""
    seen = [metrics(url, session) for session in SESSIONS]
    return {
        each['octavo_startup_seconds{phase="process"}']: each[
            'octavo_requests_total{outcome="length"}'
        ]
        for each in seen
    }


def test_answers_are_octavos(url: str) -> None:
    answer = ask(url, BEGINNING)
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert answer.json()["usage"]["completion_tokens"] == 8
    refused = httpx.post(f"{url}/v1/completions", json={"model": "none", "prompt": "Hi"})
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"


def test_a_request_has_one_id(url: str) -> None:
    answer = httpx.get(f"{url}/v1/models", headers={"x-request-id": "mine"})
    assert answer.headers.get_list("x-request-id") == ["mine"]


def test_a_stream_comes_token_by_token(url: str) -> None:
    body = {
        "model": MODEL,
        "prompt": BEGINNING,
        "max_tokens": 40,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=SECONDS) as response:
        pieces = [piece.count(b"data: ") for piece in response.iter_raw()]
    assert sum(pieces) >= 40
    assert len(pieces) > 20, pieces  # some meet on a busy machine


def test_openais_client_gets_the_same_whole_and_streamed(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    question: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Name a colour."}],
        "max_tokens": 12,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**question).choices[0].message.content
    stream = client.chat.completions.create(**question, stream=True)
    assert whole
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


def test_who_leaves_is_computed_no_further(url: str) -> None:
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    session = SESSIONS[0]
    before = metrics(url, session)['octavo_requests_total{outcome="cancelled"}']
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=body, headers={"x-session-id": session}
    ) as response:
        next(response.iter_raw())
    wait_until(lambda: metrics(url, session)["octavo_requests_running"] == 0)
    assert metrics(url, session)['octavo_requests_total{outcome="cancelled"}'] == before + 1


def test_both_replicas_serve_who_has_no_session(url: str) -> None:
    before = num_answered(url)
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        answers = list(clients.map(lambda number: ask(url, f"Number {number}"), range(24)))
    assert {answer.status_code for answer in answers} == {200}
    shares = [num - before[replica] for replica, num in num_answered(url).items()]
    assert len(shares) == 2
    assert sum(shares) == 24
    assert min(shares) >= 4, shares


def test_a_session_stays_where_its_beginning_is_cached(url: str) -> None:
    for session in SESSIONS:
        beginning = f"{session}. {BEGINNING * 3}"
        assert num_cached(ask(url, beginning, session)) == 0
        assert num_cached(ask(url, f"{beginning} And then", session)) >= 32


def test_requests_go_on_when_a_replica_is_killed(url: str) -> None:
    """What it was at work on fails with 500, as Ray can't know whether it had begun to answer."""
    killed, other = replica_pids()

    def kill_then_ask(number: int) -> list[int]:
        if number == 0:
            os.kill(killed, signal.SIGKILL)
        return [ask(url, f"{number}: {BEGINNING}", f"{number}").status_code for _ in range(6)]

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        statuses = [
            each for ended in clients.map(kill_then_ask, range(NUM_CLIENTS)) for each in ended
        ]
    assert set(statuses) <= {200, 500}
    assert statuses.count(500) <= NUM_CLIENTS
    wait_until(lambda: len(replica_pids()) == 2 and len(num_answered(url)) == 2)
    assert killed not in replica_pids()
    assert other in replica_pids()
    assert {num_cached(ask(url, "Hi", session)) for session in SESSIONS} == {0}


def test_the_clusters_file_is_what_ray_and_the_app_take() -> None:
    text = Path(__file__).with_name("serve.yaml").read_text()
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(text)).applications
    assert application.import_path == f"{octavo.__module__}:{octavo.__name__}"
    octavo(Options.model_validate(application.args))


def test_replicas_follow_what_runs() -> None:
    options = Options.model_validate({"max_replicas": 3, "engine": {"max_sequences": 8}})
    deployment = octavo(options)._bound_deployment
    assert deployment.max_ongoing_requests == 16
    scaling = deployment._deployment_config.autoscaling_config
    assert scaling is not None
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 3)
    assert scaling.target_ongoing_requests == 6


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"server": {"port": 80}}, "say port in its http_options"),
        ({"min_replicas": 5}, "max_replicas is less"),
        ({"cpu": 2}, "cpu"),
        ({"engine": {"thread": 2}}, "thread"),
        ({"engine": {"max_sequences": 0}}, "max-sequences is 0"),
    ],
)
def test_what_would_do_nothing_is_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Options.model_validate(options)

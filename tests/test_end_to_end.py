"""`octavo serve` with the default model, whole: processes, sockets, pages, errors."""

import json
import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.served import OCTAVO, SECONDS, at_once, metric, solo, streamed

MAX_TOKENS = 16
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a small dragon who",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5, 6, 7,",
    "Water boils at a temperature of",
    "🚀🎉🚀🎉🚀🎉🚀🎉",
    "世界上最高的山是",
    "A long walk in the forest. " * 30,
]


def body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, **fields}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def wait_until_idle(url: str) -> None:
    wait_until(lambda: metric(url, "octavo_requests_running") == 0)
    assert metric(url, "octavo_kv_cache_usage_ratio") == 0


def test_thirty_two_requests_at_once_get_the_texts_that_each_gets_alone(url: str) -> None:
    bodies = [
        body(prompt, max_tokens=4 + 3 * turn, temperature=temperature, seed=turn)
        for turn in range(4)
        for temperature, prompt in zip([0, 0, 0.8, 0, 1.0, 0, 0, 0.7], PROMPTS, strict=True)
    ]
    assert at_once(url, bodies) == solo(url, bodies)


def test_streams_that_are_left_free_their_pages(url: str) -> None:
    for _ in range(4):
        stream = streamed(url, body(PROMPTS[1], max_tokens=4000, ignore_eos=True))
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    wait_until_idle(url)


def test_a_whole_answer_that_is_left_frees_its_pages(url: str) -> None:
    wait_until_idle(url)
    content = json.dumps(body(PROMPTS[1], max_tokens=8000, ignore_eos=True))
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port)) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
        connection.sendall((head + content).encode())
        wait_until(lambda: metric(url, "octavo_requests_running") == 1)
    wait_until_idle(url)


def test_a_repeated_prompt_is_taken_from_the_cache_and_answered_alike(url: str) -> None:
    long = body("The river runs past the mill. " * 40 + "It")
    first, second = solo(url, [long, long])
    assert first == second


def test_what_is_too_long_is_refused_and_the_server_lives(url: str) -> None:
    with httpx.Client(base_url=url, timeout=SECONDS) as client:
        for prompt in ("word " * 20_000, "word and another word, then more; " * 60_000):
            answer = client.post("/v1/completions", json=body(prompt))
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert client.get("/health").status_code == 200


def test_a_truncated_file_is_one_clear_line(smollm2_path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    with smollm2_path.open("rb") as whole:
        broken.write_bytes(whole.read(50_000_000))
    command = [OCTAVO, "serve", str(broken), "--port", "0", "--log-format", "pretty"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert re.fullmatch(r"octavo: broken\.gguf, tensor .* download it again", last_line(ended))


def last_line(ended: subprocess.CompletedProcess[str]) -> str:
    return ended.stderr.splitlines()[-1]

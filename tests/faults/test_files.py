"""Disks that are full or may not be written to, logs that nobody reads, models that are damaged."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.processes import ROOT, wait_until
from tests.served import OCTAVO, SECONDS


def client_of(path: Path) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(path))
    return httpx.Client(transport=transport, base_url="http://octavo", timeout=SECONDS)


def is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def is_ready(path: Path) -> bool:
    if not is_listening(path):
        return False
    with client_of(path) as client:
        return client.get("/readyz").status_code == 200


@contextmanager
def serving(
    path: Path,
    stderr: int | IO[bytes],
    *,
    folder: str | Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """With an engine that has no model, once it is ready, whatever becomes of its log."""
    command = [sys.executable, "-m", "tests.endless_octavo", "serve", "--uds", str(path)]
    with subprocess.Popen(command, cwd=folder, stderr=stderr, env=environment) as process:
        try:
            wait_until(lambda: process.poll() is not None or is_ready(path))
            assert process.poll() is None
            yield process
        finally:
            process.kill()


def ask(client: httpx.Client) -> int:
    body = {"prompt": [1], "max_tokens": 2, "ignore_eos": True}
    return client.post("/v1/completions", json=body).status_code


def test_a_full_disk_under_the_log_hurts_no_request(tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    with open("/dev/full", "wb") as full, serving(path, full) as process:
        with client_of(path) as client:
            assert {ask(client) for _ in range(20)} == {200}
        process.terminate()
        assert process.wait(SECONDS) == 0


def test_a_log_that_nobody_reads_hurts_no_request(tmp_path: Path) -> None:
    """The pipe is full from the start, so that a line that is waited for would never be written."""
    path = tmp_path / "octavo.sock"
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    with serving(path, writer) as process:
        with client_of(path) as client:
            assert {ask(client) for _ in range(20)} == {200}
        process.terminate()
        assert process.wait(SECONDS) == 0
    os.close(reader)
    os.close(writer)


def test_nothing_is_written_but_below_the_temporary_folder(
    smollm2_path: Path, tmp_path: Path
) -> None:
    """A read-only root is enough: home and working folder are places where nothing can be made."""
    path = tmp_path / "octavo.sock"
    environment = dict(os.environ, HOME="/proc", TMPDIR=str(tmp_path), PYTHONPATH=str(ROOT))
    environment |= {"XDG_CACHE_HOME": "/proc", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["OCTAVO_MODEL"] = str(smollm2_path)
    with serving(path, subprocess.DEVNULL, folder="/proc", environment=environment) as process:
        with client_of(path) as client:
            assert ask(client) == 200
        assert [each.name for each in tmp_path.iterdir() if each.is_dir()]
        process.terminate()
        assert process.wait(SECONDS) == 0
    assert list(tmp_path.iterdir()) == [], "and that is tidied up"


def last_line(command: Sequence[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "said"), [(0.0, "is empty"), (0.3, "truncated"), (0.9, "truncated or damaged")]
)
def test_weights_that_are_cut_end_the_server_with_the_reason(
    smollm2_path: Path, tmp_path: Path, share: float, said: str
) -> None:
    cut = tmp_path / "cut.gguf"
    content = smollm2_path.read_bytes()
    cut.write_bytes(content[: int(len(content) * share)])
    code, line = last_line([OCTAVO, "serve", str(cut), "--port", "0"])
    assert code == 1
    assert line.startswith("octavo: ")
    assert "cut.gguf" in line
    assert said in line


@pytest.mark.slow
def test_more_cache_than_there_is_memory_is_refused_before_it_is_taken(smollm2_path: Path) -> None:
    limits = ["--kv-cache-memory", "1000000GiB"]
    code, line = last_line([OCTAVO, "serve", str(smollm2_path), "--port", "0", *limits])
    assert (code, line.startswith("octavo: kv_cache_memory is ")) == (1, True)
    assert "are free: take less" in line

"""Between the two processes: sockets that nobody else can reach, and words that run nothing
(CVE-2026-3059, CVE-2026-3060); and what keys may see of each other's cached prompts
(CVE-2025-46570)."""

import stat
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import example, given, strategies as st

from model.batch import SamplingParams
from service.engine.messages import (
    Abort,
    Event,
    FromEngine,
    Loading,
    Request,
    Stats,
    StepReport,
    ToEngine,
)
from tests.launched import Launched, launched
from tests.processes import command_of
from tests.served import SECONDS

TO_ENGINE, FROM_ENGINE = (msgspec.msgpack.Decoder(words) for words in (ToEngine, FromEngine))
WORDS: list[tuple[msgspec.msgpack.Decoder[Any], Any]] = [
    (TO_ENGINE, Request(id="a", prompt_ids=[1, 2], max_tokens=3, sampling=SamplingParams(seed=1))),
    (TO_ENGINE, Abort("a")),
    (FROM_ENGINE, Loading(phase="weights", fraction=0.5)),
    (FROM_ENGINE, StepReport([Event(request_id="a", token_ids=[1])], Stats(num_running=1))),
]


def read(decoder: msgspec.msgpack.Decoder[Any], message: bytes) -> Any:
    """One of the words, or a refusal."""
    try:
        return decoder.decode(message)
    except msgspec.MsgspecError:
        return None


@given(st.sampled_from([TO_ENGINE, FROM_ENGINE]), st.binary(max_size=200))
@example(TO_ENGINE, b"\x80")
@example(FROM_ENGINE, b"\xdf\xff\xff\xff\xff")
def test_no_bytes_are_more_than_a_word_or_a_refusal(
    decoder: msgspec.msgpack.Decoder[Any], message: bytes
) -> None:
    assert isinstance(read(decoder, message), msgspec.Struct | None)


@given(st.data())
def test_nor_are_words_that_were_tampered_with(data: st.DataObject) -> None:
    decoder, word = data.draw(st.sampled_from(WORDS))
    message = bytearray(msgspec.msgpack.encode(word))
    assert read(decoder, bytes(message)) == word
    for _ in range(data.draw(st.integers(1, 5))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(read(decoder, bytes(message)), type(word) | msgspec.Struct | None)


@pytest.mark.parametrize(("decoder", "word"), WORDS)
def test_words_of_the_other_direction_are_refused(
    decoder: msgspec.msgpack.Decoder[Any], word: Any
) -> None:
    other = FROM_ENGINE if decoder is TO_ENGINE else TO_ENGINE
    assert read(other, msgspec.msgpack.encode(word)) is None


def test_a_length_that_lies_takes_no_memory() -> None:
    """A list of 2**32 - 1 ids, of which none comes."""
    huge = msgspec.msgpack.encode({"type": "Request", "id": "a", "max_tokens": 1, "prompt_ids": []})
    assert huge.endswith(b"\x90")
    assert read(TO_ENGINE, huge[:-1] + b"\xdd\xff\xff\xff\xff") is None


def open_sockets(pid: int) -> set[Path]:
    """Those Unix sockets with a file that the process listens on."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    by_inode = {line.split()[6]: line.split()[7] for line in lines if len(line.split()) > 7}
    links = (str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links}
    return {Path(by_inode[inode]) for inode in inodes & by_inode.keys()}


def test_its_sockets_are_for_this_user_alone(tmp_path: Path) -> None:
    with launched(tmp_path) as server:
        sockets = open_sockets(server.engine_pid) | open_sockets(server.pid)
        assert {path.name for path in sockets} == {"requests", "reports"}
        for path in sockets:
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert path.parent.owner() == Path(f"/proc/{server.pid}").owner()
        assert b"sk-" not in command_of(server.engine_pid)


KEYS = """
[[key]]
name = "a"
key = "sk-a"

[[key]]
name = "b"
key = "sk-b"
"""


def num_cached(server: Launched, key: str, **body: Any) -> int:
    """Of the prompt's tokens, those that were there already."""
    asked = {"prompt": list(range(40)), "max_tokens": 1, "ignore_eos": True} | body
    answer = httpx.post(
        f"{server.url}/v1/completions",
        json=asked,
        headers={"authorization": f"Bearer {key}"},
        timeout=SECONDS,
    )
    cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def test_a_key_never_finds_what_another_has_cached(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)
    module = "tests.fake_octavo none"
    with launched(tmp_path, "--api-key-file", str(file), module=module) as server:
        assert num_cached(server, "sk-a") == 0
        assert num_cached(server, "sk-a") > 0
        assert num_cached(server, "sk-b") == 0
        for salt in ("b", "a"):  # as the other's name, or one that both have chosen
            assert num_cached(server, "sk-a", cache_salt=salt) == 0
            assert num_cached(server, "sk-b", cache_salt=salt) == 0

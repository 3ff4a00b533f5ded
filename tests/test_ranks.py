"""How the processes of a shared model come to be and end; what they do: test_parallel_served."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.config import EngineConfig
from service.engine import ranks
from service.engine.messages import EngineSpec
from service.engine.ranks import REFUSED, exit_with, is_other, meet, serve_rank
from service.errors import CommandError

ALONE, BOTH = EngineConfig(), EngineConfig(tensor_parallel_size=2)
TOLD = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
WRITE = "import os, sys; print(os.environ['RANK'], sys.stdin.readline(), file=open({!r}, 'w'))"


def spec(config: EngineConfig) -> EngineSpec:
    return EngineSpec(model_path="m", config=config, requests_address="", reports_address="")


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


def tell(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    for name, value in (TOLD | {"RANK": str(rank)}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("config", "rank", "other"), [(ALONE, 1, False), (BOTH, 1, True), (BOTH, 0, False)]
)
def test_whoever_is_told_another_rank_than_0_only_computes(
    config: EngineConfig, rank: int, other: bool
) -> None:
    assert is_other(config, TOLD | {"RANK": str(rank)}) is other


def test_a_model_that_is_not_shared_needs_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tell(monkeypatch, 0)
    assert meet(spec(ALONE)) is None


def test_ranks_that_are_told_where_they_meet_start_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "COMMAND", ("no-such-command",))
    tell(monkeypatch, 0)
    first = meet(spec(BOTH))
    assert first is not None
    assert first.listener >= 0
    os.close(first.listener)
    tell(monkeypatch, 1)
    other = meet(spec(BOTH))
    assert other is not None
    assert (other.rank, other.listener) == (1, -1)


def test_rank_0_starts_the_others_of_its_host_and_ends_with_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, exits: list[int]
) -> None:
    written = tmp_path / "written"
    monkeypatch.setattr(ranks, "COMMAND", python(WRITE.format(str(written))))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(ranks, "exit_with", started.append)
    first = meet(spec(BOTH))
    assert first is not None
    os.close(first.listener)
    (process,) = started
    exit_with(process)
    assert process.stdin is not None
    process.stdin.close()
    assert written.read_text().startswith('1 {"model_path":"m",')
    assert exits == [1]


def test_rank_0_says_itself_what_others_refuse(exits: list[int]) -> None:
    exit_with(subprocess.Popen(python(f"exit({REFUSED})")))
    assert exits == []


def test_a_host_of_another_rank_starts_it_again_until_it_refuses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    once = tmp_path / "once"
    dies_once = f"import pathlib; p = pathlib.Path({str(once)!r}); e = p.exists(); p.touch(); "
    monkeypatch.setattr(ranks, "COMMAND", python(f"{dies_once}exit({REFUSED} if e else 1)"))
    monkeypatch.setattr(ranks, "RESTART_SECONDS", 0)
    handlers: dict[int, Callable[..., None]] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    with pytest.raises(CommandError, match="can't run the model"):
        serve_rank(tmp_path, BOTH)
    assert caplog.messages == ["the rank's process died: it ended with status 1; starting it again"]
    with pytest.raises(SystemExit) as ended:
        handlers[signal.SIGTERM]()
    assert ended.value.code == 0

"""What the doctor finds, on machines that are well and on others."""

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from service import doctor
from service.config import ServerConfig
from service.doctor import GIB, Finding, UnfitError

ANY_PORT = ServerConfig(port=0)


class Usage(NamedTuple):
    free: int


def test_on_this_machine_it_says_one_line_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "tiny.gguf"
    model.write_bytes(b"GGUF")
    doctor.run(str(model), ANY_PORT)
    names = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert names == [
        *("torch", "processor", "cores", "memory", "files", "tmp", "cache", "model", "address")
    ]


def test_what_keeps_it_from_serving_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnfitError, match="mend model, address"):
            doctor.run("/no/such/model", ServerConfig(port=port))
    out = capsys.readouterr().out
    assert "fail  address   can't listen on 127.0.0.1" in out
    assert "take another --port" in out


def refuse(*_: object, **__: object) -> Any:
    raise PermissionError(13, "Permission denied")


def not_found(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def look_at_torch_with_gpu() -> Finding:
    return doctor.look_at_torch(gpu=Path("/"))


UNLIMITED = (64, resource.RLIM_INFINITY)
CASES: list[tuple[Any, str, Callable[..., Any], Callable[[], Finding], str, str]] = [
    (metadata, "version", not_found, doctor.look_at_torch, "fail", "install octavo again"),
    (metadata, "version", always("2.11.0+cpu"), look_at_torch_with_gpu, "warn", "there is a GPU"),
    (metadata, "version", always("2.11.0"), look_at_torch_with_gpu, "ok", "2.11.0"),
    (doctor, "builds", always(["plain"]), doctor.look_at_processor, "warn", "AVX2"),
    (doctor, "builds", always([]), doctor.look_at_processor, "warn", "AVX2"),
    (doctor, "builds", always(["avx2"]), doctor.look_at_processor, "ok", "the avx2 build"),
    (doctor, "usable_cores", always(1), doctor.look_at_cores, "warn", "1 of"),
    (doctor, "usable_cores", always(2), doctor.look_at_cores, "ok", "2 of"),
    (doctor, "available_memory", always(GIB), doctor.look_at_memory, "warn", "1.0 GiB free"),
    (doctor, "available_memory", always(4 * GIB), doctor.look_at_memory, "ok", "4.0 GiB free"),
    (resource, "getrlimit", always((64, 64)), doctor.look_at_files, "warn", "LimitNOFILE"),
    (resource, "getrlimit", always(UNLIMITED), doctor.look_at_files, "ok", "no limit"),
    (tempfile, "TemporaryDirectory", refuse, doctor.look_at_temporary_folder, "fail", "TMPDIR"),
    (os, "access", always(False), doctor.look_at_cache, "warn", "OCTAVO_CACHE"),
    (shutil, "disk_usage", always(Usage(5)), doctor.look_at_cache, "warn", "make room"),
]


@pytest.mark.parametrize(("target", "name", "value", "look", "level", "said"), CASES)
def test_each_look(
    target: Any,
    name: str,
    value: Callable[..., Any],
    look: Callable[[], Finding],
    level: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target, name, value)
    finding = look()
    assert finding.level == level
    assert said in str(finding)


def test_a_model_of_the_hub_is_not_asked_for() -> None:
    assert doctor.look_at_model("some/model").found == "some/model will be fetched"


def test_a_model_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    monkeypatch.setattr(doctor, "available_memory", lambda: 4)
    assert doctor.look_at_model(str(tmp_path)).level == "fail"
    monkeypatch.setattr(doctor, "available_memory", lambda: 5)
    assert doctor.look_at_model(str(tmp_path)).level == "ok"


def test_a_packaged_model_is_looked_for_where_it_would_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    assert "will be fetched" in doctor.look_at_model("smollm2-135m").found
    (tmp_path / "models").mkdir()
    (tmp_path / "models/SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"")
    assert str(tmp_path) in doctor.look_at_model("smollm2-135m").found

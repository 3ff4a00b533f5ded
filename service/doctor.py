"""`octavo doctor`: looks at the machine as `octavo serve` would meet it, and says what to do.

Fetches, loads and changes nothing. Torch isn't imported, which takes seconds: what is installed
says which build it is.
"""

import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from model.errors import ModelError
from model.host import available_memory, usable_cores
from model.native.library import builds
from service import hub
from service.config import ServerConfig
from service.errors import CommandError
from service.sockets import bind

GIB = 1 << 30
FEW_FILES = 4096
LITTLE_MEMORY = 2 * GIB
LITTLE_DISK = GIB
GPU = Path("/dev/nvidiactl")

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    what: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f": {self.advice}" if self.advice else ""
        return f"{self.level:5} {self.what:9} {self.found}{advice}"


class UnfitError(CommandError):
    """octavo can't serve on this machine as it is."""


def run(model: str, config: ServerConfig) -> None:
    """Print what is found. Raises UnfitError if something would keep the server from serving."""
    findings = list(examine(model, config))
    for finding in findings:
        print(finding)
    if failed := [finding.what for finding in findings if finding.level == "fail"]:
        raise UnfitError(f"octavo can't serve here yet: mend {', '.join(failed)}")


def examine(model: str, config: ServerConfig) -> Iterator[Finding]:
    looks: list[Callable[[], Finding]] = [
        look_at_torch,
        look_at_processor,
        look_at_cores,
        look_at_memory,
        look_at_files,
        look_at_temporary_folder,
        look_at_cache,
        lambda: look_at_model(model),
        lambda: look_at_address(config),
    ]
    for look in looks:
        yield look()


def look_at_torch(gpu: Path = GPU) -> Finding:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding("fail", "torch", "is not installed", "install octavo again")
    if gpu.exists() and version.endswith("+cpu"):
        advice = "there is a GPU; PyTorch's site has the builds that use it"
        return Finding("warn", "torch", version, advice)
    return Finding("ok", "torch", version)


def look_at_processor() -> Finding:
    found = builds()
    if not found or found[0] == "plain":
        advice = "octavo computes several times as fast with AVX2 or AVX-512, and a C compiler"
        return Finding("warn", "processor", "has no vectors that were compiled for", advice)
    return Finding("ok", "processor", f"runs the {found[0]} build")


def look_at_cores() -> Finding:
    usable, there = usable_cores(), os.cpu_count() or 1
    found = f"{usable} of {there} usable"
    if usable == 1:
        return Finding("warn", "cores", found, "requests are served, but slowly; give it more")
    return Finding("ok", "cores", found)


def look_at_memory() -> Finding:
    free = available_memory()
    found = f"{free / GIB:.1f} GiB free"
    if free < LITTLE_MEMORY:
        return Finding("warn", "memory", found, "small models only; free some, or raise the limit")
    return Finding("ok", "memory", found)


def look_at_files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = "no limit" if hard == resource.RLIM_INFINITY else f"{hard} may be open"
    if 0 <= hard < FEW_FILES:
        advice = "each connection takes one; raise the hard limit (ulimit -Hn, LimitNOFILE=)"
        return Finding("warn", "files", found, advice)
    return Finding("ok", "files", found)


def look_at_temporary_folder() -> Finding:
    """Where the two processes meet."""
    try:
        with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
            return Finding("ok", "tmp", str(Path(folder).parent))
    except OSError as error:
        advice = "set TMPDIR to a folder that can be written to"
        return Finding("fail", "tmp", f"can't be written to ({error.strerror})", advice)


def look_at_cache() -> Finding:
    folder = hub.cache_dir()
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(existing, os.W_OK):
        advice = "models can't be fetched; set OCTAVO_CACHE to a folder that can be written to"
        return Finding("warn", "cache", f"{folder} can't be written to", advice)
    free = shutil.disk_usage(existing).free
    found = f"{folder}, {free / GIB:.1f} GiB free"
    if free < LITTLE_DISK:
        return Finding("warn", "cache", found, "make room before you fetch models")
    return Finding("ok", "cache", found)


def look_at_model(model: str) -> Finding:
    try:
        path = hub.find(model)
    except ModelError as error:
        return Finding("fail", "model", str(error))
    if path is None:
        return Finding("ok", "model", f"{model} will be fetched")
    size = sum(file.stat().st_size for file in weights(path))
    found = f"{path}, {size / GIB:.1f} GiB"
    if size > available_memory():
        return Finding("fail", "model", found, "it is larger than the free memory; take a smaller")
    return Finding("ok", "model", found)


def weights(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from path.glob("*.safetensors")


def look_at_address(config: ServerConfig) -> Finding:
    where = config.uds or f"{config.host}:{config.port}"
    try:
        with bind(config):
            return Finding("ok", "address", f"{where} is free")
    except CommandError as error:
        return Finding("fail", "address", str(error))

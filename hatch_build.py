"""Compiles model/native into libraries beside its sources, one for each kind of processor.

As hatchling's build hook, for wheels and editable installs; as a program, after a change:

    .venv/bin/python hatch_build.py

Without a compiler the package is built all the same, and octavo computes in PyTorch alone.
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("model/native")
OPTIONS = ["-std=gnu11", "-O3", "-Wall", "-Wextra", "-Wno-psabi", "-fPIC", "-shared", "-pthread"]
TARGETS = {
    "x86_64": {
        "amx": [
            *("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
            *("-mamx-tile", "-mamx-int8", "-mamx-bf16"),
        ],
        "avx512bf16": ["-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"],
        "avx512vnni": ["-march=x86-64-v4", "-mavx512vnni"],
        "avx2": ["-march=x86-64-v3"],
    },
    "aarch64": {"dotprod": ["-march=armv8.2-a+dotprod"]},
}
"""Options by the names in model/native/library.py, where it says which processor takes which."""


class BuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if compile_all(Path(self.root)):
            platform_tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag}"


def compile_all(root: Path, options: tuple[str, ...] = ()) -> bool:
    """Whether there is a library now that any processor of this machine's kind can run."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not sys.platform.startswith("linux") or compiler is None:
        print("no C compiler, so the native model isn't built", file=sys.stderr)
        return False
    targets = {"plain": []} | TARGETS.get(platform.machine(), {})
    sources = sorted(str(path) for path in (root / NATIVE).glob("*.c"))
    running = {
        name: start([compiler, *OPTIONS, *flags, *options, *sources], root / NATIVE, name)
        for name, flags in targets.items()
    }
    built = {name: process.wait() == 0 for name, process in running.items()}
    for name in (name for name, done in built.items() if done):
        os.replace(target(root / NATIVE, name, ".new"), target(root / NATIVE, name))
    return built["plain"]


def start(command: list[str], folder: Path, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*command, "-o", target(folder, name, ".new"), "-lm"])


def target(folder: Path, name: str, ending: str = "") -> Path:
    """Renamed once it is whole: a process may have the old one in its memory."""
    return folder / f"octavo_{name}.so{ending}"


if __name__ == "__main__":
    sys.exit(not compile_all(Path(__file__).parent, tuple(sys.argv[1:])))

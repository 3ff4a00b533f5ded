"""An environment of a peer's own, filled from pip's index with packages that need no GPU.

Knows no peer. pip lists first what it would install: packages for CUDA take many gigabytes, so
with one of them among what is wanted nothing is installed at all.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers.errors import PeerError

CUDA_PREFIXES = ("nvidia-", "cuda-")
TORCH = "torch==2.13.0"
BUILT_FOR_CUDA = ("torchvision", "torchaudio", "torchcodec")
"""Can't be loaded beside a torch for processors. What asks for them does without where they are
missing, as long as it has no pictures and no sound."""
QUIET = ("--disable-pip-version-check", "--quiet")


def install(
    folder: Path,
    requirements: Sequence[str],
    *,
    finish: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Unless just these requirements are there. finish: what is left to do with the folder.

    Raises PeerError if pip fails, or would install a package for CUDA.
    """
    stamp, wanted = folder / "requirements.txt", "\n".join(requirements)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    run([sys.executable, "-m", "venv", "--clear", str(folder)])
    check(would_install(folder, requirements))
    pip(folder, "install", *requirements)
    pip(folder, "uninstall", "--yes", *BUILT_FOR_CUDA)
    finish(folder)
    stamp.write_text(wanted)


def would_install(folder: Path, requirements: Sequence[str]) -> list[str]:
    report = folder / "report.json"
    pip(folder, "install", "--dry-run", "--report", str(report), *requirements)
    return [item["metadata"]["name"] for item in json.loads(report.read_text())["install"]]


def check(packages: Sequence[str]) -> None:
    found = [name for name in packages if name.lower().startswith(CUDA_PREFIXES)]
    if found:
        raise PeerError(
            f"pip would install {', '.join(found)}, which are for a GPU: put a CPU build of "
            f"{TORCH} where pip finds it, such as a folder in PIP_FIND_LINKS"
        )


def pip(folder: Path, command: str, *arguments: str) -> None:
    run([str(folder / "bin/python"), "-m", "pip", command, *QUIET, *arguments])


def run(command: Sequence[str], **variables: str) -> None:
    """Shows what the command says. Raises PeerError if it fails."""
    done = subprocess.run(command, env=os.environ | variables, check=False)
    if done.returncode != 0:
        raise PeerError(f"exit code {done.returncode} of {' '.join(command)}")

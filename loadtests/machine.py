"""The machine that the load comes from; with a server that was started here, the server's too."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path


def describe() -> dict[str, str]:
    found = {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{_memory_gib():.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    return found | ({"GPU": gpu} if (gpu := _gpu()) else {})


def _processor() -> str:
    named = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return named[1] if named else platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _gpu() -> str:
    """Empty without one."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return ", ".join(answer.stdout.split("\n")).strip(", ") if answer.returncode == 0 else ""

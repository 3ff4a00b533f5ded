"""The way that scripts/gpu_check.py takes on a GPU, on a CPU with tiny sizes."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts/gpu_check.py"
pytestmark = pytest.mark.skipif(not find_spec("triton"), reason="there is no Triton")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, env=environment
    )


def test_a_dry_run_prints_a_table_of_every_way() -> None:
    done = run("--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": as the reference") == 2
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| Qwen3")]
    assert [tuple(row[1:4]) for row in rows] == [
        (load, graphs, overlap)
        for load in ("protocol, 2", "decode, 1", "prefill, 3")
        for graphs in ("on", "off")
        for overlap in ("on", "off")
    ]


def test_without_a_gpu_it_says_so() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (1, "")
    assert "no GPU that it can use; --dry-run needs none" in done.stderr

"""That the kernels compile for a GPU; where one is, the other tests run them there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

L4_BYTES = 99 * 1024
"""What a program may have of shared memory on sm_89, the least of those that we compile for."""


@pytest.mark.slow
def test_all_kernels_compile_and_fit_an_l4(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.compile_kernels", "89"]
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sizes = re.findall(r"^(\w+) (\d+)$", done.stdout, re.MULTILINE)
    names = {name for name, _ in sizes}
    sources = Path("model/triton").glob("*.py")
    defined = {
        name
        for source in sources
        for name in re.findall(
            r"^@triton\.jit.*\ndef ([a-z]\w*)\(", source.read_text(), re.MULTILINE
        )
    }
    helpers = {"product", "tanh", "to_float8", "from_float8"}
    assert names == defined - helpers
    assert max(int(size) for _, size in sizes) <= L4_BYTES

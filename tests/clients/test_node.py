"""OpenAI's and Vercel's clients for JavaScript: node/*.mjs, each of which checks what it gets."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.served import SECONDS

SCRIPTS = Path(__file__).parent / "node"
MODULES = Path(__file__).parents[2] / ".venv/node/node_modules"


@pytest.mark.skipif(not MODULES.exists(), reason="make node-clients")
@pytest.mark.parametrize("script", ["openai.mjs", "vercel.mjs"])
def test_all_that_it_offers_works(script: str, base_url: str, model: str, tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / script, tmp_path)
    (tmp_path / "node_modules").symlink_to(MODULES)
    command = ["node", script, base_url, model]
    ended = subprocess.run(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr

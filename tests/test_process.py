"""The engine process's module: what it leaves of garbage collection, and what it asks for."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_llama import transformers_llama

pytestmark = pytest.mark.usefixtures("measured")

COLLECTING = """
import gc, sys
from service.config import EngineConfig
from service.engine import process
from service.engine.messages import EngineSpec

assert not gc.isenabled()
spec = EngineSpec(
    model_path=sys.argv[1], config=EngineConfig(), requests_address="", reports_address=""
)
process.load_model(spec, lambda *news: None)
assert gc.isenabled()
assert gc.get_freeze_count() > 100_000
"""


def test_collection_waits_for_the_model_and_then_leaves_alone_what_stays(tmp_path: Path) -> None:
    transformers_llama().save_pretrained(tmp_path)
    subprocess.run([sys.executable, "-c", COLLECTING, str(tmp_path)], check=True)


WANTING = """
from service.config import EngineConfig
from service.engine import process
from service.engine.messages import EngineSpec

process.load_runner = lambda path, **options: options
for config in (EngineConfig(), EngineConfig(no_graphs=True)):
    spec = EngineSpec(model_path="", config=config, requests_address="", reports_address="")
    print(process.load_model(spec, lambda *news: None)["graphs"])
"""


def test_graphs_are_asked_for_unless_they_are_unwanted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WANTING], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["True", "False"]

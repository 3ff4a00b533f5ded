"""The `llm` command, told of octavo in the file in which its users tell it of other servers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.served import SECONDS

LLM = Path(sys.executable).with_name("llm")
MODELS = """
- model_id: octavo-chat
  model_name: {model}
  api_base: {base_url}
  supports_schema: true
- model_id: octavo-text
  model_name: {model}
  api_base: {base_url}
  completion: true
"""
QUESTION = "Is it wet in Oslo?"

pytestmark = pytest.mark.skipif(not LLM.exists(), reason="llm isn't installed")
Llm = Callable[..., str]


@pytest.fixture
def llm(base_url: str, model: str, tmp_path: Path) -> Llm:
    """What a call of it writes; at temperature 0, and with its log of its own."""
    models = MODELS.format(model=model, base_url=base_url)
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}

    def run(*arguments: str) -> str:
        return subprocess.run(
            [LLM, *arguments],
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
        ).stdout

    return run


def ask(llm: Llm, model: str, *arguments: str, max_tokens: int = 12) -> str:
    options = ("-o", "temperature", "0", "-o", "max_tokens", str(max_tokens))
    return llm("prompt", "-m", model, *options, *arguments)


def test_a_prompt_is_completed_at_once_and_streamed(llm: Llm) -> None:
    prompt = "The capital of France is"
    whole = ask(llm, "octavo-text", "--no-stream", prompt, max_tokens=2)
    assert whole.rstrip() == " Paris."
    assert ask(llm, "octavo-text", prompt, max_tokens=2) == whole


def test_a_chat_with_a_system_prompt_at_once_and_streamed_and_continued(llm: Llm) -> None:
    asked = ("-s", "Answer in French.", QUESTION)
    whole = ask(llm, "octavo-chat", "--no-stream", *asked)
    assert whole.strip()
    assert ask(llm, "octavo-chat", *asked) == whole
    llm("prompt", "-c", "-o", "max_tokens", "5", "And in Rome?")
    _, asked_first, asked_next = json.loads(llm("logs", "list", "--json", "-n", "3"))
    assert asked_first["conversation_id"] == asked_next["conversation_id"]
    num_before = asked_first["input_tokens"] + asked_first["output_tokens"]
    assert asked_next["input_tokens"] > num_before
    assert asked_next["output_tokens"] == 5


def test_an_answer_keeps_to_a_schema(llm: Llm) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "wet": {"type": "boolean"}},
        "required": ["city", "wet"],
        "additionalProperties": False,
    }
    asked = ("--schema", json.dumps(schema), QUESTION)
    assert json.loads(ask(llm, "octavo-chat", *asked, max_tokens=100)).keys() == {"city", "wet"}

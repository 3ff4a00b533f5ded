"""lm-eval's local-completions: its scores and continuations are those of transformers in float32.

It asks the server for the tokens, too, and so needs none of the model's files.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import LlamaForCausalLM

from tests.served import SECONDS, serve
from tests.smollm2 import load_by_transformers

TASKS = Path(__file__).parent / "data"
FOLDER = Path(__file__).parents[2] / ".venv/lm-eval"
LM_EVAL = FOLDER / "bin/lm_eval"
MAX_TOKENS = 8
"""As counting.yaml has it."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

pytestmark = [
    pytest.mark.skipif(not (FOLDER / "installed").exists(), reason="make heavy-clients"),
    pytest.mark.timeout(900),  # lm-eval alone takes half a minute to import
]

Samples = Sequence[dict[str, Any]]


@pytest.fixture(scope="module")
def theirs(smollm2_path: Path) -> LlamaForCausalLM:
    return load_by_transformers(smollm2_path)


def evaluate(url: str, folder: Path) -> None:
    model = f"base_url={url}/v1/completions,model={served(url)}"
    command = [str(LM_EVAL), "run", "--model", "local-completions", "--model_args", model]
    command += ["--tasks", "capitals", "counting", "--include_path", ".", "--batch_size", "4"]
    command += ["--log_samples", "--output_path", str(folder)]
    environment = os.environ | OFFLINE | {"HF_HOME": str(folder / "cache")}
    subprocess.run(command, cwd=TASKS, env=environment, check=True, timeout=SECONDS)


def served(url: str) -> str:
    name: str = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    return name


def samples(folder: Path, task: str) -> Samples:
    [path] = folder.rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def encode(url: str, text: str) -> list[int]:
    answer = httpx.post(f"{url}/tokenize", json={"prompt": text, "add_special_tokens": False})
    ids: list[int] = answer.json()["tokens"]
    return ids


def decode(url: str, ids: Sequence[int]) -> str:
    text: str = httpx.post(f"{url}/detokenize", json={"tokens": ids}).json()["prompt"]
    return text


@torch.inference_mode()
def score(
    model: LlamaForCausalLM, context: Sequence[int], rest: Sequence[int]
) -> tuple[float, bool]:
    """The logarithm of the probability that the context goes on like this; whether each token is
    the likeliest."""
    ids = torch.tensor([*context, *rest])
    logprobs_TV = model(ids[None]).logits[0, len(context) - 1 : -1].log_softmax(-1)
    rest_T = ids[len(context) :]
    chosen_T = logprobs_TV.gather(1, rest_T[:, None])
    return chosen_T.sum().item(), bool((logprobs_TV.argmax(-1) == rest_T).all())


@torch.inference_mode()
def go_on(model: LlamaForCausalLM, ids: list[int]) -> list[int]:
    context_len = len(ids)
    while len(ids) < context_len + MAX_TOKENS:
        ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
    return ids[context_len:]


def test_scores_and_continuations_are_those_of_transformers(
    smollm2_path: Path, theirs: LlamaForCausalLM, tmp_path: Path
) -> None:
    with serve(smollm2_path, "--quantization", "none", "--tokenizer-info") as url:
        evaluate(url, tmp_path)
        choices = samples(tmp_path, "capitals")
        assert len(choices) == 10
        for sample in choices:
            check_scores(url, theirs, sample)
        counted = samples(tmp_path, "counting")
        assert len(counted) == 10
        for sample in counted:
            start = sample["arguments"]["gen_args_0"]["arg_0"]
            expected = decode(url, go_on(theirs, encode(url, start)))
            assert sample["resps"] == [[expected.partition(",")[0]]]


def check_scores(url: str, model: LlamaForCausalLM, sample: dict[str, Any]) -> None:
    """The tokens of a context and a continuation are those of the two together."""
    pairs = list(sample["arguments"].values())
    assert len(pairs) == 3
    for pair, [[logprob, is_greedy]] in zip(pairs, sample["resps"], strict=True):
        context = encode(url, pair["arg_0"])
        rest = encode(url, pair["arg_0"] + pair["arg_1"])[len(context) :]
        expected, is_likeliest = score(model, context, rest)
        assert float(logprob) == pytest.approx(expected, abs=1e-3)
        assert is_greedy == str(is_likeliest)

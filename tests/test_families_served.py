"""Families through the whole server: the greedy tokens of transformers, and their text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import PreTrainedModel

from service.text.gguf_tokenizer import read_gguf_tokenizer
from service.text.tokenizer import Tokenizer
from tests import fakes_sentencepiece, fakes_text
from tests.families import KINDS
from tests.served import SECONDS, serve
from tests.test_gguf_families import FILES, PLAIN, write

pytestmark = pytest.mark.slow

NUM_TOKENS = 12
PROMPTS = ["The capital of France is", "ab", " leading, 文 and tabs\t", "def f(x):\n\treturn x"]

Saved = tuple[Path, PreTrainedModel]


def gemma_2_in_gguf(folder: Path) -> Saved:
    """With its tokenizer, SentencePiece's, in the same file."""
    metadata = fakes_sentencepiece.small_metadata(add_space_prefix=False)
    file, path = FILES["gemma2"], folder / "model.gguf"
    size = len(metadata["tokenizer.ggml.tokens"])
    theirs = KINDS[file.kind].make(**file.changes, vocab_size=size, rope_parameters=PLAIN)
    write(path, file, theirs, metadata)
    return path, theirs


def gpt_2_in_a_folder(folder: Path) -> Saved:
    metadata = fakes_text.small_metadata()
    theirs = KINDS["GPT-2"].make(vocab_size=len(metadata["tokenizer.ggml.tokens"]))
    theirs.save_pretrained(folder)
    read_gguf_tokenizer(metadata).backend.save(str(folder / "tokenizer.json"))
    return folder, theirs


@torch.inference_mode()
def greedy(model: PreTrainedModel, ids: list[int]) -> list[int]:
    known = list(ids)
    for _ in range(NUM_TOKENS):
        known.append(int(model(torch.tensor([known]), use_cache=False).logits[0, -1].argmax()))
    return known[len(ids) :]


@pytest.mark.parametrize("save", [gemma_2_in_gguf, gpt_2_in_a_folder])
def test_the_server_says_what_transformers_says(
    save: Callable[[Path], Saved], tmp_path: Path
) -> None:
    path, theirs = save(tmp_path)
    tokenizer = Tokenizer.load(path)
    body: dict[str, Any] = {
        **{"prompt": PROMPTS, "max_tokens": NUM_TOKENS, "temperature": 0},
        **{"ignore_eos": True, "return_token_ids": True},
    }
    with serve(path) as url:
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=SECONDS).json()
    for prompt, choice in zip(PROMPTS, answer["choices"], strict=True):
        ids = greedy(theirs, tokenizer.encode(prompt))
        assert choice["token_ids"] == ids
        assert choice["text"] == tokenizer.decode(ids)

"""Families through the server: the greedy tokens of transformers, and their text.

All of them through routes, engine and runner in this process; two through the processes as well.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import PreTrainedModel

from model.runner import load_runner
from service.engine.engine import Engine
from service.engine.messages import Event, Request
from service.text.gguf_tokenizer import read_gguf_tokenizer
from service.text.model import TextModel
from service.text.tokenizer import Tokenizer
from tests import fakes_sentencepiece, fakes_text
from tests.fakes import Client, FakeEngine, Script
from tests.families import KINDS, Kind
from tests.served import SECONDS, serve
from tests.test_gguf_families import FILES, PLAIN, write

NUM_TOKENS = 12
MOST_TOKENS, MOST_SEQUENCES = 64, 8
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


@pytest.mark.slow
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


def events_from(engine: Engine) -> Script:
    """For routes in the engine's own process: whoever waits for an event steps the engine."""
    inboxes: defaultdict[str, deque[Event]] = defaultdict(deque)

    def script(request: Request) -> Iterator[Event]:
        engine.add(request)
        inbox, ended = inboxes[request.id], False
        while not ended:
            while not inbox:
                for event in engine.step():
                    inboxes[event.request_id].append(event)
            event = inbox.popleft()
            ended = event.finish_reason is not None
            yield event

    return script


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_family_is_served(kind: Kind, tmp_path: Path) -> None:
    metadata = fakes_text.small_metadata()
    vocab_size = len(metadata["tokenizer.ggml.tokens"])
    theirs = kind.make(vocab_size=vocab_size)
    theirs.save_pretrained(tmp_path)
    read_gguf_tokenizer(metadata).backend.save(str(tmp_path / "tokenizer.json"))
    runner = load_runner(
        tmp_path,
        max_batch_tokens=MOST_TOKENS,
        max_sequences=MOST_SEQUENCES,
        max_model_len=kind.served_len or 0,
        kv_cache_memory=0,
        threads=1,
        progress=lambda *_: None,
        quantization="none",
    )
    engine = Engine(runner, max_batch_tokens=MOST_TOKENS, max_sequences=MOST_SEQUENCES)
    served = FakeEngine(events_from(engine))
    served.info = engine.info
    prompts = [
        [(5 + 7 * i * i + length) % vocab_size for i in range(length)]
        for length in kind.prompt_lens
    ]
    answer = Client(served, text=TextModel.load(tmp_path)).complete(
        prompt=prompts, max_tokens=8, temperature=0, ignore_eos=True, return_token_ids=True
    )
    found = [choice["token_ids"] for choice in answer.json()["choices"]]
    assert found == [greedy(theirs, prompt)[:8] for prompt in prompts]

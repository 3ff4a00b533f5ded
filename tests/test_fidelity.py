"""The default model against transformers, in float32: the same logits, the same greedy tokens.

Transformers reads the file by itself, so that both our reading and our arithmetic are tested.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import LlamaForCausalLM

from model.batch import Batch, Row, SamplingParams
from model.config import load_config
from model.kv_cache import KVCache
from model.packing import pack
from model.torch_runner import TorchRunner
from model.transformer import Transformer
from model.weights.gguf import read_header
from model.weights.load import load_model
from service.text.tokenizer import Tokenizer
from tests.served import at_once, serve, streamed_at_once
from tests.smollm2 import load_by_transformers

pytestmark = pytest.mark.slow

TEXTS = [
    "The capital of France is",
    "a",
    "\n\n\n",
    "    \t  indented      with   holes   ",
    "def quicksort(items):\n    if len(items) <= 1:\n        return items\n    pivot = items[0]\n",
    "SELECT name, count(*) FROM users JOIN orders ON users.id = orders.user_id GROUP BY",
    '{"name": "octavo", "sizes": [8, 16, 32], "nested": {"null": null, "true":',
    '#include <stdio.h>\nint main(void) { for (int i = 0; i < 10; ++i) printf("%d\\n", i);',
    "👩‍👩‍👧‍👦🎉🔥 emoji party 🏳️‍🌈 until",
    "吾輩は猫である。名前はまだ無い。どこで生れたか",
    "天地玄黄宇宙洪荒。日月盈昃辰宿列張。",
    "Съешь же ещё этих мягких французских булок, да выпей",
    "مرحبا بالعالم، كيف حالك",
    "12345 + 67890 = 80235, and 3.14159 * 2 =",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "1. Apples\n2. Pears\n3. Plums\n4.",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "To be, or not to be, that is the question: " * 9,
    "Gravity pulls. Rivers run to the sea. Stars burn for a long time and then they don't. " * 12,
    "# Notes\n\n- a list\n  - in a list\n\n```python\nprint('hi')\n```\n\n| a | b |\n|---|---|\n",
]
KINDS = (0, 8, 18)
"""Prose, emoji, a long one."""
NUM_TOKENS = 64
PAGES_EACH = 40
GREEDY = SamplingParams(temperature=0)

Ids = list[int]


@pytest.fixture(scope="module")
def prompts(smollm2_path: Path) -> list[Ids]:
    """By the file's own vocabulary; it doesn't matter here whether these ids are canonical."""
    metadata = read_header(smollm2_path).metadata
    vocab = {token: id for id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Backend(BPE(vocab, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return [tokenizer.encode(text).ids for text in TEXTS]


@pytest.fixture(scope="module")
def ours(smollm2_path: Path) -> Transformer:
    return load_model(smollm2_path, load_config(smollm2_path), report=lambda name, fraction: None)


@pytest.fixture(scope="module")
def theirs(smollm2_path: Path) -> LlamaForCausalLM:
    return load_by_transformers(smollm2_path)


@pytest.fixture(scope="module")
def cache(ours: Transformer) -> KVCache:
    num_pages = len(TEXTS) * PAGES_EACH
    return KVCache.allocate(ours.config, num_pages=num_pages, page_size=16, dtype=ours.dtype)


@pytest.fixture(scope="module")
def runner(ours: Transformer, cache: KVCache) -> TorchRunner:
    return TorchRunner(ours, cache, max_model_len=8192)


@pytest.fixture(scope="module")
def greedy_tokens(runner: TorchRunner, prompts: list[Ids]) -> list[Ids]:
    """All prompts in one batch."""
    return generate(runner, prompts, chunk_len=1000)


@pytest.fixture(scope="module")
def float32_url(smollm2_path: Path) -> Iterator[str]:
    with serve(smollm2_path, "--quantization", "none") as url:
        yield url


def pages_of(sequence: int) -> range:
    return range(sequence * PAGES_EACH, (sequence + 1) * PAGES_EACH)


def generate(runner: TorchRunner, prompts: Sequence[Ids], *, chunk_len: int) -> list[Ids]:
    """Side by side, each computing up to chunk_len tokens a step, so that some decode early."""
    known = [list(prompt) for prompt in prompts]
    num_cached = [0] * len(prompts)
    while unfinished := [
        i for i, prompt in enumerate(prompts) if len(known[i]) < len(prompt) + NUM_TOKENS
    ]:
        rows = []
        for i in unfinished:
            chunk, start = known[i][num_cached[i] :][:chunk_len], num_cached[i]
            num_cached[i] += len(chunk)
            sampling = GREEDY if num_cached[i] == len(known[i]) else None
            rows.append(Row(chunk, start, pages_of(i), sampling))
        for i, token in zip(unfinished, runner.run(Batch(rows)).sampled, strict=True):
            known[i] += [token.token_id] if token else []
    return [ids[len(prompt) :] for ids, prompt in zip(known, prompts, strict=True)]


@torch.inference_mode()
def our_logits(model: Transformer, cache: KVCache, ids: Ids) -> Tensor:
    batch = pack([Row(ids, 0, pages_of(0), None)], page_size=16)
    return model(batch, cache, output_rows_S=torch.arange(len(ids)))


@torch.inference_mode()
def their_logits(model: LlamaForCausalLM, ids: Ids) -> Tensor:
    return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("index", range(len(TEXTS)))
def test_logits_and_greedy_tokens_are_those_of_transformers(
    index: int,
    ours: Transformer,
    theirs: LlamaForCausalLM,
    cache: KVCache,
    prompts: list[Ids],
    greedy_tokens: list[Ids],
) -> None:
    """At each position of a prompt and of the 64 tokens that we put after it.

    That each of the 64 is their most likely one after what precedes it makes them, one by one, the
    tokens that transformers generates.
    """
    prompt, continuation = prompts[index], greedy_tokens[index]
    ids = prompt + continuation[:-1]
    expected_TV, actual_TV = their_logits(theirs, ids), our_logits(ours, cache, ids)
    assert (actual_TV - expected_TV).abs().max() < 1e-4 * expected_TV.abs().max()
    assert expected_TV[len(prompt) - 1 :].argmax(-1).tolist() == continuation


@pytest.mark.parametrize("index", KINDS)
def test_alone_is_as_in_a_batch(
    index: int, runner: TorchRunner, prompts: list[Ids], greedy_tokens: list[Ids]
) -> None:
    assert generate(runner, [prompts[index]], chunk_len=1000) == [greedy_tokens[index]]


def test_chunked_is_as_whole(
    runner: TorchRunner, prompts: list[Ids], greedy_tokens: list[Ids]
) -> None:
    chunked = generate(runner, [prompts[index] for index in KINDS], chunk_len=7)
    assert chunked == [greedy_tokens[index] for index in KINDS]


def test_the_server_says_the_same_streamed_and_not(
    float32_url: str, smollm2_path: Path, prompts: list[Ids], greedy_tokens: list[Ids]
) -> None:
    tokenizer = Tokenizer.load(smollm2_path)
    expected = [tokenizer.decode(ids, skip_special_tokens=False) for ids in greedy_tokens]
    common = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    bodies = [{"prompt": ids, "skip_special_tokens": False} | common for ids in prompts]
    with ThreadPoolExecutor() as pool:  # both kinds share the engine's batches
        streams = pool.submit(streamed_at_once, float32_url, bodies)
        assert at_once(float32_url, bodies) == expected
        assert streams.result() == expected

"""Every family against transformers: the same logits at every position, the same greedy tokens."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from model.batch import Batch, Row, SamplingParams
from model.config import load_config
from model.kv_cache import KVCache
from model.packing import pack
from model.torch_runner import TorchRunner
from model.transformer import Transformer
from model.weights.load import load_model
from model.weights.names import num_parameters
from tests.families import KINDS, SIZES, Kind

MOST_ROWS = 4
PAGES_EACH = 6
NUM_TOKENS = 8

Ids = list[int]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same random model as ours and as transformers', and what to ask them."""

    ours: Transformer
    theirs: PreTrainedModel
    prompts: list[Ids]


def some_ids(*lens: int) -> list[Ids]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(SIZES["vocab_size"], (n,), generator=generator).tolist() for n in lens]


def pages_of(sequence: int) -> list[int]:
    """Each sequence's own, and not in order."""
    return list(range(sequence, PAGES_EACH * MOST_ROWS, MOST_ROWS))[::-1]


def load(folder: Path, *, served_len: int | None = None) -> Transformer:
    config = load_config(folder)
    config = replace(config, context_len=served_len or config.context_len)
    return load_model(folder, config, report=lambda name, fraction: None)


def empty_cache(model: Transformer) -> KVCache:
    num_pages = PAGES_EACH * MOST_ROWS
    return KVCache.allocate(model.config, num_pages=num_pages, page_size=16, dtype=model.dtype)


@torch.inference_mode()
def our_logits(model: Transformer, sequences: list[Ids], *, chunk_len: int) -> list[Tensor]:
    """Of all sequences side by side, by so many tokens of each a step, through the paged cache."""
    cache = empty_cache(model)
    logits: list[list[Tensor]] = [[] for _ in sequences]
    for start in range(0, max(map(len, sequences)), chunk_len):
        left = [i for i, ids in enumerate(sequences) if start < len(ids)]
        chunks = [sequences[i][start : start + chunk_len] for i in left]
        rows = [Row(ids, start, pages_of(i), None) for i, ids in zip(left, chunks, strict=True)]
        batch = pack(rows, page_size=16)
        outputs = model(batch, cache, output_rows_S=torch.arange(len(batch.token_ids_T)))
        for i, part in zip(left, torch.split(outputs, list(map(len, chunks))), strict=True):
            logits[i].append(part)
    return [torch.cat(parts) for parts in logits]


@torch.inference_mode()
def their_logits(model: PreTrainedModel, ids: Ids) -> Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def assert_same_logits(pair: Pair, *, chunk_len: int = 100) -> None:
    logits = our_logits(pair.ours, pair.prompts, chunk_len=chunk_len)
    for actual, ids in zip(logits, pair.prompts, strict=True):
        expected = their_logits(pair.theirs, ids)
        assert (actual - expected).abs().max() < 1e-4 * expected.abs().max()


def make_pair(kind: Kind, folder: Path) -> Pair:
    theirs = kind.make()
    theirs.save_pretrained(folder)
    ours = load(folder, served_len=kind.served_len)
    return Pair(ours, theirs, some_ids(*kind.prompt_lens))


@pytest.fixture(params=KINDS, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(KINDS[request.param], tmp_path_factory.mktemp("family"))


def test_parameters_are_counted_without_being_listed(pair: Pair) -> None:
    assert num_parameters(pair.ours.config) == pair.theirs.num_parameters()


@pytest.mark.parametrize("chunk_len", [100, 7])
def test_logits_are_those_of_transformers(pair: Pair, chunk_len: int) -> None:
    assert_same_logits(pair, chunk_len=chunk_len)


def test_greedy_tokens_are_those_of_transformers(pair: Pair) -> None:
    runner = TorchRunner(pair.ours, empty_cache(pair.ours), max_model_len=PAGES_EACH * 16)
    known, num_cached = [list(ids) for ids in pair.prompts], [0] * len(pair.prompts)
    for _ in range(NUM_TOKENS):
        rows = [
            Row(ids[start:], start, pages_of(i), SamplingParams(temperature=0))
            for i, (ids, start) in enumerate(zip(known, num_cached, strict=True))
        ]
        num_cached = list(map(len, known))
        for ids, token in zip(known, runner.run(Batch(rows)).sampled, strict=True):
            assert token is not None
            ids.append(token.token_id)
    for prompt, ids in zip(pair.prompts, known, strict=True):
        most_likely = their_logits(pair.theirs, ids[:-1])[len(prompt) - 1 :].argmax(-1)
        assert ids[len(prompt) :] == most_likely.tolist()


@pytest.mark.parametrize("length", [32, 64])
def test_dynamic_scaling_is_that_of_transformers_for_the_longest_sequence_served(
    length: int, tmp_path: Path
) -> None:
    """Transformers takes the length of each sequence for it; there both are the same."""
    rope = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0}
    changes = {"rope_parameters": rope, "max_position_embeddings": 32}
    kind = Kind("Llama", changes, served_len=length, prompt_lens=(length,))
    assert_same_logits(make_pair(kind, tmp_path))
    assert load_config(tmp_path).context_len == 4 * 32

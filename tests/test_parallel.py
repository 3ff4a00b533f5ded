"""Several ranks compute what one does. Here they are threads; processes: test_parallel_served."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model import parallel, runner
from model.batch import Batch, Row, SampledToken, SamplingParams, Scoring
from model.config import ModelConfig
from model.errors import ModelError
from model.families.hugging_face import describe
from model.kernels import PLAIN
from model.parallel import ALONE, Ranks, SplitEmbedding, share
from model.runner import _check_page_size, load_runner
from model.torch_runner import TorchRunner
from model.weights.names import Place
from model.weights.shards import shard
from model.weights.stored import StoredTensor
from tests.fakes_ranks import FakeDistributed
from tests.families import KINDS, Kind
from tests.test_gguf_families import FILES, make, write
from tests.test_quantized import quantize

TOLERANCE = 1e-3
"""Between logprobs: a sum's parts are added in another order."""
MIXED = SamplingParams(temperature=0.8, top_p=0.9, seed=7, num_logprobs=3)
GREEDY = SamplingParams(temperature=0, num_logprobs=3)
OLMO = {"OLMo 2", "OLMo 3"}
SPLIT = sorted(KINDS.keys() - OLMO)

UNEVEN = {
    "97 tokens": Kind("Llama", {"vocab_size": 97}),
    "97 tokens, tied": Kind("Llama", {"vocab_size": 97, "tie_word_embeddings": True}),
}

Distributed = Callable[[int], FakeDistributed]


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> Distributed:
    def make(size: int) -> FakeDistributed:
        fake = FakeDistributed(size)
        monkeypatch.setattr(parallel, "dist", fake)
        return fake

    return make


def load(folder: Path, ranks: Ranks = ALONE, **changes: Any) -> TorchRunner:
    options: dict[str, Any] = {
        "max_batch_tokens": 256,
        "max_sequences": 4,
        "max_model_len": 0,
        "kv_cache_memory": 0,
        "threads": 1,
        "quantization": "none",
        "progress": lambda phase, detail, fraction: None,
        "ranks": ranks,
    }
    return load_runner(folder, **options | changes)


def generated(runner: TorchRunner, lens: Sequence[int]) -> list[list[SampledToken | None]]:
    """Two prompts, greedy and drawn, and some tokens after them."""
    num_pages = runner.max_model_len // 16
    ids = [
        [(7 * i + 13 * number) % 90 for i in range(length)] for number, length in enumerate(lens)
    ]
    pages = [range(number * num_pages, (number + 1) * num_pages) for number in range(len(ids))]
    starts = [0] * len(ids)
    found = []
    for _ in range(5):
        rows = [
            Row(ids[n][starts[n] :], starts[n], pages[n], (GREEDY, MIXED)[n % 2])
            for n in range(len(ids))
        ]
        sampled = list(runner.run(Batch(rows)).sampled)
        found.append(sampled)
        for n, token in enumerate(sampled):
            assert token is not None
            starts[n] = len(ids[n])
            ids[n] = [*ids[n], token.token_id]
    return found


def assert_same(
    found: Sequence[Sequence[SampledToken | None]],
    expected: Sequence[Sequence[SampledToken | None]],
) -> None:
    for step, wanted in zip(found, expected, strict=True):
        for a, b in zip(step, wanted, strict=True):
            assert a is not None
            assert b is not None
            assert a.token_id == b.token_id
            assert a.logprobs is not None
            assert b.logprobs is not None
            assert a.logprobs.chosen == pytest.approx(b.logprobs.chosen, abs=TOLERANCE)


def check(folder: Path, kind: Kind, distributed: FakeDistributed) -> None:
    lens = kind.prompt_lens[:2]
    limits: dict[str, Any] = {"max_model_len": kind.served_len or 0}
    expected = generated(load(folder, **limits), lens)
    for found in distributed.on_each(lambda ranks: generated(load(folder, ranks, **limits), lens)):
        assert_same(found, expected)


@pytest.mark.parametrize("name", SPLIT)
def test_four_ranks_compute_what_one_does(
    name: str, tmp_path: Path, distributed: Distributed
) -> None:
    """With two key-value heads, mostly: two ranks have the same one."""
    KINDS[name].make().save_pretrained(tmp_path)
    check(tmp_path, KINDS[name], distributed(4))


@pytest.mark.parametrize("name", UNEVEN)
def test_a_vocabulary_may_be_split_unevenly(
    name: str, tmp_path: Path, distributed: Distributed
) -> None:
    UNEVEN[name].make().save_pretrained(tmp_path)
    check(tmp_path, UNEVEN[name], distributed(2))


@pytest.mark.parametrize("name", ["llama with biases", "mixtral", "phi3", "gpt2"])
def test_ggufs_are_split_too(name: str, tmp_path: Path, distributed: Distributed) -> None:
    path = tmp_path / "model.gguf"
    write(path, FILES[name], make(FILES[name]))
    check(path, KINDS[FILES[name].kind], distributed(2))


@pytest.mark.parametrize("scheme", ["GPTQ", "fp8 in blocks"])
def test_quantized_folders_are_split_too(
    scheme: str, tmp_path: Path, distributed: Distributed
) -> None:
    quantize(KINDS["Qwen2"].make(), tmp_path, scheme)
    check(tmp_path, KINDS["Qwen2"], distributed(2))


def test_each_rank_rounds_the_weights_that_it_has(
    tmp_path: Path, distributed: Distributed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a part of the inputs have scales of their own, so that logprobs differ a little."""
    KINDS["Qwen2"].make().save_pretrained(tmp_path)
    expected = generated(load(tmp_path), [20, 9])[0]
    rounded = PLAIN._replace(quantization="int8")
    monkeypatch.setattr(runner, "choose", lambda *_: rounded)
    alone = generated(load(tmp_path), [20, 9])[0]
    all_found = distributed(2).on_each(lambda ranks: generated(load(tmp_path, ranks), [20, 9])[0])
    for tokens in (alone, *all_found):
        for token, wanted in zip(tokens, expected, strict=True):
            assert token is not None
            assert token.logprobs is not None
            assert wanted is not None
            assert wanted.logprobs is not None
            assert token.token_id == wanted.token_id
            assert token.logprobs.chosen == pytest.approx(wanted.logprobs.chosen, abs=0.05)
            assert token.logprobs.chosen != wanted.logprobs.chosen


def test_no_more_of_a_file_is_read_than_the_rank_needs() -> None:
    config = config_of("Llama")
    place = Place("blocks.0.feed_forward.down.weight", (32, 48))
    whole = torch.arange(32.0 * 48).view(32, 48)
    stored = StoredTensor("down", (32, 48), not_called, "F32", not_called, 0, view=lambda: whole)
    parts = [shard(stored, place, config, Ranks(rank, 3, 3)).read() for rank in range(3)]
    assert [part.shape for part in parts] == [(32, 16)] * 3
    assert torch.cat(parts, 1).equal(whole)


def not_called() -> torch.Tensor:
    raise AssertionError("the whole tensor was read")


@pytest.mark.parametrize("name", sorted(OLMO))
def test_norms_of_all_heads_together_are_refused(name: str, tmp_path: Path) -> None:
    KINDS[name].make().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="norms all heads' queries together"):
        load(tmp_path, Ranks(0, 2, 2))


@pytest.mark.parametrize(
    ("changes", "size", "problem"),
    [
        ({}, 3, "4 attention heads"),
        ({"intermediate_size": 50}, 4, "50 units of a feed-forward network"),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 48},
            2,
            "3 key-value heads",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused_by_name(
    changes: dict[str, Any], size: int, problem: str
) -> None:
    with pytest.raises(ModelError, match=f"tensor_parallel_size is {size}, but .*{problem}"):
        share(config_of("Llama", **changes), Ranks(1, size, size))


def test_experts_that_cannot_be_shared_out_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="21 units of an expert"):
        share(config_of("Qwen3-MoE", moe_intermediate_size=21), Ranks(0, 2, 2))


def config_of(name: str, **changes: Any) -> ModelConfig:
    return ModelConfig(**describe(KINDS[name].describe(**changes).to_dict()))


def test_ranks_have_as_many_pages_as_the_one_with_the_fewest(
    tmp_path: Path, distributed: Distributed
) -> None:
    KINDS["Llama"].make().save_pretrained(tmp_path)
    memory = (1 << 20, 1 << 19)
    runners = distributed(2).on_each(
        lambda ranks: load(tmp_path, ranks, kv_cache_memory=memory[ranks.rank])
    )
    fewest = load(tmp_path, kv_cache_memory=memory[1]).num_pages
    assert [runner.num_pages for runner in runners] == [fewest, fewest]


def test_what_ranks_exchange_asks_the_device_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph couldn't hold it. The device called meta has no values to ask for."""

    def exchanged(*tensors: torch.Tensor) -> None:
        assert all(tensor.is_contiguous() for tensor in tensors)

    names = ("all_reduce", "all_gather_single", "all_gather_into_tensor")
    monkeypatch.setattr(parallel, "dist", SimpleNamespace(**dict.fromkeys(names, exchanged)))
    ranks = Ranks(1, 2, 2)
    with torch.device("meta"):
        embedding = SplitEmbedding(config_of("Llama", vocab_size=97), ranks)
        x_TW = embedding(torch.zeros(3, dtype=torch.int64))
        logits_SV = ranks.gathered(torch.empty(3, 48), vocab_size=97)
    assert x_TW.shape == (3, 32)
    assert logits_SV.shape == (3, 97)


def test_ranks_with_other_pages_are_refused_on_all_sides(distributed: Distributed) -> None:
    def problem(ranks: Ranks) -> str:
        with pytest.raises(ModelError) as refused:
            _check_page_size((16, 256)[ranks.rank], ranks)
        return str(refused.value)

    first, other = distributed(2).on_each(problem)
    assert first == other
    assert "pages of 16 tokens on one of the GPUs and of 256 on another" in first


def test_scores_and_vectors_are_the_same(tmp_path: Path, distributed: Distributed) -> None:
    KINDS["Qwen3"].make().save_pretrained(tmp_path)
    ids = list(range(20))
    asked = Batch([Row(ids, 0, [0, 1], None, scoring=Scoring(ids[1:], 2), pooling="mean")])
    expected = load(tmp_path).run(asked)
    for found in distributed(2).on_each(lambda ranks: load(tmp_path, ranks).run(asked)):
        chosen = [[each.chosen for each in output.scores[0]] for output in (found, expected)]
        assert chosen[0] == pytest.approx(chosen[1], abs=TOLERANCE)
        torch.testing.assert_close(
            torch.tensor(found.pooled[0]), torch.tensor(expected.pooled[0]), atol=1e-3, rtol=1e-4
        )

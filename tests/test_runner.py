from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from transformers import LlamaForCausalLM

from model import runner as model_runner
from model.attention.backend import Place
from model.batch import Batch, Row, SampledToken, SamplingParams, Scoring
from model.config import ModelConfig
from model.errors import ModelError
from model.footprint import float32_page_bytes
from model.kernels import Kernels
from model.packing import RaggedBatch
from model.parallel import Ranks
from model.rope import inverse_frequencies
from model.runner import load_runner
from model.torch_runner import TorchRunner
from model.transformer import Transformer
from tests.families import KINDS, LONG_FACTORS, SHORT_FACTORS, SIZES
from tests.tiny_llama import CONFIG, empty_cache, random_transformer, transformers_llama

GREEDY = SamplingParams(temperature=0)
PAGE_BYTES = float32_page_bytes(CONFIG, page_size=16)


@pytest.fixture(scope="module")
def runner() -> TorchRunner:
    model = random_transformer(dtype=torch.float32)
    return TorchRunner(model, empty_cache(model, num_pages=40), max_model_len=256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("llama")
    transformers_llama().save_pretrained(folder)
    return folder


def load(folder: Path, **changes: Any) -> TorchRunner:
    options: dict[str, Any] = {
        "max_batch_tokens": 64,
        "max_sequences": 3,
        "max_model_len": 0,
        "kv_cache_memory": 0,
        "threads": 1,
        "quantization": "none",
        "progress": lambda phase, detail, fraction: None,
    }
    return load_runner(folder, **options | changes)


def prompt(length: int, sequence: int, sampling: SamplingParams | None = GREEDY) -> Row:
    ids = [(7 * i + 13 * sequence) % CONFIG.vocab_size for i in range(length)]
    return Row(ids, 0, range(4 * sequence, 4 * sequence + 4), sampling)


def token_ids(sampled: Sequence[SampledToken | None]) -> list[int | None]:
    return [None if token is None else token.token_id for token in sampled]


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=9.0, num_logprobs=5)])
def test_an_id_that_is_no_token_is_never_drawn(sampling: SamplingParams) -> None:
    model = random_transformer(dtype=torch.float32)
    with torch.no_grad():
        model.head.weight[3:] *= 50.0  # by far the likeliest, or the least likely
    cache = empty_cache(model, num_pages=40)
    runner = TorchRunner(model, cache, max_model_len=256, num_tokens=3)
    assert runner.vocab_size == 3
    rows = [
        Row([i % 3, 1], 0, range(4 * i, 4 * i + 4), replace(sampling, seed=i)) for i in range(9)
    ]
    for token in runner.run(Batch(rows)).sampled:
        assert token is not None
        assert token.token_id < 3
        assert all(i < 3 for i, _ in (token.logprobs.top if token.logprobs else ()))


def test_a_row_that_samples_nothing_yields_none(runner: TorchRunner) -> None:
    rows = [prompt(5, 0), prompt(30, 1, sampling=None), prompt(1, 2), prompt(3, 3, sampling=None)]
    first, second, third, fourth = runner.run(Batch(rows)).sampled
    assert first is not None
    assert third is not None
    assert second is fourth is None


def test_a_step_without_any_sample_yields_nothing(runner: TorchRunner) -> None:
    assert runner.run(Batch([prompt(5, 0, sampling=None)])).sampled == [None]


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(6)))
def test_the_order_of_rows_does_not_matter(runner: TorchRunner, order: list[int]) -> None:
    rows = [
        prompt(length, i, SamplingParams(seed=i)) for i, length in enumerate([9, 1, 33, 1, 9, 2])
    ]
    alone = [runner.run(Batch([row])).sampled[0] for row in rows]
    batched = runner.run(Batch([rows[i] for i in order])).sampled
    assert batched == [alone[i] for i in order]


def test_decoding_goes_on_as_if_the_whole_had_been_prompt(runner: TorchRunner) -> None:
    row = prompt(14, 0)
    ids = list(row.token_ids)
    for _ in range(8):
        (token,) = runner.run(Batch([row])).sampled
        assert token is not None
        (fresh,) = runner.run(Batch([Row(ids, 0, range(20, 24), GREEDY)])).sampled
        assert token == fresh
        row = Row([token.token_id], len(ids), row.page_ids, GREEDY)
        ids.append(token.token_id)


def test_the_noise_is_that_of_the_sampled_tokens_position(runner: TorchRunner) -> None:
    """A prompt in two chunks draws what it draws in one, so both ask for the same position."""
    whole = prompt(20, 0, SamplingParams(temperature=3.0, seed=5))
    begun = Row(whole.token_ids[:9], 0, whole.page_ids, None)
    rest = Row(whole.token_ids[9:], 9, whole.page_ids, whole.sampling)
    expected = token_ids(runner.run(Batch([whole])).sampled)
    runner.run(Batch([begun]))
    assert token_ids(runner.run(Batch([rest])).sampled) == expected


def test_logprobs_come_with_the_row_that_asks(runner: TorchRunner) -> None:
    wordy = prompt(4, 0, SamplingParams(temperature=0, num_logprobs=3))
    silent, chatty = runner.run(Batch([prompt(9, 1), wordy])).sampled
    assert silent is not None
    assert silent.logprobs is None
    assert chatty is not None
    assert chatty.logprobs is not None
    assert chatty.logprobs.top[0][0] == chatty.token_id
    assert len(chatty.logprobs.top) == 3


def test_a_token_outside_the_vocabulary_is_a_bug(runner: TorchRunner) -> None:
    with pytest.raises(AssertionError):
        runner.run(Batch([Row([CONFIG.vocab_size], 0, [0], GREEDY)]))


def test_a_model_gets_all_of_a_step_where_it_is() -> None:
    """On the device called meta, which has shapes and no numbers."""
    places = list[str]()

    class Stub:
        config = CONFIG

        def hidden(self, batch: RaggedBatch, cache: object) -> Tensor:
            places.extend(getattr(batch, field.name).device.type for field in fields(batch))
            raise NotImplementedError

    model = random_transformer(dtype=torch.float32)
    cache = empty_cache(model, num_pages=4)
    there = TorchRunner(cast(Any, Stub()), cache, max_model_len=64, place=torch.device("meta"))
    with pytest.raises(NotImplementedError):
        there.run(Batch([prompt(3, 0)]))
    assert set(places) == {"meta"}


def test_an_automatic_cache_holds_all_sequences_at_full_length(folder: Path) -> None:
    runner = load(folder)
    assert runner.page_size == 16
    assert runner.num_pages == 3 * 256 // 16
    assert runner.max_model_len == 256
    assert runner.vocab_size == CONFIG.vocab_size
    assert (runner.device, runner.attention) == ("cpu", "reference")
    assert token_ids(runner.run(Batch([prompt(20, 0)])).sampled) != [None]


def test_a_small_cache_bounds_the_length(folder: Path) -> None:
    runner = load(folder, kv_cache_memory=5 * PAGE_BYTES + 1)
    assert runner.num_pages == 5
    assert runner.max_model_len == 80


def test_the_length_asked_for_is_kept(folder: Path) -> None:
    runner = load(folder, max_model_len=50)
    assert runner.max_model_len == 50
    assert runner.num_pages == 3 * 4


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_model_len": 257}, "max_model_len is 257, but the model's context is 256 tokens"),
        (
            {"max_model_len": 33, "kv_cache_memory": 2 * PAGE_BYTES},
            "max_model_len is 33, but the KV cache holds 32 tokens.*raise kv_cache_memory",
        ),
        ({"kv_cache_memory": PAGE_BYTES - 1}, "no room for a single page"),
    ],
)
def test_limits_that_cannot_be_met_are_refused(
    folder: Path, limits: dict[str, int], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load(folder, **limits)


def test_the_smallest_limits_work(folder: Path) -> None:
    runner = load(folder, max_batch_tokens=1, max_sequences=1, max_model_len=1)
    assert (runner.num_pages, runner.max_model_len) == (1, 1)


def test_progress_tells_the_phases_in_order(folder: Path) -> None:
    seen: list[tuple[str, str, float]] = []
    load(folder, progress=lambda *news: seen.append(news))
    assert list(dict.fromkeys(phase for phase, _, _ in seen)) == ["weights", "cache", "warm-up"]


def test_threads_are_those_asked_for_or_all_usable_cores(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.runner.usable_cores", lambda: 3)
    before = torch.get_num_threads()
    try:
        load(folder, threads=0)
        assert torch.get_num_threads() == 3
        load(folder, threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_more_threads_than_cores_are_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"threads is 100000, but only \d+ cores"):
        load(folder, threads=100_000)


@pytest.mark.parametrize("length", [2, 33, 100])
def test_known_tokens_are_scored_as_if_they_had_been_drawn(
    runner: TorchRunner, length: int
) -> None:
    ids = [(7 * i) % CONFIG.vocab_size for i in range(length + 1)]
    scored = Row(ids[:-1], 0, range(8), None, scoring=Scoring(ids[1:], num_logprobs=2))
    beside = prompt(5, 3)
    output = runner.run(Batch([beside, scored]))
    assert output.sampled[1] is None
    assert list(output.scores) == [1]
    assert len(output.scores[1]) == length
    for end in (1, length // 2, length):
        sampling = SamplingParams(num_logprobs=2, logit_bias={ids[end]: 1000.0}, temperature=0)
        (token,) = runner.run(Batch([Row(ids[:end], 0, range(8), sampling)])).sampled
        assert token is not None
        assert token.token_id == ids[end]
        assert token.logprobs is not None
        score = output.scores[1][end - 1]
        assert score.chosen == pytest.approx(token.logprobs.chosen, abs=1e-4)
        assert [id_ for id_, _ in score.top] == [id_ for id_, _ in token.logprobs.top]


def test_a_step_tells_where_its_time_went(runner: TorchRunner) -> None:
    output = runner.run(Batch([prompt(5, 0)]))
    assert list(output.phase_seconds) == ["pack", "forward", "sample"]
    assert min(output.phase_seconds.values()) > 0


def test_copied_pages_serve_as_well_as_the_first(runner: TorchRunner) -> None:
    (expected,) = runner.run(Batch([prompt(10, 0)])).sampled
    ids = list(prompt(10, 0).token_ids)
    last = Row(ids[-1:], 9, [20], GREEDY)
    (token,) = runner.run(Batch([last], copies=[(0, 20)])).sampled
    assert token == expected


@pytest.mark.parametrize("cuts", [[], [1], [7, 20]])
def test_vectors_are_those_of_the_tokens_in_any_chunks(folder: Path, cuts: list[int]) -> None:
    runner, ids = load(folder), list(prompt(40, 0).token_ids)
    transformers_model = LlamaForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        reference = transformers_model.model(torch.tensor([ids])).last_hidden_state[0]
    bounds = [0, *cuts, 40]
    total = torch.zeros(CONFIG.hidden_size)
    for start, end in pairwise(bounds):
        for pooling in ("last", "mean"):
            row = Row(ids[start:end], start, range(4), None, pooling=pooling)
            output = runner.run(Batch([prompt(3, 2), row]))
            vector = torch.tensor(output.pooled[1])
            expected = reference[start:end].sum(0) if pooling == "mean" else reference[end - 1]
            torch.testing.assert_close(vector, expected, rtol=1e-4, atol=1e-4)
        total += vector
    torch.testing.assert_close(total, reference.sum(0), rtol=1e-4, atol=1e-3)


def test_int8_is_refused_for_all_but_plain_llama(tmp_path: Path) -> None:
    KINDS["Qwen3"].make().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"int8, which runs plain Llama models only.*this qwen3"):
        load(tmp_path, quantization="int8")
    assert load(tmp_path, quantization="auto").vocab_size == SIZES["vocab_size"]


@pytest.mark.parametrize(("max_model_len", "factor"), [(0, "long"), (32, "short")])
def test_rotations_go_by_the_context_that_is_served(
    max_model_len: int, factor: str, tmp_path: Path
) -> None:
    KINDS["Phi-3, long"].make().save_pretrained(tmp_path)
    config = load(tmp_path, max_model_len=max_model_len)._model.config
    divisor = {"long": LONG_FACTORS, "short": SHORT_FACTORS}[factor][1]
    assert inverse_frequencies(config)[1].item() == pytest.approx(1000 ** (-1 / 4) / divisor)


@pytest.mark.parametrize(
    ("numbers", "tolerance"),
    [
        ({"dtype": "float32"}, 1e-4),
        ({"dtype": "bfloat16"}, 0.2),
        ({"dtype": "float16"}, 0.05),
        ({"kv_cache_dtype": "fp8"}, 0.3),
        ({"dtype": "bfloat16", "kv_cache_dtype": "fp8"}, 0.4),
    ],
    ids=str,
)
def test_any_numbers_give_about_the_same_logprobs(
    folder: Path, numbers: dict[str, str], tolerance: float
) -> None:
    def logprobs(runner: TorchRunner) -> list[float]:
        ids = list(prompt(40, 0).token_ids)
        runner.run(Batch([Row(ids[:30], 0, range(4), None)]))
        row = Row(ids[30:], 30, range(4), None, scoring=Scoring([*ids[31:], 5], 0))
        return [score.chosen for score in runner.run(Batch([row])).scores[0]]

    runner = load(folder, quantization="auto", **numbers)
    assert runner.attention == "reference"
    assert logprobs(runner) == pytest.approx(logprobs(load(folder)), abs=tolerance)
    model = runner._model
    assert isinstance(model, Transformer)
    assert str(model.dtype) == f"torch.{numbers.get('dtype', 'float32')}"


def test_a_cache_of_few_bits_holds_more_pages(folder: Path) -> None:
    memory = 8 * PAGE_BYTES
    assert load(folder, kv_cache_memory=memory, dtype="bfloat16").num_pages == 16
    scaled = 8 * 32 // (8 + 4)  # of a head's 8 numbers, a byte each, and a scale
    assert load(folder, kv_cache_memory=memory, kv_cache_dtype="fp8").num_pages == scaled


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "bfloat16"}, "int8, which has numbers of its own, and dtype is bfloat16"),
        ({"kv_cache_dtype": "fp8"}, "int8, which has no cache of kv_cache_dtype fp8"),
        ({"ranks": Ranks(0, 2, 2)}, "int8, which runs in one process only on a CPU: take auto"),
        ({"gpu_memory_utilization": 0.5}, r"gpu_memory_utilization is 0.5, but there is no GPU"),
    ],
)
def test_numbers_that_cannot_be_had_are_refused(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load(folder, quantization="int8", **changes)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ("int4", r"int4, which runs on GPUs only; a CPU keeps the 4 bits of .*: take int8, auto"),
        ("fp8", r"fp8, which runs on GPUs of compute capability 8.9 or more only: take int8, auto"),
    ],
)
def test_weights_that_a_cpu_cannot_have_are_refused(
    quantization: str, message: str, folder: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        load(folder, quantization=quantization)


@pytest.mark.parametrize("quantization", ["auto", "none", "int8", "int4", "fp8"])
def test_a_gpu_is_asked_for_weights_as_they_are_wanted(
    quantization: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our C and what it refuses are the CPU's alone."""
    place = Place(torch.device("cuda:0"), torch.bfloat16, torch.bfloat16)

    def choose(config: ModelConfig, asked: Place, asked_quantization: str) -> Kernels:
        assert (asked, asked_quantization) == (place, quantization)
        raise ModelError("there is none here")

    monkeypatch.setattr(model_runner, "choose_place", lambda **_: place)
    monkeypatch.setattr(model_runner, "choose", choose)
    with pytest.raises(ModelError, match="there is none here"):
        load(folder, quantization=quantization, dtype="bfloat16")

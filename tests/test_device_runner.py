"""A runner on a device, served by the engine: however late the device is, the tokens are those of
the plain runner, which waits for each step."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import cycle
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from model.batch import Batch, OverlappingRunner, Row, Runner, SamplingParams
from model.device import CpuDevice, Device, Wait
from model.device_runner import DeviceRunner
from model.graphs import graph_sizes
from model.kernels import PLAIN, Kernels
from model.kv_cache import CPU, KVCache
from model.parallel import ALONE, Ranks
from model.runner import Loaded, _device_runner
from model.sampling import Columns, Sampler
from model.torch_runner import TorchRunner
from model.transformer import Transformer
from service.engine.engine import Engine
from service.engine.messages import Event, Request
from tests.fakes_ranks import FakeDistributed
from tests.late_device import LateDevice
from tests.tiny_llama import CONFIG, empty_cache, random_transformer

NUM_PAGES, MAX_MODEL_LEN, MAX_SEQUENCES = 12, 64, 5
WAYS = (
    SamplingParams(temperature=0),
    SamplingParams(seed=3),
    SamplingParams(temperature=0.7, top_k=9, seed=1),
    SamplingParams(top_p=0.8, min_p=0.01, seed=7),
    SamplingParams(temperature=0, num_logprobs=2),
    SamplingParams(repetition_penalty=1.3, seed=2),
    SamplingParams(logit_bias={5: 3.0}, seed=4),
)


class OtherSampler(Sampler):
    pass


@cache
def model() -> Transformer:
    return random_transformer(dtype=torch.float32)


def plain_runner() -> TorchRunner:
    return TorchRunner(
        model(), empty_cache(model(), num_pages=NUM_PAGES), max_model_len=MAX_MODEL_LEN
    )


def device_runner(
    device: Device, cache: KVCache | None = None, *, captures: bool = True
) -> DeviceRunner:
    return DeviceRunner(
        model(),
        cache or empty_cache(model(), num_pages=NUM_PAGES + 1),
        device,
        max_model_len=MAX_MODEL_LEN,
        max_sequences=MAX_SEQUENCES,
        captures=captures,
    )


def served(runner: Runner, requests: list[tuple[int, Request]]) -> dict[str, list[Event]]:
    """The events of each request, which comes before the step of that number."""
    engine = Engine(runner, max_batch_tokens=24, max_sequences=MAX_SEQUENCES)
    events: dict[str, list[Event]] = {request.id: [] for _, request in requests}
    for number in range(300):
        for arrival, request in requests:
            if arrival == number:
                engine.add(request)
        for event in engine.step():
            events[event.request_id].append(event)
        engine.check_integrity()
        if not engine.has_work and all(arrival <= number for arrival, _ in requests):
            return events
    raise AssertionError("the engine makes no progress")


def told(events: dict[str, list[Event]]) -> dict[str, tuple[list[int], list[object]]]:
    return {
        name: (
            [token for event in news for token in event.token_ids],
            [[token for token, _ in each.top] for event in news for each in event.logprobs],
        )
        for name, news in events.items()
    }


arrivals = st.lists(
    st.tuples(
        st.integers(0, 9),  # the step before which it comes
        st.lists(st.integers(0, 3), min_size=1, max_size=30),
        st.integers(1, 20),
        st.sampled_from(WAYS),
        st.frozensets(st.integers(0, CONFIG.vocab_size - 1), max_size=20),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=40, deadline=None)
@given(arrivals, st.lists(st.integers(0, 3), min_size=1, max_size=5), st.booleans())
def test_a_late_device_changes_no_token(
    arrivals: list[tuple[int, list[int], int, SamplingParams, frozenset[int]]],
    delays: list[int],
    captures: bool,
) -> None:
    requests = [
        (
            step,
            Request(
                id=str(i),
                prompt_ids=ids,
                max_tokens=max_tokens,
                sampling=way,
                stop_token_ids=stops,
            ),
        )
        for i, (step, ids, max_tokens, way, stops) in enumerate(arrivals)
    ]
    late = device_runner(LateDevice(cycle(delays)), captures=captures)
    assert isinstance(late, OverlappingRunner)
    assert told(served(late, requests)) == told(served(plain_runner(), requests))


def test_what_the_host_waits_is_no_work_of_its_own() -> None:
    class SlowDevice(CpuDevice):
        def submit(self, work: Callable[[], Tensor]) -> Wait:
            wait = super().submit(work)

            def slow() -> Tensor:
                time.sleep(0.05)
                return wait()

            return slow

    engine = Engine(device_runner(SlowDevice()), max_batch_tokens=24, max_sequences=1)
    engine.add(Request(id="a", prompt_ids=[1, 2], max_tokens=3))
    records = []
    while engine.has_work:
        engine.step()
        records += [engine.record] if engine.record else []
    assert [record.num_decodes for record in records] == [0, 1, 1]
    assert all(record.phase_seconds["wait"] >= 0.05 for record in records)
    assert all(record.phase_seconds["run"] > 0 for record in records)


def test_columns_say_of_any_way_what_it_says_itself() -> None:
    draws = [(i, replace(way, num_logprobs=None)) for i, way in enumerate(WAYS)]
    logits_SV = torch.randn(len(draws), 50, generator=torch.Generator().manual_seed(0))
    for some in (draws, draws[:1]):
        columns = Columns.of(some, vocab_size=50, device=CPU)
        assert [column.dtype.is_floating_point for column in columns] == [0, 0, 1, 0, 1, 1]
        sampler = Sampler(50)
        ids = sampler.draw_by(logits_SV[: len(some)], columns).tolist()
        assert ids == sampler.draw(logits_SV[: len(some)], some).tolist()


def decodes(runner: Runner, num_steps: int, num_rows: int) -> Iterator[list[int]]:
    """Tokens of sequences that begin with one token each and know no other."""
    collects = []
    for position in range(num_steps):
        rows = [
            Row(
                [row + 1 if position == 0 else 0],
                position,
                [2 * row, 2 * row + 1],
                replace(WAYS[row % 4]),
                drawn_by=row if position else None,
            )
            for row in range(num_rows)
        ]
        assert isinstance(runner, OverlappingRunner)
        collects.append(runner.launch(Batch(rows)))
    for collect in collects:
        yield [token.token_id for token in collect().sampled if token]


@pytest.mark.parametrize("num_rows", [1, 3, 5])
def test_steps_that_go_on_alone_need_no_token_of_the_host(num_rows: int) -> None:
    eager, late = device_runner(CpuDevice(), captures=False), LateDevice(cycle([9]))
    expected = list(decodes(eager, 20, num_rows))
    assert list(decodes(device_runner(late), 20, num_rows)) == expected
    assert late.num_captured == len(graph_sizes(MAX_SEQUENCES))


def test_padding_writes_to_its_own_page_alone() -> None:
    cache = empty_cache(model(), num_pages=NUM_PAGES + 1)
    list(decodes(device_runner(CpuDevice(), cache), 3, 3))
    for pool_NJPD in [layer.pool_NJPD for layer in cache.layers]:
        assert pool_NJPD[[0, 2, 4, NUM_PAGES]].abs().amax((1, 2, 3)).min() > 0
        assert pool_NJPD[6:NUM_PAGES].abs().max() == 0
        assert pool_NJPD[[0, 2, 4], :, 3:].abs().max() == 0


class Uploads(CpuDevice):
    def __init__(self) -> None:
        self._uploaded: list[Tensor] = []

    def upload(self, values: Tensor) -> Tensor:
        self._uploaded.append(values.clone())
        return self._uploaded[-1]

    def has(self, values: Tensor) -> bool:
        return any(values is each for each in self._uploaded)


def test_pages_are_copied_by_numbers_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the host would be waited for."""
    copied, device = list[Tensor](), Uploads()
    monkeypatch.setattr(KVCache, "copy", lambda cache, pages_N2: copied.append(pages_N2))
    device_runner(device).run(Batch([Row([1, 2], 0, [0], WAYS[0])], [(3, 4), (5, 6)]))
    (pages_N2,) = copied
    assert pages_N2.tolist() == [[3, 4], [5, 6]]
    assert device.has(pages_N2)


@pytest.mark.parametrize("way", [None, *WAYS[:4]])
def test_ways_to_draw_are_uploaded_before_a_prompts_draw(
    way: SamplingParams | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a step that draws nothing has none."""
    row, columns, device = Row([1, 2], 0, [0], way), list[Tensor](), Uploads()
    expected = plain_runner().run(Batch([row])).sampled
    draw_by = Sampler.draw_by

    def draw(sampler: Sampler, logits_SV: Tensor, given: Columns) -> Tensor:
        columns.extend(given)
        return draw_by(sampler, logits_SV, given)

    monkeypatch.setattr(Sampler, "draw_by", draw)
    assert device_runner(device, captures=False).run(Batch([row])).sampled == expected
    assert len(columns) == (6 if way else 0)
    assert all(map(device.has, columns))


def test_the_sizes_of_graphs() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(5) == [1, 2, 4, 5]
    assert graph_sizes(100) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 96, 100]


def test_one_sequence_at_a_time_can_be_warmed_up() -> None:
    runner = DeviceRunner(
        model(),
        empty_cache(model(), num_pages=5),
        CpuDevice(),
        max_model_len=MAX_MODEL_LEN,
        max_sequences=1,
        captures=True,
    )
    runner.warm_up()
    assert runner.num_pages == 4


@pytest.mark.parametrize(
    ("attention_name", "sampler", "num_experts", "graphs", "captures"),
    [
        ("triton_paged", OtherSampler, 0, True, True),
        ("varlen", OtherSampler, 0, True, False),
        ("triton_paged", Sampler, 0, True, False),
        ("triton_paged", OtherSampler, 4, True, False),
        ("triton_paged", OtherSampler, 0, False, False),
    ],
)
def test_graphs_hold_what_asks_for_nothing_if_they_are_wanted(
    attention_name: str,
    sampler: type[Sampler],
    num_experts: int,
    graphs: bool,
    captures: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("model.runner.CudaDevice", CpuDevice)
    kernels = PLAIN._replace(attention_name=attention_name, sampler=sampler)
    assert made_by(kernels, num_experts=num_experts, graphs=graphs)._captures is captures


@pytest.mark.parametrize(("other", "captures"), [(OtherSampler, True), (Sampler, False)])
def test_all_ranks_have_graphs_or_none_has(
    other: type[Sampler], captures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeDistributed(2)
    monkeypatch.setattr("model.runner.CudaDevice", CpuDevice)
    monkeypatch.setattr("model.parallel.dist", fake)
    samplers = (OtherSampler, other)
    found = fake.on_each(
        lambda ranks: made_by(
            PLAIN._replace(attention_name="triton_paged", sampler=samplers[ranks.rank]), ranks
        )
    )
    assert [runner._captures for runner in found] == [captures, captures]


def made_by(
    kernels: Kernels, ranks: Ranks = ALONE, *, num_experts: int = 0, graphs: bool = True
) -> DeviceRunner:
    config = replace(CONFIG, num_experts=num_experts, num_active_experts=1, expert_size=8)
    stub = SimpleNamespace(config=config)
    loaded = Loaded(cast(Any, stub), kernels, CPU, 16, 1, KVCache.allocate)
    cache = empty_cache(model(), num_pages=5)
    runner = _device_runner(
        ranks, 3, graphs, loaded, cache, max_model_len=MAX_MODEL_LEN, num_tokens=None
    )
    assert isinstance(runner, DeviceRunner)
    return runner

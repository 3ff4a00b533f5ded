"""Ranks with devices of their own: steps are launched ahead on all of them, and the tokens are
those of one plain runner, however late either device is. Here ranks are threads."""

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
import torch
from hypothesis import given, settings, strategies as st

from model import leading, parallel
from model.batch import Batch, Collect, Row, Runner, SamplingParams, StepOutput
from model.config import ModelConfig, load_config
from model.device import CpuDevice, Device
from model.device_runner import DeviceRunner
from model.graphs import graph_sizes
from model.kv_cache import KVCache
from model.leading import follow, lead
from model.parallel import ALONE, Ranks
from model.torch_runner import TorchRunner
from model.transformer import Transformer
from model.weights.load import load_model
from model.wire import Wire
from service.engine.messages import Event, Request
from tests.fakes_ranks import FakeDistributed
from tests.late_device import LateDevice, SlowDevice
from tests.test_device_runner import MAX_MODEL_LEN, MAX_SEQUENCES, WAYS, decodes, served, told
from tests.tiny_llama import CONFIG, transformers_llama

NUM_PAGES, PAGE_SIZE, TOLERANCE = 12, 16, 1e-3

T = TypeVar("T")


class Models(NamedTuple):
    config: ModelConfig
    whole: Transformer
    shares: list[Transformer]


class Recording(DeviceRunner):
    """Notes how many steps were launched and not collected."""

    num_launched = most_launched = num_copies = 0

    def launch(self, batch: Batch) -> Collect:
        collect = super().launch(batch)
        self.num_copies += len(batch.copies)
        self.num_launched += 1
        self.most_launched = max(self.most_launched, self.num_launched)

        def collected() -> StepOutput:
            output = collect()
            self.num_launched -= 1
            return output

        return collected


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder: Path = tmp_path_factory.mktemp("llama")
    transformers_llama().save_pretrained(folder)
    config = load_config(folder)
    load = partial(load_model, folder, config, report=lambda *progress: None)
    return Models(config, load(ranks=ALONE), [load(ranks=Ranks(rank, 2, 2)) for rank in range(2)])


@pytest.fixture(scope="module", autouse=True)
def _calm() -> Iterator[None]:
    """No heartbeat fails when a test has closed its connections."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leading, "HEARTBEAT_SECONDS", 3600)
        yield


def cache_of(model: Transformer, num_pages: int) -> KVCache:
    return KVCache.allocate(
        model.config, num_pages=num_pages, page_size=PAGE_SIZE, dtype=torch.float32
    )


def plain(models: Models) -> TorchRunner:
    cache = cache_of(models.whole, NUM_PAGES)
    return TorchRunner(models.whole, cache, max_model_len=MAX_MODEL_LEN)


def on_ranks(
    models: Models,
    kinds: tuple[str, str],
    delays: list[int],
    work: Callable[[Runner], T],
    *,
    captures: bool = True,
) -> tuple[T, list[Recording]]:
    """What comes of work with rank 0's runner, while rank 1 follows; and both ranks' runners."""
    fake = FakeDistributed(2)
    ends = socket.socketpair()

    def device_of(rank: int) -> Device:
        match kinds[rank]:
            case "late":
                return LateDevice(cycle(delays))
            case "slow":
                seconds = cycle([delay / 500 for delay in delays])
                return SlowDevice(seconds, begin=partial(setattr, fake.here, "rank", rank))
            case _:
                return CpuDevice()

    def on_one(ranks: Ranks) -> tuple[T | None, Recording]:
        device = device_of(ranks.rank)
        model = models.shares[ranks.rank]
        runner = Recording(
            model,
            cache_of(model, NUM_PAGES + 1),
            device,
            max_model_len=MAX_MODEL_LEN,
            max_sequences=MAX_SEQUENCES,
            captures=captures,
        )
        wire = Wire([ends[ranks.rank]])
        with ends[ranks.rank]:
            found = None if ranks.rank else work(lead(runner, wire))
            if ranks.rank:
                follow(runner, wire)
        if not isinstance(device, CpuDevice):
            assert isinstance(device, LateDevice | SlowDevice)
            device.close()
        return found, runner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "dist", fake)
        (found, first), (_, other) = fake.on_each(on_one)
    assert found is not None
    return found, [first, other]


class Arrival(NamedTuple):
    step: int
    """Before which it comes."""
    prompt_ids: list[int]
    max_tokens: int
    way: SamplingParams
    stop_ids: frozenset[int]
    num_choices: int
    num_prompt_logprobs: int | None


arrivals = st.lists(
    st.builds(
        Arrival,
        st.integers(0, 9),
        st.lists(st.integers(0, 3), min_size=1, max_size=40),
        st.integers(1, 20),
        st.sampled_from(WAYS),
        st.frozensets(st.integers(0, CONFIG.vocab_size - 1), max_size=20),
        st.integers(1, 3),
        st.sampled_from([None, None, 1]),
    ),
    min_size=1,
    max_size=4,
)


def requests_of(arrivals: list[Arrival]) -> list[tuple[int, Request]]:
    return [
        (
            each.step,
            Request(
                id=f"{number} {choice}",
                prompt_ids=each.prompt_ids,
                max_tokens=each.max_tokens,
                sampling=replace(each.way, seed=each.way.seed + choice),
                stop_token_ids=each.stop_ids,
                num_prompt_logprobs=each.num_prompt_logprobs,
            ),
        )
        for number, each in enumerate(arrivals)
        for choice in range(each.num_choices)
    ]


def prompt_logprobs(events: dict[str, list[Event]]) -> list[float]:
    return [
        each.chosen
        for name in sorted(events)
        for event in events[name]
        for each in event.prompt_logprobs
    ]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    arrivals,
    st.tuples(st.sampled_from(["cpu", "late", "slow"]), st.sampled_from(["cpu", "slow"])),
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.booleans(),
)
def test_late_devices_of_two_ranks_change_no_token(
    models: Models,
    arrivals: list[Arrival],
    kinds: tuple[str, str],
    delays: list[int],
    captures: bool,
) -> None:
    requests = requests_of(arrivals)
    expected = served(plain(models), requests)
    work = partial(served, requests=requests)
    found, _ = on_ranks(models, kinds, delays, work, captures=captures)
    assert told(found) == told(expected)
    assert prompt_logprobs(found) == pytest.approx(prompt_logprobs(expected), abs=TOLERANCE)


@pytest.mark.parametrize("kinds", [("late", "slow"), ("slow", "slow"), ("cpu", "cpu")])
def test_all_ranks_launch_steps_ahead(models: Models, kinds: tuple[str, str]) -> None:
    """Choices that share a page, which is copied; prompts in chunks; some are preempted."""
    several = [
        Arrival(0, [1, 2, 3] * 9, 37, WAYS[1], frozenset(), 3, None),
        Arrival(2, [3, 1] * 20, 24, WAYS[0], frozenset(), 2, 2),
        Arrival(4, [2, 2, 1] * 10, 34, WAYS[2], frozenset(), 2, None),
    ]
    requests = requests_of(several)
    expected = served(plain(models), requests)
    found, (first, other) = on_ranks(models, kinds, [2], partial(served, requests=requests))
    assert told(found) == told(expected)
    assert first.most_launched == 2
    assert first.num_launched == 0
    assert other.num_launched == other.most_launched > 10, "it collects none"
    assert first.num_copies == other.num_copies > 0
    timings = [events[-1].timings for events in found.values()]
    assert sum(each.num_preemptions for each in timings if each) > 0


def test_tokens_stay_on_each_ranks_device(models: Models) -> None:
    """Of many steps that are launched before any is read; and each rank captures all sizes."""

    def work(runner: Runner) -> list[list[int]]:
        return list(decodes(runner, 20, 3))

    expected = list(slowly(plain(models), 20, 3))
    found, runners = on_ranks(models, ("slow", "slow"), [9], work)
    assert found == expected
    assert [captured(runner) for runner in runners] == [len(graph_sizes(MAX_SEQUENCES))] * 2


def slowly(runner: Runner, num_steps: int, num_rows: int) -> Iterator[list[int]]:
    """What `decodes` gives, each step after the one before."""
    tokens = [row + 1 for row in range(num_rows)]
    for position in range(num_steps):
        rows = [
            Row([token], position, [2 * row, 2 * row + 1], WAYS[row % 4])
            for row, token in enumerate(tokens)
        ]
        tokens = [token.token_id for token in runner.run(Batch(rows)).sampled if token]
        yield tokens


def captured(runner: DeviceRunner) -> int:
    assert isinstance(runner._device, SlowDevice)
    return runner._device.num_captured

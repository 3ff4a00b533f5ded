"""A step, from rows to sampled tokens: pack, forward, sample; and how a runner comes to be.

All that the engine sees of the model. Knows no requests, text or clock.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from model.attention.backend import Place
from model.batch import (
    Batch,
    Pooling,
    Row,
    SampledToken,
    SamplingParams,
    Scoring,
    StepOutput,
    TokenLogprobs,
)
from model.config import ModelConfig, load_config
from model.errors import ModelError
from model.footprint import float32_page_bytes, native_page_bytes
from model.host import usable_cores
from model.kernels import PLAIN, Kernels, choose
from model.kv_cache import CPU, KVCache, affordable_pages
from model.native.cache import NativeCache
from model.native.library import builds
from model.native.transformer import is_native, load_native
from model.packing import RaggedBatch
from model.parallel import ALONE, Ranks, share
from model.sampling import logprobs_of, told
from model.step import Computed, Step
from model.vocabulary import num_tokens
from model.weights.load import Report, load_model

SCORED_AT_ONCE = 64

log = logging.getLogger(__name__)

Progress = Callable[[str, str, float], None]
"""Takes the phase of loading, what of it was just done, and the share of the phase that is done."""


class Cache(Protocol):
    @property
    def num_pages(self) -> int: ...

    @property
    def page_size(self) -> int: ...

    def copy(self, pages: Sequence[tuple[int, int]]) -> None: ...


class Model(Protocol):
    """A Transformer, or a stand-in that computes the same in another way."""

    @property
    def config(self) -> ModelConfig: ...

    def hidden(self, batch: RaggedBatch, cache: Any) -> Tensor: ...

    def logits(self, x_SW: Tensor) -> Tensor: ...

    @property
    def norm(self) -> Callable[[Tensor], Tensor]: ...


class TorchRunner:
    """Fulfils model.batch.Runner."""

    def __init__(
        self,
        model: Model,
        cache: Cache,
        *,
        max_model_len: int,
        kernels: Kernels = PLAIN,
        num_tokens: int | None = None,
        place: torch.device = CPU,
    ) -> None:
        """num_tokens: of the tokenizer, where that may have fewer than the model has rows for."""
        self.device, self.attention = place.type, kernels.attention_name
        self.page_size = cache.page_size
        self.num_pages = cache.num_pages
        vocab_size = model.config.vocab_size
        self.vocab_size = min(num_tokens or vocab_size, vocab_size)
        self.max_model_len = max_model_len
        self._model = model
        self._cache = cache
        self._sampler = kernels.sampler(self.vocab_size, device=place)

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepOutput:
        started = time.perf_counter()
        step = Step(batch, page_size=self.page_size)
        assert step.ragged.token_ids_T.max() < self.vocab_size
        packed_at = time.perf_counter()
        self._cache.copy(batch.copies)
        x_TW = self._model.hidden(step.ragged, self._cache)
        logits_SV = self._logits(x_TW[step.drawn_at_S])
        computed_at = time.perf_counter()
        output = self._output(step, Computed(x_TW, logits_SV, self._draw(logits_SV, step)))
        phases = {
            "pack": packed_at - started,
            "forward": computed_at - packed_at,
            "sample": time.perf_counter() - computed_at,
        }
        return replace(output, phase_seconds=phases)

    def _logits(self, x_SW: Tensor) -> Tensor:
        """Of what is a token, and not of rows that but fill up the matrix."""
        return self._model.logits(x_SW)[:, : self.vocab_size]

    def _draw(self, logits_SV: Tensor, step: Step) -> Tensor:
        return self._sampler.adjust_and_draw(logits_SV.float(), *step.draws)

    def _output(self, step: Step, computed: Computed) -> StepOutput:
        x_TW, logits_SV, ids_S = computed
        drawn = iter(told(logits_SV, ids_S, step.draws.params))
        sampled: list[SampledToken | None] = [None] * len(step.rows)
        followers: dict[int, list[SampledToken]] = {}
        scores: dict[int, list[TokenLogprobs]] = {}
        pooled: dict[int, list[float]] = {}
        parts = torch.split(x_TW, step.ragged.query_lens_S.tolist())
        for index, row, x_QW in zip(step.order, step.rows, parts, strict=True):
            if row.sampling:
                sampled[index] = first = next(drawn)
                if row.guessed_ids:
                    tokens = list(islice(drawn, len(row.guessed_ids)))
                    followers[index] = _true_followers(first, row.guessed_ids, tokens)
            if row.scoring:
                scores[index] = self._score(x_QW, row.scoring)
            if row.pooling:
                pooled[index] = self._pool(x_QW, row.pooling)
        return StepOutput(sampled, scores, pooled, followers=followers)

    def _score(self, x_QW: Tensor, scoring: Scoring) -> list[TokenLogprobs]:
        """A few tokens at a time, since the logits of a long prompt would be huge."""
        scores: list[TokenLogprobs] = []
        for start in range(0, len(scoring.token_ids), SCORED_AT_ONCE):
            ids = scoring.token_ids[start : start + SCORED_AT_ONCE]
            logits_SV = self._logits(x_QW[start : start + len(ids)]).float()
            counts = [scoring.num_logprobs] * len(ids)
            ids_S = torch.tensor(ids, device=logits_SV.device)
            scores += logprobs_of(logits_SV, ids_S, counts).values()
        return scores

    def _pool(self, x_QW: Tensor, pooling: Pooling) -> list[float]:
        used_QW = x_QW[-1:] if pooling == "last" else x_QW
        return self._model.norm(used_QW).float().sum(0).tolist()

    def warm_up(self) -> None:
        """A prompt beside a decode, so that no request pays for what PyTorch sets up at first use.

        They write to a page that a sequence writes itself before it reads it.
        """
        prompt = [0] * min(2, self.max_model_len)
        self.run(Batch([Row(ids, 0, [0], SamplingParams()) for ids in (prompt, [0])]))


def load_runner(
    path: Path,
    *,
    max_batch_tokens: int,
    max_sequences: int,
    max_model_len: int,
    kv_cache_memory: int,
    threads: int,
    progress: Progress,
    quantization: str = "auto",
    ranks: Ranks = ALONE,
) -> TorchRunner:
    """From a folder or a .gguf file. 0 means automatic for any of the last three limits.

    Of several ranks, each has a runner of its share of the model, and all must run the same.
    """
    torch.set_num_threads(_num_threads(threads, ranks.num_local))
    config = load_config(path)
    build = _native_build(quantization, config) if ranks.size == 1 else ""
    if max_model_len > config.context_len:
        raise ModelError(
            f"max_model_len is {max_model_len}, but the model's context is {config.context_len} "
            "tokens: take that or less"
        )
    config = replace(config, context_len=max_model_len or config.context_len)
    load = partial(_load_native, build=build) if build else partial(_load_float32, ranks=ranks)
    loaded = load(path, config, report=partial(progress, "weights"))
    progress("cache", "", 0.0)
    most = max_sequences * -(-config.context_len // loaded.page_size)
    page_bytes = loaded.page_bytes * ranks.num_local
    num_pages = affordable_pages(page_bytes, memory=kv_cache_memory, most=most)
    cache = loaded.allocate(loaded.model.config, num_pages=ranks.least(num_pages))
    max_model_len = _affordable_len(config, max_model_len, cache)
    runner = TorchRunner(
        loaded.model,
        cache,
        max_model_len=max_model_len,
        kernels=loaded.kernels,
        num_tokens=num_tokens(path),
    )
    progress("warm-up", "", 0.0)
    runner.warm_up()
    return runner


def _num_threads(asked: int, num_sharing: int) -> int:
    if asked > usable_cores():
        raise ModelError(
            f"threads is {asked}, but only {usable_cores()} cores can be used: take that or less, "
            "or 0 for all of them"
        )
    return asked or max(1, usable_cores() // num_sharing)


def _native_build(quantization: str, config: ModelConfig) -> str:
    """The library that is to compute with weights of 8 bits; empty: PyTorch, in float32."""
    if quantization == "int8" and not is_native(config):
        raise ModelError(
            f"quantization is int8, which runs plain Llama models only, and this {config.family} "
            "model isn't one: take auto or none"
        )
    if quantization == "none" or not is_native(config):
        return ""
    if built := builds():
        return built[0]
    problem = "no native library is there that this processor can run"
    remedy = "install octavo again where there is a C compiler"
    if quantization == "int8":
        raise ModelError(f"quantization is int8, but {problem}: {remedy}, or take auto or none")
    log.warning("%s, so the model runs in float32, several times slower: %s", problem, remedy)
    return ""


class Loaded(NamedTuple):
    model: Model
    kernels: Kernels
    page_size: int
    page_bytes: int
    """What a page of its cache takes."""
    allocate: Callable[..., Cache]


def _load_native(path: Path, config: ModelConfig, *, build: str, report: Report) -> Loaded:
    threads = torch.get_num_threads()
    model = load_native(path, config, build=build, threads=threads, report=report)
    kernels = PLAIN._replace(attention_name="native")
    return Loaded(model, kernels, NativeCache.page_size, native_page_bytes(config), NativeCache)


def _load_float32(path: Path, config: ModelConfig, *, report: Report, ranks: Ranks) -> Loaded:
    kernels = choose(share(config, ranks), Place(CPU, torch.float32, torch.float32))
    model = load_model(path, config, report=report, kernels=kernels, ranks=ranks)
    page_size = kernels.attention.PAGE_SIZE
    page_bytes = float32_page_bytes(model.config, page_size=page_size)
    allocate = partial(KVCache.allocate, page_size=page_size, dtype=torch.float32)
    return Loaded(model, kernels, page_size, page_bytes, allocate)


def _affordable_len(config: ModelConfig, max_model_len: int, cache: Cache) -> int:
    """What was asked for or is an error; else the model's context, as far as the cache holds it."""
    held = cache.num_pages * cache.page_size
    if max_model_len > held:
        raise ModelError(
            f"max_model_len is {max_model_len}, but the KV cache holds {held} tokens: take that or "
            "less, or raise kv_cache_memory"
        )
    return max_model_len or min(config.context_len, held)


def _true_followers(
    first: SampledToken, guesses: Sequence[int], drawn: Sequence[SampledToken]
) -> list[SampledToken]:
    """What was drawn after guesses, up to the one that isn't what was drawn in its place."""
    before = [first, *drawn]
    num_true = next(
        (i for i, guess in enumerate(guesses) if guess != before[i].token_id), len(guesses)
    )
    return list(drawn[:num_true])

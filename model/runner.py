"""A step, from rows to sampled tokens: pack, forward, sample; and how a runner comes to be.

All that the engine sees of the model. Knows no requests, text or clock.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from model.attention.reference import PAGE_SIZE
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
from model.host import usable_cores
from model.kv_cache import KVCache, affordable_pages, page_bytes
from model.packing import pack
from model.sampling import Sampler, logprobs_of
from model.transformer import Transformer
from model.weights.load import load_model

SCORED_AT_ONCE = 64

Progress = Callable[[str, str, float], None]
"""Takes the phase of loading, what of it was just done, and the share of the phase that is done."""


class TorchRunner:
    """Fulfils model.batch.Runner."""

    def __init__(self, model: Transformer, cache: KVCache, *, max_model_len: int) -> None:
        self.page_size = cache.page_size
        self.num_pages = cache.num_pages
        self.vocab_size = model.config.vocab_size
        self.max_model_len = max_model_len
        self._model = model
        self._cache = cache
        self._sampler = Sampler(self.vocab_size)

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepOutput:
        # Rows of a size go next to each other, since attention can take those together.
        order = sorted(range(len(batch.rows)), key=lambda index: _size(batch.rows[index]))
        rows = [batch.rows[index] for index in order]
        started = time.perf_counter()
        packed = pack(rows, page_size=self.page_size)
        assert packed.token_ids_T.max() < self.vocab_size
        packed_at = time.perf_counter()
        self._cache.copy(batch.copies)
        x_TW = self._model.hidden(packed, self._cache)
        draws_S = torch.tensor([row.sampling is not None for row in rows])
        logits_SV = self._model.logits(x_TW[packed.query_lens_S.cumsum(0)[draws_S] - 1])
        computed_at = time.perf_counter()
        drawn = iter(self._sample(logits_SV, [row for row in rows if row.sampling]))
        sampled: list[SampledToken | None] = [None] * len(rows)
        scores: dict[int, list[TokenLogprobs]] = {}
        pooled: dict[int, list[float]] = {}
        parts = torch.split(x_TW, packed.query_lens_S.tolist())
        for index, row, x_QW in zip(order, rows, parts, strict=True):
            if row.sampling:
                sampled[index] = next(drawn)
            if row.scoring:
                scores[index] = self._score(x_QW, row.scoring)
            if row.pooling:
                pooled[index] = self._pool(x_QW, row.pooling)
        phases = {
            "pack": packed_at - started,
            "forward": computed_at - packed_at,
            "sample": time.perf_counter() - computed_at,
        }
        return StepOutput(sampled, scores, pooled, phases)

    def _sample(self, logits_SV: Tensor, rows: list[Row]) -> list[SampledToken]:
        positions = [row.start + len(row.token_ids) for row in rows]
        params = [row.sampling for row in rows if row.sampling]
        return self._sampler.sample(logits_SV, positions, params, [row.context for row in rows])

    def _score(self, x_QW: Tensor, scoring: Scoring) -> list[TokenLogprobs]:
        """A few tokens at a time, since the logits of a long prompt would be huge."""
        scores: list[TokenLogprobs] = []
        for start in range(0, len(scoring.token_ids), SCORED_AT_ONCE):
            ids = scoring.token_ids[start : start + SCORED_AT_ONCE]
            logits_SV = self._model.logits(x_QW[start : start + len(ids)]).float()
            counts = [scoring.num_logprobs] * len(ids)
            scores += logprobs_of(logits_SV, torch.tensor(ids), counts).values()
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
) -> TorchRunner:
    """From a folder or a .gguf file. 0 means automatic for any of the last three limits."""
    torch.set_num_threads(_num_threads(threads))
    config = load_config(path)
    if max_model_len > config.context_len:
        raise ModelError(
            f"max_model_len is {max_model_len}, but the model's context is {config.context_len} "
            "tokens: take that or less"
        )
    model = load_model(path, config, report=partial(progress, "weights"))
    progress("cache", "", 0.0)
    most = max_sequences * _num_pages(max_model_len or config.context_len)
    cache = _allocate_cache(model, memory=kv_cache_memory, most_pages=most)
    max_model_len = _affordable_len(config, max_model_len, cache)
    runner = TorchRunner(model, cache, max_model_len=max_model_len)
    progress("warm-up", "", 0.0)
    runner.warm_up()
    return runner


def _num_threads(asked: int) -> int:
    if asked > usable_cores():
        raise ModelError(
            f"threads is {asked}, but only {usable_cores()} cores can be used: take that or less, "
            "or 0 for all of them"
        )
    return asked or usable_cores()


def _allocate_cache(model: Transformer, *, memory: int, most_pages: int) -> KVCache:
    size = page_bytes(model.config, page_size=PAGE_SIZE, dtype=model.dtype)
    num_pages = affordable_pages(size, memory=memory, most=most_pages)
    return KVCache.allocate(
        model.config, num_pages=num_pages, page_size=PAGE_SIZE, dtype=model.dtype
    )


def _affordable_len(config: ModelConfig, max_model_len: int, cache: KVCache) -> int:
    """What was asked for or is an error; else the model's context, as far as the cache holds it."""
    held = cache.num_pages * cache.page_size
    if max_model_len > held:
        raise ModelError(
            f"max_model_len is {max_model_len}, but the KV cache holds {held} tokens: take that or "
            "less, or raise kv_cache_memory"
        )
    return max_model_len or min(config.context_len, held)


def _num_pages(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_SIZE)


def _size(row: Row) -> tuple[int, int]:
    """The number of queries, then that of keys."""
    return len(row.token_ids), row.start

"""A step, from rows to sampled tokens: pack, forward, sample. Knows no requests, text or clock."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

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
from model.config import ModelConfig
from model.kernels import PLAIN, Kernels
from model.kv_cache import CPU
from model.packing import RaggedBatch
from model.sampling import Likelihoods, likelihoods, told
from model.step import Computed, Step

SCORED_AT_ONCE = 64


class Cache(Protocol):
    @property
    def num_pages(self) -> int: ...

    @property
    def page_size(self) -> int: ...

    def copy(self, pages_N2: Tensor) -> None: ...


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
        self._place = place
        self._model = model
        self._cache = cache
        self._sampler = kernels.sampler(self.vocab_size, device=place)

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepOutput:
        started = time.perf_counter()
        step = Step(batch, page_size=self.page_size)
        assert step.ragged.token_ids_T.max() < self.vocab_size
        packed_at = time.perf_counter()
        if batch.copies:
            self._cache.copy(self._upload(torch.tensor(batch.copies)))
        x_TW = self._model.hidden(step.ragged.moved(self._upload), self._cache)
        logits_SV = self._logits(x_TW[step.drawn_at_S])
        computed_at = time.perf_counter()
        ids_S = self._draw(logits_SV, step)
        output = self._output(step, Computed(x_TW, logits_SV, ids_S, self._scores(x_TW, step)))
        phases = {
            "pack": packed_at - started,
            "forward": computed_at - packed_at,
            "sample": time.perf_counter() - computed_at,
        }
        return replace(output, phase_seconds=phases)

    def _upload(self, values: Tensor) -> Tensor:
        return values.to(self._place)

    def _logits(self, x_SW: Tensor) -> Tensor:
        """Of what is a token, and not of rows that but fill up the matrix."""
        return self._model.logits(x_SW)[:, : self.vocab_size]

    def _draw(self, logits_SV: Tensor, step: Step) -> Tensor:
        return self._sampler.adjust_and_draw(logits_SV.float(), *step.draws)

    def _output(self, step: Step, computed: Computed) -> StepOutput:
        x_TW, logits_SV, ids_S, computed_scores = computed
        drawn = iter(told(logits_SV, ids_S, step.draws.params))
        sampled: list[SampledToken | None] = [None] * len(step.rows)
        followers: dict[int, list[SampledToken]] = {}
        scores: dict[int, list[TokenLogprobs]] = {}
        pooled: dict[int, list[float]] = {}
        for index, row, x_QW in _parts(x_TW, step):
            if row.sampling:
                sampled[index] = first = next(drawn)
                if row.guessed_ids:
                    tokens = list(islice(drawn, len(row.guessed_ids)))
                    followers[index] = _true_followers(first, row.guessed_ids, tokens)
            if row.scoring:
                scores[index] = _told(computed_scores[index], row.scoring)
            if row.pooling:
                pooled[index] = self._pool(x_QW, row.pooling)
        return StepOutput(sampled, scores, pooled, followers=followers)

    def _scores(self, x_TW: Tensor, step: Step) -> dict[int, list[Likelihoods]]:
        """Part of the step like the draws, since several ranks must gather logits in one order."""
        return {
            index: list(self._score(x_QW, row.scoring))
            for index, row, x_QW in _parts(x_TW, step)
            if row.scoring
        }

    def _score(self, x_QW: Tensor, scoring: Scoring) -> Iterator[Likelihoods]:
        """A few tokens at a time, since the logits of a long prompt would be huge."""
        for start in range(0, len(scoring.token_ids), SCORED_AT_ONCE):
            ids = scoring.token_ids[start : start + SCORED_AT_ONCE]
            logits_SV = self._logits(x_QW[start : start + len(ids)]).float()
            ids_S = self._upload(torch.tensor(ids))
            yield likelihoods(logits_SV, ids_S, most=scoring.num_logprobs)

    def _pool(self, x_QW: Tensor, pooling: Pooling) -> list[float]:
        used_QW = x_QW[-1:] if pooling == "last" else x_QW
        return self._model.norm(used_QW).float().sum(0).tolist()

    def warm_up(self) -> None:
        """A prompt beside a decode, so that no request pays for what PyTorch sets up at first use.

        They write to a page that a sequence writes itself before it reads it.
        """
        prompt = [0] * min(2, self.max_model_len)
        self.run(Batch([Row(ids, 0, [0], SamplingParams()) for ids in (prompt, [0])]))


def _parts(x_TW: Tensor, step: Step) -> Iterator[tuple[int, Row, Tensor]]:
    """Each row's number in the batch, the row, and what is of its tokens."""
    return zip(step.order, step.rows, torch.split(x_TW, step.query_lens), strict=True)


def _told(scores: Sequence[Likelihoods], scoring: Scoring) -> list[TokenLogprobs]:
    return [
        told
        for likelihoods in scores
        for told in likelihoods.told([scoring.num_logprobs] * len(likelihoods.ranks_S))
    ]


def _true_followers(
    first: SampledToken, guesses: Sequence[int], drawn: Sequence[SampledToken]
) -> list[SampledToken]:
    """What was drawn after guesses, up to the one that isn't what was drawn in its place."""
    before = [first, *drawn]
    num_true = next(
        (i for i, guess in enumerate(guesses) if guess != before[i].token_id), len(guesses)
    )
    return list(drawn[:num_true])

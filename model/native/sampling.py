"""model.sampling's draws in C: the same tokens for the same seeds, in a pass or two over logits.

Where PyTorch's last bits could matter, such as where two tokens come to nearly the same score, the
library leaves a row undecided, and model.sampling draws it: about one of a thousand.

Shapes: S sequences, V vocabulary.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from model.native.library import DRAW
from model.native.transformer import NativeTransformer
from model.sampling import GREEDY_BELOW, UINT64, Draw, Sampler


class NativeSampler(Sampler):
    """A Sampler that draws there, with the threads of a model."""

    def __init__(
        self, model: NativeTransformer, vocab_size: int, *, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(vocab_size, device=device)
        self._model = model

    def draw(self, logits_SV: Tensor, draws: Sequence[Draw]) -> Tensor:
        ids_S = torch.empty(len(draws), dtype=torch.int64)
        if self._model.draw(logits_SV, self._packed(draws), ids_S):
            rows = [row for row, token_id in enumerate(ids_S.tolist()) if token_id < 0]
            ids_S[rows] = super().draw(logits_SV[rows], [draws[row] for row in rows])
        return ids_S

    def _packed(self, draws: Sequence[Draw]) -> bytes:
        return b"".join(
            DRAW.pack(
                params.seed & UINT64,
                position,
                params.temperature if params.temperature >= GREEDY_BELOW else 0,
                self._limit(params),
                params.top_p if params.top_p < 1 else math.inf,
                params.min_p,
            )
            for position, params in draws
        )

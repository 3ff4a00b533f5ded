"""model.sampling's draws in C: the same tokens for the same seeds, in a pass or two over logits.

Where PyTorch's last bits could matter, such as where two tokens come to nearly the same score, the
library leaves a row undecided, and model.sampling draws it: about one of a thousand.

Shapes: S sequences, V vocabulary.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from model.batch import Context, SamplingParams
from model.logits import allowed_ids, restricted, reweighted
from model.native.library import ALLOWED_AT_ONCE, DRAW
from model.native.transformer import NativeTransformer
from model.sampling import GREEDY_BELOW, UINT64, Draw, Sampler


class NativeSampler(Sampler):
    """A Sampler that draws there, with the threads of a model."""

    def __init__(
        self, model: NativeTransformer, vocab_size: int, *, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(vocab_size, device=device)
        self._model = model

    def adjust_and_draw(
        self,
        logits_SV: Tensor,
        positions: Sequence[int],
        params: Sequence[SamplingParams],
        contexts: Sequence[Context | None],
    ) -> Tensor:
        """Without a copy of the logits where all that is asked for is what may be drawn at all."""
        draws = list(zip(positions, params, strict=True))
        allowed = allowed_ids(contexts)
        logits_SV = reweighted(logits_SV, params, contexts)
        ids_S = torch.empty(len(draws), dtype=torch.int64)
        num_bytes = -(-logits_SV.shape[-1] // ALLOWED_AT_ONCE) * ALLOWED_AT_ONCE // 8
        padded = [bits if bits is None else bits.ljust(num_bytes, b"\0") for bits in allowed]
        if self._model.draw(logits_SV, padded, self._packed(draws), ids_S):
            rows = [row for row, token_id in enumerate(ids_S.tolist()) if token_id < 0]
            left_SV = restricted(logits_SV[rows], [allowed[row] for row in rows])
            ids_S[rows] = self.draw(left_SV, [draws[row] for row in rows])
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

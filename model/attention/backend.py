"""What the model asks of attention, whichever way it is computed."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from model.config import ModelConfig
from model.kv_cache import LayerCache
from model.packing import RaggedBatch


class Place(NamedTuple):
    """Where a model is computed, and in what numbers."""

    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype
    """Of keys and values: that of the model, or e4m3 (model.float8)."""


class UnfitError(Exception):
    """Kernels that can't compute a model, or not right."""


class Backend(Protocol):
    """A module with these names."""

    PAGE_SIZE: int
    """The tokens in a page of the cache, as it wants it."""

    def refusal(self, config: ModelConfig, place: Place) -> str:
        """Why such a model can't be computed by it; empty if it can."""

    def prepare(
        self,
        batch: RaggedBatch,
        *,
        num_heads: int,
        num_kv_heads: int,
        dtype: torch.dtype,
        window: int | None = None,
    ) -> Any:
        """Once a step for all layers that see as far: the plan, for `attend` alone. window: how
        many tokens a token sees, itself included; None: all before it."""

    def attend(
        self,
        q_THD: Tensor,
        cache: LayerCache,
        plan: Any,
        *,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Once a layer, after its keys were written: out_THD. scale: of the scores, if not 1/√D.
        softcap: the most that a score can be, softly."""

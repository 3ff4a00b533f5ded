"""Who may look at whom in attention: masks that are True where a query may attend to a key.

    softmax(Q Kᵀ / √D + M) V,    M = 0 where the mask is True, -∞ where it is False

Shapes: S sequences, Q query positions, C key positions, from 0 on.
"""

import torch
from torch import Tensor


def causal_mask(query_positions_SQ: Tensor, *, num_keys: int) -> Tensor:
    """A token sees itself and what came before it.

    Three tokens of a prompt, the first two of which, at positions 0 and 1, are already cached:

        key position       0 1 2 3 4 5
        query at 2         x x x . . .
        query at 3         x x x x . .
        query at 4         x x x x x .
    """
    key_positions_C = torch.arange(num_keys, device=query_positions_SQ.device)
    return key_positions_C <= query_positions_SQ[..., None]


def window_mask(query_positions_SQ: Tensor, *, num_keys: int, window: int) -> Tensor:
    """A token sees no further back than the window, which it is part of itself.

    A window of 2, of which the causal mask takes the right half:

        key position       0 1 2 3 4 5
        query at 2         . x x x x x
        query at 3         . . x x x x
        query at 4         . . . x x x
    """
    key_positions_C = torch.arange(num_keys, device=query_positions_SQ.device)
    return key_positions_C > query_positions_SQ[..., None] - window


def padding_mask(lengths_S: Tensor, *, num_keys: int) -> Tensor:
    """Nobody sees the filling that makes short sequences as wide as their group.

    key position       0 1 2 3 4 5
    length 2           x x . . . .
    length 6           x x x x x x
    length 3           x x x . . .
    """
    key_positions_C = torch.arange(num_keys, device=lengths_S.device)
    return key_positions_C < lengths_S[:, None]


def additive(mask: Tensor, *, dtype: torch.dtype) -> Tensor:
    """M of the formula above."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)

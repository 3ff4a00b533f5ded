"""What is done to a stored tensor so that its rows are as our model has them. Knows no names."""

import torch
from torch import Tensor

from model.weights.names import Change


def changed(tensor: Tensor, change: Change | None) -> Tensor:
    if change is None:
        return tensor
    match change.kind:
        case "transpose":
            return tensor.T.contiguous()
        case "add one":
            return tensor + 1
        case "ungroup":
            return _ungrouped(tensor, change.num_heads, change.head_dim)
        case kind:
            assert kind == "half split"
            return _half_split(tensor, change.num_heads)


def _half_split(tensor: Tensor, num_heads: int) -> Tensor:
    """Undoes the row order of Q and K in GGUF files for llama, and in Cohere's, head by head.

        theirs   0  F  1  F+1  2  F+2 …      the two of a rotated pair side by side
        ours     0  1  2 …   F  F+1  F+2 …   the pairs' first halves, then the second

    llama.cpp reorders in LlamaModel.permute of its convert_hf_to_gguf.py.
    """
    pairs = tensor.view(num_heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).flatten(0, 2)


def _ungrouped(tensor: Tensor, num_kv_heads: int, head_dim: int) -> Tensor:
    """Of qkv's rows: from group by group to all queries, all keys, all values.

    theirs   q q q k v   q q q k v        two groups of three heads
    ours     q q q q q q   k k   v v
    """
    groups = tensor.view(num_kv_heads, -1, head_dim, *tensor.shape[1:])
    parts = groups[:, :-2], groups[:, -2], groups[:, -1]
    return torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])

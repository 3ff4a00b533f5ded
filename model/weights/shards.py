"""What of each tensor a rank of a parallel model needs, and how that alone is read.

Numbers that lie in the file as they are used are mapped, and no more of them is read than the rank
needs. What is coded, transposed or in another order is read whole, one tensor after the other.

model.parallel says what is split how.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from model.config import ModelConfig
from model.parallel import Ranks
from model.weights.changes import changed
from model.weights.names import Place
from model.weights.stored import StoredTensor

SPLIT_BY_COLUMNS = ("output", "down")


def shard(tensor: StoredTensor, place: Place, config: ModelConfig, ranks: Ranks) -> StoredTensor:
    """Reads this rank's part, changed as its place says. config: of the whole model."""
    return replace(tensor, read=partial(_read, tensor, place, config, ranks))


def _read(tensor: StoredTensor, place: Place, config: ModelConfig, ranks: Ranks) -> Tensor:
    if tensor.view is not None and place.change is None:
        return _part(tensor.view(), place, config, ranks).to(torch.float32, copy=True)
    return _part(changed(tensor.read(), place.change), place, config, ranks).clone()


def _part(values: Tensor, place: Place, config: ModelConfig, ranks: Ranks) -> Tensor:
    *_, module, kind = place.parameter.split(".")
    if module in SPLIT_BY_COLUMNS:
        if kind == "bias":  # which is to be in the sum once
            return values if ranks.rank == 0 else torch.zeros_like(values)
        return values[:, ranks.part(values.shape[1])]
    rows = _rows(place.parameter, config, ranks)
    return torch.cat(_overlaps(values, place.first_row, rows)) if rows else values


def _overlaps(values: Tensor, first_row: int, rows: list[slice]) -> list[Tensor]:
    """Of values that are the rows of a parameter from first_row on: those that are wanted."""
    ends = [(part.start - first_row, part.stop - first_row) for part in rows]
    return [values[start:stop] for start, stop in ends if start < len(values) and stop > 0]


def _rows(parameter: str, config: ModelConfig, ranks: Ranks) -> list[slice]:
    """This rank's of a parameter of the whole model; none: it has all."""
    size = config.expert_size if ".experts." in parameter else config.intermediate_size
    match parameter.split(".")[-2]:
        case "embedding" | "head":
            return [ranks.part(config.vocab_size)]
        case "qkv":
            return _heads(config, ranks)
        case "gate_up":
            part = ranks.part(size)
            return [part, _moved(part, size)]
        case "up":
            return [ranks.part(size)]
        case _:
            return []


def _heads(config: ModelConfig, ranks: Ranks) -> list[slice]:
    """Of queries, keys and values: H, K and K heads below one another."""
    H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
    kv = ranks.kv_heads(K)
    heads = [ranks.part(H), _moved(kv, H), _moved(kv, H + K)]
    return [slice(part.start * D, part.stop * D) for part in heads]


def _moved(part: slice, offset: int) -> slice:
    return slice(part.start + offset, part.stop + offset)

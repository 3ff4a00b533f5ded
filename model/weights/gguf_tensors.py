"""The tensors of a GGUF file as float32, each decoded from a memory map of the file.

The header is ours (model.weights.gguf), the arithmetic of the block formats is the gguf package's.
Knows nothing of which tensor is which, but for stacks of experts, nor of the row order of Q and K
in files for llama.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from model.errors import ModelError
from model.weights.ggml_types import TensorInfo
from model.weights.gguf import read_header
from model.weights.stored import StoredTensor

CHUNK_LEN = 1 << 17
"""Values decoded at a time: few enough that what is computed on the way to them stays in a core's
cache and reuses its memory, many enough to outweigh the calls. 2.4 ns a value of Q4_1."""

MOST_EXPERTS = 10_000
"""Of a damaged file, a stack may be of more matrices than any list holds."""


def stored_tensors(path: Path) -> list[StoredTensor]:
    header = read_header(path)
    data = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    infos = chain.from_iterable(map(_unstacked, header.tensors.values()))
    return [_stored(data, header.data_offset, info, path) for info in infos]


def _unstacked(info: TensorInfo) -> Iterator[TensorInfo]:
    """A stack of all experts' matrices, expert by expert: X_exps.weight is X_exps.0.weight …"""
    stem = info.name.removesuffix(".weight")
    if not (stem.endswith("_exps") and len(info.shape) == 3 and info.shape[0] <= MOST_EXPERTS):
        yield info
        return
    num_experts, *shape = info.shape
    for expert in range(num_experts):
        offset = info.offset + expert * (info.num_bytes // num_experts)
        yield replace(info, name=f"{stem}.{expert}.weight", shape=tuple(shape), offset=offset)


def _stored(
    data: npt.NDArray[np.uint8], data_offset: int, info: TensorInfo, path: Path
) -> StoredTensor:
    start = data_offset + info.offset
    blocks = data[start : start + info.num_bytes].reshape(-1, info.type.block_bytes)
    read, read_raw = partial(_read, blocks, info, path), partial(_read_blocks, blocks, info)
    return StoredTensor(info.name, info.shape, read, info.type.name, read_raw, info.num_bytes)


def _read_blocks(blocks: npt.NDArray[np.uint8], info: TensorInfo) -> Tensor:
    return torch.from_numpy(blocks.copy()).view(*info.shape[:-1], -1, info.type.block_bytes)


def _read(blocks: npt.NDArray[np.uint8], info: TensorInfo, path: Path) -> Tensor:
    try:
        return torch.from_numpy(_decode(blocks, info))
    except NotImplementedError as error:
        raise ModelError(
            f"{path.name}, tensor {info.name!r}: values of type {info.type.name} can't be decoded: "
            "take a file of another quantization, such as Q8_0"
        ) from error


def _decode(blocks: npt.NDArray[np.uint8], info: TensorInfo) -> npt.NDArray[Any]:
    """Blocks don't know their rows, so a chunk of them passes for one long row."""
    values = np.empty((len(blocks), info.type.block_len), np.float32)
    kind = GGMLQuantizationType[info.type.name]
    step = CHUNK_LEN // info.type.block_len
    for first in range(0, len(blocks), step):
        chunk = blocks[first : first + step]
        values[first : first + step] = dequantize(chunk.reshape(1, -1), kind).reshape(
            len(chunk), -1
        )
    return values.reshape(info.shape)

"""The tensors of a GGUF file as float32, one at a time, from a memory map of the file.

The header is ours (model.weights.gguf), the arithmetic of the block formats is the gguf package's.
Knows nothing of which tensor is which, nor of the row order of Q and K in files for llama.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from model.errors import ModelError
from model.weights.ggml_types import TensorInfo
from model.weights.gguf import read_header


def iter_tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor by its name in the file; its memory is its own, the file is never held whole."""
    header = read_header(path)
    data = np.memmap(path, dtype=np.uint8, mode="r")
    for info in header.tensors.values():
        start = header.data_offset + info.offset
        values = _decode(data[start : start + info.num_bytes], info, file_name=path.name)
        # F32 is decoded as a view of the read-only map, which np.require then copies.
        owned = np.require(values.reshape(info.shape), requirements="W")
        yield info.name, torch.from_numpy(owned)


def _decode(raw: npt.NDArray[np.uint8], info: TensorInfo, *, file_name: str) -> npt.NDArray[Any]:
    num_rows = raw.size // info.row_bytes
    # dequantize works through 16 rows at a time. Blocks don't know their rows, so longer rows give
    # it enough to do per call: 4.8 instead of 18 ns a value for rows of 576 in Q8_0.
    rows = raw.reshape(num_rows // math.gcd(num_rows, 16), -1)
    try:
        return dequantize(rows, GGMLQuantizationType[info.type.name])
    except NotImplementedError as error:
        raise ModelError(
            f"{file_name}, tensor {info.name!r}: values of type {info.type.name} can't be decoded: "
            "take a file of another quantization, such as Q8_0"
        ) from error

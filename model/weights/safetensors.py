"""The tensors of a Hugging Face model folder: one safetensors file, or shards of it.

Reads nothing else: formats that unpickle run code, so a folder of them gets advice instead.
Knows nothing of what the tensors' names mean.
"""

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.errors import ModelError
from model.weights.stored import StoredTensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PLAIN_NAME = re.compile(r"[^/\\\0]+\.safetensors")
TYPE_BITS = {
    **{"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8},
    **{"I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8},
}
PLAIN_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
PICKLED = (".bin", ".pt", ".pth", ".ckpt")


class Index(msgspec.Struct):
    """The part of the index file that matters here: which shard holds which tensor."""

    weight_map: dict[str, str]


def stored_tensors(folder: Path) -> list[StoredTensor]:
    return [tensor for file in _files(folder) for tensor in _in_file(file)]


def _in_file(file: Path) -> Iterator[StoredTensor]:
    with _errors_explained(file):
        tensors: Any = safe_open(file, framework="pt")  # a memory map, kept open by each `read`
        for name in tensors.keys():  # noqa: SIM118, not a dict
            yield _stored(tensors, name, file)


def _stored(tensors: Any, name: str, file: Path) -> StoredTensor:
    part = tensors.get_slice(name)
    shape, type_ = tuple(part.get_shape()), part.get_dtype()
    read, read_raw = (partial(how, tensors, name, file) for how in (_read, _read_raw))
    num_bytes = math.prod(shape) * TYPE_BITS.get(type_, 0) // 8
    view = partial(_view, tensors, name, file)
    return StoredTensor(name, shape, read, type_, read_raw, num_bytes, view)


def _read(tensors: Any, name: str, file: Path) -> Tensor:
    return _view(tensors, name, file).to(torch.float32, copy=True)


def _view(tensors: Any, name: str, file: Path) -> Tensor:
    values = _read_raw(tensors, name, file)
    if values.dtype not in PLAIN_TYPES:
        raise ModelError(
            f"{file}, tensor {name!r}: numbers of type {values.dtype} need a scale, and "
            "config.json tells of none: download the folder again"
        )
    return values


def _read_raw(tensors: Any, name: str, file: Path) -> Tensor:
    with _errors_explained(file):
        return tensors.get_tensor(name)


@contextmanager
def _errors_explained(file: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file} can't be read: {error}. If it is truncated or damaged, download it again"
        ) from error


def _files(folder: Path) -> list[Path]:
    if (folder / SINGLE).exists():
        return [_inside(folder, SINGLE)]
    if (folder / INDEX).exists():
        return [_inside(folder, name) for name in _shard_names(folder / INDEX)]
    raise ModelError(_advice(folder))


def _shard_names(index: Path) -> list[str]:
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=Index).weight_map
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise ModelError(f"{index} isn't a usable index: {error}. Download it again") from error
    return sorted(set(weight_map.values()))


def _inside(folder: Path, name: str) -> Path:
    """The file of that name in the folder, which an index from elsewhere must not lead out of."""
    if not PLAIN_NAME.fullmatch(name):
        raise ModelError(
            f"{folder / INDEX} names the shard {name!r}, which isn't the plain name of a "
            ".safetensors file. Download it again, from a source that you trust"
        )
    target = Path(os.path.realpath(folder / name))
    if not any(target.is_relative_to(home) for home in _homes(Path(os.path.realpath(folder)))):
        raise ModelError(
            f"{folder / name} is a link out of its folder, to {target}. Put the file itself there"
        )
    return folder / name


def _homes(folder: Path) -> list[Path]:
    """Where a file may really lie. Hugging Face's cache fills snapshots/REVISION/ with links to
    blobs/ (https://huggingface.co/docs/huggingface_hub/guides/manage-cache)."""
    in_cache = folder.parent.name == "snapshots"
    return [folder, folder.parent.parent / "blobs"] if in_cache else [folder]


def _advice(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} isn't a folder: check the path"
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled:
        return (
            f"{folder} holds its weights as {pickled[0]}, a format that can run code when it is "
            "read. Convert it to safetensors, or take a version of the model that is"
        )
    return f"{folder} holds neither {SINGLE} nor {INDEX}: download the model's weights into it"

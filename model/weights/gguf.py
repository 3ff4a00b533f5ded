"""The header of a GGUF file: its metadata and the directory of its tensors.

Reads bytes through `struct` alone, since the API process needs the tokenizer in here without torch
or numpy, and within a tenth of a second. Trusts nothing in the file: each length, count, type and
offset is held against the file's size before it is used. Knows nothing of what the keys mean; the
tensors' values are the business of gguf_tensors.

    magic, version, counts | key, type, value … | name, shape, type, offset … | pad | tensor data …
    0                      24                                                       data_offset

Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from model.errors import ModelError
from model.weights.ggml_types import TENSOR_TYPES, TensorInfo

# Twice what the largest vocabularies need: 262,144 tokens, their scores and types, 515,000 merges.
# They bound what a damaged file can make us allocate, since an item costs up to 60 bytes in a list.
MAX_HEADER_BYTES = 32 << 20
MAX_ARRAY_ITEMS = 1 << 21

MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
U32, BOOL, U64 = SCALARS[4], SCALARS[7], SCALARS[10]
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufHeader:
    metadata: dict[str, Any]
    """Keys with ints, floats, bools, strings, or lists of one of them."""
    tensors: dict[str, TensorInfo]
    data_offset: int
    """Where the tensors' data begins, in bytes from the file's start."""


def read_header(path: Path) -> GgufHeader:
    """Raises ModelError if the file can't be read, or isn't a whole and sound GGUF file."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ModelError(f"{path.name} is empty: download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Parser(data, path.name).header()
    except OSError as error:
        raise ModelError(
            f"{path} can't be read: {error.strerror}. Check the path and its permissions"
        ) from error


class _Parser:
    """Reads onward from `at`; `place` says where in the file it is, for the message of an error."""

    def __init__(self, data: mmap.mmap, file_name: str) -> None:
        self.data = data
        self.file_name = file_name
        self.at = 0
        self.end = min(len(data), MAX_HEADER_BYTES)
        self.items_left = MAX_ARRAY_ITEMS
        self.place = "the first bytes"

    def header(self) -> GgufHeader:
        self._check_magic()
        num_tensors, num_keys = self._scalar(U64), self._scalar(U64)
        metadata = self._metadata(num_keys)
        tensors = self._tensors(num_tensors)
        alignment = self._alignment(metadata)
        data_offset = -(-self.at // alignment) * alignment
        self._check_extents(tensors.values(), data_offset, alignment)
        return GgufHeader(metadata, tensors, data_offset)

    def _check_magic(self) -> None:
        if self.data[:4] != b"GGUF":
            raise ModelError(
                f"{self.file_name} isn't a GGUF file: it begins with {self.data[:4]!r}, not with "
                "b'GGUF'. Give a .gguf file, or download it again"
            )
        self.at = 4
        version = self._scalar(U32)
        if version & 0xFFFF == 0:  # a small number whose bytes lie the other way round
            raise self._refusal("it is big-endian", "convert it to a little-endian file")
        if version not in (2, 3):
            remedy = "convert it to version 3"
            raise self._refusal(f"GGUF version {version} can't be read, only 2 and 3", remedy)

    def _metadata(self, num_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(num_keys):
            self.place = f"metadata key {index + 1} of {num_keys}"
            key = self._string()
            self.place = f"metadata key {key!r}"
            if key in metadata:
                raise self._damage("the key appears twice")
            metadata[key] = self._value(self._scalar(U32))
        return metadata

    def _value(self, type_id: int) -> Any:
        if type_id == STRING:
            return self._string()
        if type_id == ARRAY:
            return self._array(self._scalar(U32), self._scalar(U64))
        return self._scalars(self._scalar_type(type_id), 1)[0]

    def _array(self, type_id: int, count: int) -> list[Any]:
        if type_id == ARRAY:
            raise self._refusal("it holds an array of arrays", "convert the model again")
        if count > self.items_left:
            raise self._damage(f"{count} more array items are too many to be true")
        self.items_left -= count
        if type_id == STRING:
            return self._strings(count)
        return self._scalars(self._scalar_type(type_id), count)

    def _scalar_type(self, type_id: int) -> struct.Struct:
        if type_id not in SCALARS:
            raise self._damage(f"value type {type_id} is unknown")
        return SCALARS[type_id]

    def _scalar(self, scalar: struct.Struct) -> Any:
        return scalar.unpack_from(self.data, self._take(scalar.size))[0]

    def _scalars(self, scalar: struct.Struct, count: int) -> list[Any]:
        start = self._take(count * scalar.size)
        raw = self.data[start : self.at]
        if scalar is BOOL and raw.strip(b"\x00\x01"):
            raise self._damage("a truth value is neither 0 nor 1")
        return [value for (value,) in scalar.iter_unpack(raw)]

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        """One flat loop, since a vocabulary with its merges is some hundred thousand strings."""
        data, end, at, length_at = self.data, self.end, self.at, U64.unpack_from
        strings = []
        for _ in range(count):
            start = at + 8
            at = start + length_at(data, at)[0] if start <= end else end + 1
            if at > end:
                raise self._past_end(start - 8, 8 + max(at - start, 0))
            try:
                strings.append(data[start:at].decode())
            except UnicodeDecodeError as error:
                raise self._damage(f"a string isn't UTF-8 ({error.reason})") from error
        self.at = at
        return strings

    def _tensors(self, num_tensors: int) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for index in range(num_tensors):
            self.place = f"tensor {index + 1} of {num_tensors}"
            name = self._string()
            self.place = f"tensor {name!r}"
            if name in tensors:
                raise self._damage("the tensor appears twice")
            tensors[name] = self._tensor(name)
        return tensors

    def _tensor(self, name: str) -> TensorInfo:
        num_dimensions = self._scalar(U32)
        if num_dimensions > MAX_DIMENSIONS:
            raise self._damage(f"{num_dimensions} dimensions are more than {MAX_DIMENSIONS}")
        shape = tuple(reversed(self._scalars(U64, num_dimensions)))
        type_id, offset = self._scalar(U32), self._scalar(U64)
        if type_id not in TENSOR_TYPES:
            remedy = "convert the model to a type such as Q8_0, or update octavo"
            raise self._refusal(f"its type {type_id} is unknown", remedy)
        tensor_type = TENSOR_TYPES[type_id]
        if 0 in shape or math.prod(shape[-1:]) % tensor_type.block_len:
            raise self._damage(
                f"a shape of {shape} isn't made of whole blocks of {tensor_type.block_len} values"
            )
        return TensorInfo(name, shape, tensor_type, offset)

    def _alignment(self, metadata: dict[str, Any]) -> int:
        self.place = "metadata key 'general.alignment'"
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not (isinstance(alignment, int) and 8 <= alignment <= 1 << 20):
            raise self._damage(f"an alignment of {alignment!r} makes no sense")
        if alignment & (alignment - 1):
            raise self._damage(f"an alignment of {alignment} isn't a power of two")
        return alignment

    def _check_extents(
        self, tensors: Iterable[TensorInfo], data_offset: int, alignment: int
    ) -> None:
        in_order = sorted(tensors, key=lambda tensor: tensor.offset)
        for tensor in in_order:
            self.place = f"tensor {tensor.name!r}"
            if tensor.offset % alignment:
                raise self._damage(f"its offset {tensor.offset} isn't a multiple of {alignment}")
            stop = data_offset + tensor.offset + tensor.num_bytes
            if stop > len(self.data):
                raise self._damage(f"its data ends at byte {stop} of {len(self.data)}")
        for tensor, following in pairwise(in_order):
            if tensor.offset + tensor.num_bytes > following.offset:
                raise self._damage(f"its data overlaps that of tensor {tensor.name!r}")

    def _take(self, num_bytes: int) -> int:
        start = self.at
        if start + num_bytes > self.end:
            raise self._past_end(start, num_bytes)
        self.at = start + num_bytes
        return start

    def _past_end(self, start: int, num_bytes: int) -> ModelError:
        limit = "the file's end" if self.end == len(self.data) else "the most a header may take"
        return self._damage(f"{num_bytes} bytes at byte {start} run past {limit}, {self.end}")

    def _damage(self, fault: str) -> ModelError:
        return self._refusal(fault, "the file is truncated or damaged, download it again")

    def _refusal(self, fault: str, remedy: str) -> ModelError:
        return ModelError(f"{self.file_name}, {self.place}: {fault}: {remedy}")

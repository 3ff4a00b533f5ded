"""GGUF files: what the reader makes of sound ones, and that unsound ones end in a ModelError."""

import os
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, given, settings, strategies as st

from model.errors import ModelError
from model.weights.ggml_types import TENSOR_TYPES
from model.weights.gguf import GgufHeader, read_header
from model.weights.gguf_tensors import stored_tensors

VALUES: dict[str, tuple[Any, GGUFValueType]] = {
    "test.u8": (200, GGUFValueType.UINT8),
    "test.i8": (-100, GGUFValueType.INT8),
    "test.u16": (60_000, GGUFValueType.UINT16),
    "test.i16": (-30_000, GGUFValueType.INT16),
    "test.u32": (1 << 31, GGUFValueType.UINT32),
    "test.i32": (-(1 << 31), GGUFValueType.INT32),
    "test.u64": ((1 << 64) - 1, GGUFValueType.UINT64),
    "test.i64": (-(1 << 63), GGUFValueType.INT64),
    "test.f32": (0.5, GGUFValueType.FLOAT32),
    "test.f64": (0.1, GGUFValueType.FLOAT64),
    "test.true": (True, GGUFValueType.BOOL),
    "test.false": (False, GGUFValueType.BOOL),
    "test.string": ("naïve 🦙 文", GGUFValueType.STRING),
    "test.empty": ("", GGUFValueType.STRING),
}
ARRAYS: dict[str, list[Any]] = {
    "test.ints": [1, -2, 3],
    "test.floats": [0.5, -0.25],
    "test.bools": [True, False, True],
    "test.strings": ["Ġthe", "", "🦙"],
}


def write_sample(path: Path, *, alignment: int | None = None) -> dict[str, np.ndarray[Any, Any]]:
    writer = GGUFWriter(path, "llama")
    for key, (value, kind) in VALUES.items():
        writer.add_key_value(key, value, kind)
    for key, values in ARRAYS.items():
        writer.add_array(key, values)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "token_embd.weight": rng.standard_normal((3, 64), dtype=np.float32),
        "norm.weight": rng.standard_normal(5, dtype=np.float32),
        "cube": rng.standard_normal((2, 3, 4), dtype=np.float32),
        "half": rng.standard_normal((2, 3)).astype(np.float16),
    }
    for name, tensor_values in tensors.items():
        writer.add_tensor(name, tensor_values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "sample.gguf"
    write_sample(path)
    return path


def read_all(path: Path) -> dict[str, torch.Tensor]:
    return {tensor.name: tensor.read() for tensor in stored_tensors(path)}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key_value(key: str, type_id: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", type_id) + value


def tensor(name: str, *, shape: tuple[int, ...] = (8,), type_id: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return string(name) + sizes + struct.pack("<IQ", type_id, offset)


def gguf_bytes(
    *parts: bytes, keys: int = 0, tensors: int = 0, data_bytes: int = 64, version: int = 3
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)
    return head + bytes(-len(head) % 32) + bytes(data_bytes)


def read_bytes(folder: Path, raw: bytes) -> GgufHeader:
    path = folder / "model.gguf"
    path.write_bytes(raw)
    return read_header(path)


def assert_same_header(path: Path) -> None:
    ours, theirs = read_header(path), GGUFReader(path)
    fields = {k: v for k, v in theirs.fields.items() if not k.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for key, field in fields.items():
        assert ours.metadata[key] == field.contents(), key
    assert ours.data_offset == theirs.data_offset
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for t in theirs.tensors:
        info = ours.tensors[t.name]
        assert info.shape == tuple(reversed(t.shape.tolist()))
        assert info.type.name == t.tensor_type.name
        assert ours.data_offset + info.offset == t.data_offset
        assert info.num_bytes == t.n_bytes


def test_values_have_their_python_types(sample: Path) -> None:
    metadata = read_header(sample).metadata
    for key, (value, _) in VALUES.items():
        assert metadata[key] == value
        assert type(metadata[key]) is type(value)
    for key, values in ARRAYS.items():
        assert metadata[key] == values
        assert [type(v) for v in metadata[key]] == [type(v) for v in values]


def test_header_equals_the_reference_reader(sample: Path) -> None:
    assert_same_header(sample)


def test_header_honours_the_alignment(tmp_path: Path) -> None:
    write_sample(tmp_path / "aligned.gguf", alignment=256)
    assert read_header(tmp_path / "aligned.gguf").data_offset % 256 == 0
    assert_same_header(tmp_path / "aligned.gguf")


@pytest.mark.slow
def test_default_model_equals_the_reference_reader(smollm2_path: Path) -> None:
    assert_same_header(smollm2_path)


def test_the_header_is_read_without_torch_and_numpy() -> None:
    check = (
        "import sys, model.weights.gguf; "
        "sys.exit(sorted({'torch', 'numpy', 'gguf'} & sys.modules.keys()) or 0)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_version_2_is_read(tmp_path: Path) -> None:
    raw = gguf_bytes(key_value("a", 4, struct.pack("<I", 7)), keys=1, version=2)
    assert read_bytes(tmp_path, raw).metadata == {"a": 7}


def test_a_file_without_tensors_may_end_unpadded(tmp_path: Path) -> None:
    raw = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key_value("a", 8, string("b"))
    assert read_bytes(tmp_path, raw) == GgufHeader({"a": "b"}, {}, 64)


def test_a_scalar_tensor_has_the_empty_shape(tmp_path: Path) -> None:
    info = read_bytes(tmp_path, gguf_bytes(tensor("s", shape=()), tensors=1)).tensors["s"]
    assert (info.shape, info.num_bytes) == ((), 4)


U32_MAX = struct.pack("<I", 0xFFFFFFFF)
HUGE = struct.pack("<Q", 1 << 60)
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "other magic": (b"PK\x03\x04" + bytes(100), "isn't a GGUF file"),
    "magic alone": (b"GGUF", "run past the file's end"),
    "version 1": (gguf_bytes(version=1), "version 1 can't be read"),
    "version 4": (gguf_bytes(version=4), "version 4 can't be read"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "more keys than bytes": (gguf_bytes(keys=1 << 60), "metadata key"),
    "more tensors than bytes": (gguf_bytes(tensors=1 << 60), "tensor"),
    "endless key": (gguf_bytes(HUGE, keys=1), f"{(1 << 60) + 8} bytes at byte 24"),
    "length cut off": (gguf_bytes(keys=1)[:24] + bytes(3), "8 bytes at byte 24 run past"),
    "endless string": (gguf_bytes(key_value("a", 8, HUGE), keys=1), "'a'"),
    "string length wraps": (gguf_bytes(key_value("a", 8, b"\xff" * 8), keys=1), "'a'"),
    "string is not UTF-8": (gguf_bytes(key_value("a", 8, string(b"\xff")), keys=1), "UTF-8"),
    "key is not UTF-8": (gguf_bytes(string(b"\xff") + bytes(5), keys=1), "UTF-8"),
    "value type unknown": (gguf_bytes(key_value("a", 13, bytes(8)), keys=1), "type 13"),
    "value type huge": (gguf_bytes(key_value("a", 0, b"")[:-4] + U32_MAX, keys=1), "type 4294"),
    "bool of 2": (gguf_bytes(key_value("a", 7, b"\x02"), keys=1), "neither 0 nor 1"),
    "endless array": (
        gguf_bytes(key_value("a", 9, struct.pack("<I", 6) + HUGE), keys=1),
        "too many",
    ),
    "array beyond the file": (
        gguf_bytes(key_value("a", 9, struct.pack("<IQ", 12, 100)), keys=1),
        "800 bytes at byte 49 run past",
    ),
    "array of arrays": (
        gguf_bytes(key_value("a", 9, struct.pack("<IQ", 9, 1)), keys=1),
        "array of arrays",
    ),
    "array of unknown": (
        gguf_bytes(key_value("a", 9, struct.pack("<IQ", 77, 1)), keys=1),
        "type 77",
    ),
    "key twice": (gguf_bytes(key_value("a", 0, b"1"), key_value("a", 0, b"1"), keys=2), "twice"),
    "tensor twice": (gguf_bytes(tensor("t"), tensor("t", offset=32), tensors=2), "twice"),
    "tensor beyond the file": (gguf_bytes(tensor("t", shape=(17,)), tensors=1), "ends at byte"),
    "tensor far beyond": (gguf_bytes(tensor("t", offset=1 << 60), tensors=1), "ends at byte"),
    "tensor huge": (gguf_bytes(tensor("t", shape=(1 << 63, 1 << 63)), tensors=1), "ends at byte"),
    "tensor of nothing": (gguf_bytes(tensor("t", shape=(0,)), tensors=1), "whole blocks"),
    "tensors overlap": (gguf_bytes(tensor("t"), tensor("u"), tensors=2), "overlaps"),
    "tensor unaligned": (gguf_bytes(tensor("t", offset=4), tensors=1), "multiple of 32"),
    "half a block": (gguf_bytes(tensor("t", shape=(2, 48), type_id=8), tensors=1), "whole blocks"),
    "scalar of blocks": (gguf_bytes(tensor("t", shape=(), type_id=8), tensors=1), "whole blocks"),
    "tensor type unknown": (gguf_bytes(tensor("t", type_id=4), tensors=1), "type 4 is unknown"),
    "five dimensions": (gguf_bytes(tensor("t", shape=(1,) * 5), tensors=1), "5 dimensions"),
    "endless dimensions": (gguf_bytes(string("t") + U32_MAX, tensors=1), "dimensions"),
    "alignment of 0": (
        gguf_bytes(key_value("general.alignment", 4, bytes(4)), keys=1),
        "alignment of 0",
    ),
    "alignment of 24": (
        gguf_bytes(key_value("general.alignment", 4, struct.pack("<I", 24)), keys=1),
        "power of two",
    ),
    "alignment of text": (
        gguf_bytes(key_value("general.alignment", 8, string("x")), keys=1),
        "alignment of 'x'",
    ),
}


@pytest.mark.parametrize(("raw", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_refused_by_name_and_reason(
    tmp_path: Path, raw: bytes, message: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        read_bytes(tmp_path, raw)
    assert "model.gguf" in str(refusal.value)
    assert message in str(refusal.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError, match="can't be read"):
            read_header(path)


@pytest.mark.parametrize("type_id", [0, 8, 12])
def test_a_huge_array_that_the_file_does_hold_costs_no_memory(tmp_path: Path, type_id: int) -> None:
    count = 50_000_000
    path = tmp_path / "huge.gguf"
    path.write_bytes(gguf_bytes(key_value("a", 9, struct.pack("<IQ", type_id, count)), keys=1))
    os.truncate(path, 1 << 30)  # sparse: zeros, so strings of no bytes
    tracemalloc.start()
    with pytest.raises(ModelError, match="too many"):
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def check_header_or_refusal(path: Path) -> None:
    """Any exception but a ModelError fails the test, and so does a tensor outside the file."""
    try:
        header = read_header(path)
    except ModelError:
        return
    ends = [header.data_offset + t.offset + t.num_bytes for t in header.tensors.values()]
    assert max(ends, default=0) <= path.stat().st_size


def test_every_truncation_is_refused(sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(sample.read_bytes())
    header = read_header(sample)
    last = max(t.offset + t.num_bytes for t in header.tensors.values())
    for length in reversed(range(header.data_offset + last)):
        os.truncate(path, length)
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_header(path)


# The folder that hypothesis reuses between examples holds one file, rewritten by each of them.
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(4, 2000), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_end_in_a_header_or_a_refusal(
    sample: Path, tmp_path: Path, edits: list[tuple[int, int]]
) -> None:
    raw = bytearray(sample.read_bytes())
    for at, value in edits:
        raw[at % len(raw)] = value
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw)
    check_header_or_refusal(path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tail=st.binary(max_size=300), keys=st.integers(0, 3), tensors=st.integers(0, 3))
def test_noise_ends_in_a_header_or_a_refusal(
    tmp_path: Path, tail: bytes, keys: int, tensors: int
) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(gguf_bytes(tail, keys=keys, tensors=tensors))
    check_header_or_refusal(path)


def test_our_type_sizes_are_the_reference_ones() -> None:
    theirs = {int(t): (t.name, *sizes) for t, sizes in GGML_QUANT_SIZES.items()}
    ours = {i: (t.name, t.block_len, t.block_bytes) for i, t in TENSOR_TYPES.items()}
    assert ours == theirs


def test_plain_tensors_come_as_float32_rows_first(tmp_path: Path) -> None:
    path = tmp_path / "sample.gguf"
    written = write_sample(path)
    read = read_all(path)
    assert list(read) == list(written)
    assert [t.shape for t in stored_tensors(path)] == [v.shape for v in written.values()]
    for name, values in written.items():
        assert read[name].dtype == torch.float32
        assert read[name].shape == values.shape
        np.testing.assert_array_equal(read[name].numpy(), values.astype(np.float32))


def test_tensors_outlive_the_file_and_are_theirs_to_change(tmp_path: Path) -> None:
    path = tmp_path / "sample.gguf"
    written = write_sample(path)
    before = path.read_bytes()
    read = read_all(path)
    read["norm.weight"].zero_()
    assert path.read_bytes() == before
    path.unlink()
    assert read["cube"].sum().item() == pytest.approx(written["cube"].sum().item(), rel=1e-5)


def encode(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return quantize(values, GGMLQuantizationType[name])


def random_blocks(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Blocks of a type that the gguf package can't encode; small bytes keep the scales finite."""
    block_len, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    size = (values.shape[0], values.shape[1] // block_len * block_bytes)
    return np.random.default_rng(1).integers(0, 60, size, dtype=np.uint8)


ENCODERS: dict[str, Callable[[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    **dict.fromkeys(("BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0"), encode),
    **dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"), random_blocks),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), random_blocks),
    **dict.fromkeys(("IQ1_S", "IQ1_M", "MXFP4", "NVFP4"), random_blocks),
}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("rows", [3, 48])
def test_quantized_tensors_equal_the_reference_decoding(
    tmp_path: Path, name: str, rows: int
) -> None:
    values = np.random.default_rng(0).standard_normal((rows, 512), dtype=np.float32)
    kind = GGMLQuantizationType[name]
    raw = ENCODERS[name](name, values)
    writer = GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("w", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    [read] = read_all(tmp_path / "q.gguf").values()
    assert read.shape == (rows, 512)
    np.testing.assert_array_equal(read.numpy(), dequantize(raw, kind))


def test_a_stack_of_experts_comes_apart(tmp_path: Path) -> None:
    path = tmp_path / "experts.gguf"
    values = np.random.default_rng(0).standard_normal((3, 4, 64), dtype=np.float32)
    raw = quantize(values, GGMLQuantizationType.Q8_0)
    writer = GGUFWriter(path, "llama")
    for name in ("blk.0.ffn_up_exps.weight", "cube"):
        writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    *experts, cube = stored_tensors(path)
    assert [tensor.name for tensor in experts] == [
        f"blk.0.ffn_up_exps.{expert}.weight" for expert in range(3)
    ]
    assert torch.equal(torch.stack([tensor.read() for tensor in experts]), cube.read())


def test_a_stack_of_absurdly_many_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    many = tensor("blk.0.ffn_up_exps.weight", shape=(10_001, 1, 1))
    path.write_bytes(gguf_bytes(many, tensors=1, data_bytes=40_004))
    assert [tensor.name for tensor in stored_tensors(path)] == ["blk.0.ffn_up_exps.weight"]


def test_values_that_cannot_be_decoded_are_refused_by_name_and_type(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(tensor("blk.0.w", shape=(16,), type_id=26), tensors=1))
    assert read_header(path).tensors["blk.0.w"].type.name == "I32"
    with pytest.raises(ModelError, match=r"model\.gguf, tensor 'blk\.0\.w': .* I32 can't"):
        read_all(path)

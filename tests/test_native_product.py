"""The native products against float64 arithmetic on what the codes and scales say, in all builds.

The quantization is written out here once more, in numpy, so that no rounding of inputs or weights
is left between the two: what differs is the order of sums in float32.
"""

from ctypes import CDLL, POINTER, Structure, byref, c_int, c_void_p

import numpy as np
import pytest
from numpy.typing import NDArray

from model.native.library import (
    BLOCK,
    INPUT_GROUP,
    NEEDED_FLAGS,
    TILED,
    WEIGHT_GROUP,
    Matrix,
    builds,
    declare,
    load,
)

STORE, ADD, SWIGLU = range(3)
Floats = NDArray[np.float32]


class Quantized(Structure):
    _fields_ = (
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("sums", c_void_p),
    )


any_build = pytest.mark.parametrize("build", builds())
build_of_4_bits = pytest.mark.parametrize("build", [name for name in builds() if name not in TILED])


def declared(build: str) -> CDLL:
    library = load(build)
    declare(library, "team_create", [c_int], c_void_p)
    declare(library, "team_destroy", [c_void_p])
    floats = [c_void_p, c_int, c_int, POINTER(Quantized), c_int]
    declare(library, "quantize_row", floats)
    takes = [c_void_p, c_void_p, c_int, c_int, POINTER(Matrix), c_int, c_int]
    declare(library, "pack_rows", takes)
    takes = [c_void_p, c_void_p, c_int, c_int, c_int, POINTER(Matrix), c_int, c_int]
    declare(library, "pack_blocks", takes)
    takes = [c_void_p, POINTER(Matrix), POINTER(Quantized), c_int, c_int, c_void_p, c_int]
    declare(library, "product", takes)
    return library


class Bench:
    """A matrix and what is needed to multiply by it."""

    def __init__(self, build: str, num_outputs: int, num_inputs: int, *, bits: int) -> None:
        self.library = declared(build)
        self.num_values = num_inputs
        self.width = -(-num_inputs // WEIGHT_GROUP) * WEIGHT_GROUP
        self.codes_each = 2 if build in TILED else 1
        num_blocks = -(-num_outputs // BLOCK) + 1
        self.codes = np.full(num_blocks * BLOCK * self.width, 255, np.uint8)
        self.scales = np.full(len(self.codes) // WEIGHT_GROUP * 4, 0x3F80, np.uint16)
        addresses = self.codes.ctypes.data, self.scales.ctypes.data
        self.matrix = Matrix(self.width, num_outputs, bits, *addresses)
        self.num_outputs = num_outputs

    def pack(self, weights_NK: Floats, *, first: int = 0, step: int = 1) -> None:
        weights_NK = np.ascontiguousarray(weights_NK, np.float32)
        shape = weights_NK.shape
        team = self.library.team_create(1)
        self.library.pack_rows(
            team, weights_NK.ctypes.data, *shape, byref(self.matrix), first, step
        )
        self.library.team_destroy(team)

    def pack_blocks(self, blocks: NDArray[np.uint8]) -> None:
        team = self.library.team_create(1)
        self.library.pack_blocks(team, blocks.ctypes.data, *blocks.shape, byref(self.matrix), 0, 1)
        self.library.team_destroy(team)

    def multiply(
        self, x_TK: Floats, *, ending: int = STORE, out: Floats | None = None, threads: int = 1
    ) -> Floats:
        num_rows, stride = len(x_TK), self.num_outputs // (2 if ending == SWIGLU else 1)
        out = np.full((num_rows, stride), np.nan, np.float32) if out is None else out.copy()
        codes = np.zeros((num_rows, self.width * self.codes_each), np.int8)
        scales, offsets = (
            np.zeros((num_rows, self.width // INPUT_GROUP), kind) for kind in (np.float32, np.int32)
        )
        sums = np.zeros(scales.shape, np.float32)  # or bfloat16, which take half of that
        parts = Quantized(*(part.ctypes.data for part in (codes, scales, offsets, sums)))
        for row, x_K in enumerate(np.ascontiguousarray(x_TK)):
            self.library.quantize_row(
                x_K.ctypes.data, self.num_values, row, byref(parts), self.width
            )
        team = self.library.team_create(threads)
        self.library.product(
            team, byref(self.matrix), byref(parts), num_rows, ending, out.ctypes.data, stride
        )
        self.library.team_destroy(team)
        return out


def as_bf16(x: NDArray[np.float64]) -> NDArray[np.float64]:
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


def groups(x: Floats, size: int) -> NDArray[np.float64]:
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % size))).astype(np.float64)
    return padded.reshape(len(x), -1, size)


def coded_together(x_TK: Floats, size: int, build: str) -> NDArray[np.float64]:
    """In groups of a scale each."""
    return groups(x_TK, x_TK.shape[1] if build in TILED else size)


def quantized_inputs(x_TK: Floats, build: str) -> NDArray[np.float64]:
    """Their values after quantization, in groups."""
    grouped = coded_together(x_TK, INPUT_GROUP, build)
    largest = np.float32(127 * 256 if build in TILED else 127)
    most = np.abs(grouped).max(-1, keepdims=True).astype(np.float32)
    safe = np.where(most > 0, most, np.float32(1))
    return np.rint(grouped * (largest / safe)) * (safe / largest)


def random(*shape: int, seed: int = 0) -> Floats:
    """With a wide range, and a group of zeros."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape) * np.exp(generator.standard_normal(shape))
    x[0, :INPUT_GROUP] = 0
    return x.astype(np.float32)


def random_inputs(num_rows: int, num_inputs: int) -> Floats:
    """None so near the middle of two codes, by groups, that a fused multiplication would round it
    elsewhere."""
    x_TK = random(num_rows, num_inputs, seed=1)
    steps = np.abs(groups(x_TK, INPUT_GROUP)).max(-1).repeat(INPUT_GROUP, -1) / 127
    codes = np.divide(x_TK, steps[:, :num_inputs], out=np.zeros(x_TK.shape), where=x_TK != 0)
    return np.where(np.abs(np.abs(codes) % 1 - 0.5) < 1e-3, 0, x_TK).astype(np.float32)


def check(actual: Floats, expected: NDArray[np.float64], *, relative: float = 2e-6) -> None:
    assert np.abs(actual - expected).max() < relative * np.abs(expected).max() + 1e-30


SHAPES = [(16, 64), (5, 24), (33, 96), (96, 576), (7, 1536)]


@any_build
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_of_8_bits_are_off_by_half_a_step_at_most(
    build: str, shape: tuple[int, int]
) -> None:
    """Seen through inputs that are quantized without an error: one 1 in each row."""
    weights_NK = random(*shape)
    bench = Bench(build, *shape, bits=8)
    bench.pack(weights_NK)
    found_NK = bench.multiply(np.eye(shape[1], dtype=np.float32)).T
    grouped = coded_together(weights_NK, WEIGHT_GROUP, build)
    most = np.abs(grouped).max(-1).repeat(grouped.shape[-1], -1)
    steps = most[:, : shape[1]] / 127 * (1 + 2**-7)
    assert (np.abs(found_NK - weights_NK) <= steps / 2 + 1e-6 * np.abs(weights_NK)).all()


@any_build
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 70, 130])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_with_8_bits(build: str, shape: tuple[int, int], num_rows: int) -> None:
    bench = Bench(build, *shape, bits=8)
    bench.pack(random(*shape))
    weights_NK = bench.multiply(np.eye(shape[1], dtype=np.float32)).T.astype(np.float64)
    x_TK = random_inputs(num_rows, shape[1])
    inputs_TK = quantized_inputs(x_TK, build).reshape(num_rows, -1)[:, : shape[1]]
    check(bench.multiply(x_TK), inputs_TK @ weights_NK.T, relative=1e-5)


def random_blocks(num_rows: int, num_groups: int, *, has_least: bool) -> NDArray[np.uint8]:
    generator = np.random.default_rng(2)
    codes = generator.integers(0, 256, (num_rows, num_groups, 16), np.uint8)
    halves = generator.standard_normal((num_rows, num_groups, 1 + has_least)).astype(np.float16)
    halves[0, 0] = 6e-8  # subnormal
    return np.concatenate((halves.view(np.uint8), codes), axis=-1)


def parts_of(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each block's codes times its scale, and its least value; after the format's description."""
    codes = blocks[..., -16:]
    low_first = np.concatenate((codes & 15, codes >> 4), axis=-1).astype(np.float64)
    halves = np.ascontiguousarray(blocks[..., :-16]).view(np.float16).astype(np.float64)
    scale = halves[..., :1]
    least = halves[..., 1:] if halves.shape[-1] == 2 else -8 * scale
    return low_first * scale, least


@pytest.mark.parametrize("build", [name for name in builds() if name in TILED])
@pytest.mark.parametrize("has_least", [True, False], ids=["Q4_1", "Q4_0"])
def test_blocks_of_4_bits_are_packed_as_their_values_are(build: str, has_least: bool) -> None:
    blocks = random_blocks(33, 3, has_least=has_least)
    ours, theirs = (Bench(build, 33, 3 * INPUT_GROUP, bits=8) for _ in range(2))
    ours.pack_blocks(blocks)
    scaled, least = parts_of(blocks)
    theirs.pack((scaled + least).reshape(33, -1).astype(np.float32))
    assert np.array_equal(ours.codes, theirs.codes)
    assert np.array_equal(ours.scales, theirs.scales)


@build_of_4_bits
@pytest.mark.parametrize("has_least", [True, False], ids=["Q4_1", "Q4_0"])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 70, 130])
@pytest.mark.parametrize("shape", [(16, 2), (5, 1), (33, 3), (96, 18), (7, 48)])
def test_products_with_4_bits(
    build: str, shape: tuple[int, int], num_rows: int, has_least: bool
) -> None:
    blocks = random_blocks(*shape, has_least=has_least)
    bench = Bench(build, shape[0], shape[1] * INPUT_GROUP, bits=4)
    bench.pack_blocks(blocks)
    x_TK = random_inputs(num_rows, shape[1] * INPUT_GROUP)
    inputs_TGI = quantized_inputs(x_TK, build)
    scaled_NGI, least_NG1 = parts_of(blocks)
    expected = np.einsum("tgi,ngi->tn", inputs_TGI, scaled_NGI)
    sums_TG = inputs_TGI.sum(-1)
    factors_TG = as_bf16(sums_TG) if "avx512_bf16" in NEEDED_FLAGS[build] else sums_TG
    expected += factors_TG @ as_bf16(least_NG1[..., 0]).T
    check(bench.multiply(x_TK), expected, relative=1e-5)


@pytest.mark.parametrize(
    ("build", "bits"),
    [(build, 8) for build in builds()] + [(build, 4) for build in builds() if build not in TILED],
)
@pytest.mark.parametrize("num_inputs", [576, 1536])
def test_a_row_has_the_same_bits_in_any_batch_and_with_any_threads(
    build: str, bits: int, num_inputs: int
) -> None:
    """Of few inputs, which many rows have all at once, and of more."""
    bench = Bench(build, 200, num_inputs, bits=bits)
    bench.pack(random(200, num_inputs)) if bits == 8 else bench.pack_blocks(
        random_blocks(200, num_inputs // INPUT_GROUP, has_least=True)
    )
    x_TK = random(140, num_inputs, seed=3)
    whole = bench.multiply(x_TK)
    for first, stop in [(0, 0), (0, 1), (7, 8), (3, 20), (0, 31), (33, 64), (120, 140)]:
        part = bench.multiply(x_TK[first:stop], threads=1 + first % 3)
        assert np.array_equal(part, whole[first:stop])


@any_build
def test_of_a_large_matrix_too(build: str) -> None:
    """Whose columns threads share out, where they share the rows of a small one."""
    bench = Bench(build, 4096, 576, bits=8)
    bench.pack(random(4096, 576))
    x_TK = random(40, 576, seed=3)
    whole = bench.multiply(x_TK, threads=2)
    for first, stop in [(0, 1), (3, 20), (8, 40)]:
        assert np.array_equal(bench.multiply(x_TK[first:stop]), whole[first:stop])


@any_build
def test_what_is_there_may_be_added_to(build: str) -> None:
    bench = Bench(build, 20, 64, bits=8)
    bench.pack(random(20, 64))
    x_TK, before = random(3, 64, seed=1), random(3, 20, seed=2)
    expected = before.astype(np.float64) + bench.multiply(x_TK)
    check(bench.multiply(x_TK, ending=ADD, out=before), expected)


@any_build
@pytest.mark.parametrize("size", [0.2, 300])
@pytest.mark.parametrize("half", [16, 40, 97])
def test_one_half_gates_the_other(build: str, half: int, size: float) -> None:
    gate_NK, up_NK = random(half, 64), random(half, 64, seed=4)
    plain = Bench(build, 2 * half, 64, bits=8)
    plain.pack(np.concatenate((gate_NK, up_NK)))
    paired = Bench(build, 2 * (half + BLOCK), 64, bits=8)
    paired.matrix.num_outputs = paired.num_outputs = 2 * half
    paired.pack(gate_NK, first=0, step=2)
    paired.pack(up_NK, first=1, step=2)
    x_TK = random(9, 64, seed=5) * np.float32(size)
    gate, up = np.split(plain.multiply(x_TK).astype(np.float64), 2, axis=1)
    check(
        paired.multiply(x_TK, ending=SWIGLU),
        gate / (1 + np.exp(-gate.clip(-500))) * up,
        relative=1e-5,
    )

"""model.few_bits's products: weights become numbers of the model's own type in registers, and
matrix units multiply them, with sums in float32.

Tiles have one size, whatever the number of tokens, and go through all inputs from the first to the
last. So a token's sums have one order, and the same bits in any batch. It is no size for long
prompts: their products may take longer than those of plain weights.

Of fp8 only the rounding is done here: the product is that of the library that PyTorch takes, and
its order is its own affair.

Shapes: T packed tokens, O outputs, I inputs, J inputs filled up, B = J/2 bytes,
G groups, M inputs of a group. Within a kernel, of a tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.few_bits import GROUP, Float8Matrix, Int4Matrix, Int8Matrix, scaled_product
from model.float8 import FLOAT8, LEAST_AMPLITUDE, MOST
from model.triton.numbers import to_float8

BLOCK_T = 32
BLOCK_I = 128
ENCODED_AT_ONCE = 4096
FEW_OUTPUTS = 8192
"""Fewer make smaller tiles, lest most of a GPU's processors have none."""

_MOST, _LEAST_AMPLITUDE = tl.constexpr(MOST), tl.constexpr(LEAST_AMPLITUDE)
_GROUP = tl.constexpr(GROUP)
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


def by_int8(x_TI: Tensor, matrix: Int8Matrix, bias_O: Tensor | None) -> Tensor:
    num_outputs, row_len = matrix.codes_OJ.shape
    y_TO, grid, shape, how = _prepared(x_TI, num_outputs)
    multiply_int8[grid](
        x_TI, matrix.codes_OJ, matrix.scales_O, bias_O, y_TO, x_TI.stride(0), *shape, row_len,
        BIASED=bias_O is not None, BLOCK_I=BLOCK_I, **how,
    )  # fmt: skip
    return y_TO


def by_int4(x_TI: Tensor, matrix: Int4Matrix, bias_O: Tensor | None) -> Tensor:
    num_outputs, row_len = matrix.codes_OB.shape
    y_TO, grid, shape, how = _prepared(x_TI, num_outputs)
    multiply_int4[grid](
        x_TI, matrix.codes_OB, matrix.scales_GO, matrix.zeros_GO, bias_O, y_TO, x_TI.stride(0),
        *shape, row_len, BIASED=bias_O is not None, **how,
    )  # fmt: skip
    return y_TO


def by_float8(x_TI: Tensor, matrix: Float8Matrix, bias_O: Tensor | None) -> Tensor:
    return scaled_product(*encoded(x_TI), matrix, bias_O, dtype=x_TI.dtype)


def encoded(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """model.float8's function."""
    num_tokens, num_inputs = x_TI.shape
    codes_TI = torch.empty(num_tokens, num_inputs, dtype=torch.uint8, device=x_TI.device)
    scales_T = torch.empty(num_tokens, device=x_TI.device)
    block = min(ENCODED_AT_ONCE, triton.next_power_of_2(num_inputs))
    encode_rows[num_tokens,](
        x_TI, codes_TI, scales_T, x_TI.stride(0), num_inputs, BLOCK=block,
        num_warps=max(block // 512, 1),
    )  # fmt: skip
    return codes_TI.view(FLOAT8), scales_T


def _prepared(
    x_TI: Tensor, num_outputs: int
) -> tuple[Tensor, tuple[int, int], tuple[int, int, int], dict[str, int]]:
    """Where the product goes; the grid; the sizes of the whole; and how a kernel is launched."""
    num_tokens, num_inputs = x_TI.shape
    y_TO = torch.empty(num_tokens, num_outputs, dtype=x_TI.dtype, device=x_TI.device)
    how = launch(num_outputs, x_TI.dtype)
    grid = triton.cdiv(num_outputs, how["BLOCK_O"]), triton.cdiv(num_tokens, how["BLOCK_T"])
    return y_TO, grid, (num_tokens, num_outputs, num_inputs), how


def launch(num_outputs: int, dtype: torch.dtype) -> dict[str, int]:
    """By the model alone. As the compiler reports for sm_80, sm_89 and sm_90, halves spill nothing
    from registers."""
    is_half = dtype.itemsize == 2
    return {
        "BLOCK_T": BLOCK_T,
        "BLOCK_O": 64 if num_outputs >= FEW_OUTPUTS and is_half else 32,
        "num_warps": 4,
        "num_stages": 4 if is_half else 2,
    }


@triton.jit(do_not_specialize=("num_tokens",))
def multiply_int8(
    x, codes, scales, bias, y, x_stride, num_tokens, num_outputs, num_inputs, row_len,
    BIASED: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """A tile of outputs for a tile of tokens: grid (any, any)."""
    outputs_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    tokens_T = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    inputs_I = tl.arange(0, BLOCK_I)
    codes_OI = codes + outputs_O.to(tl.int64)[:, None] * row_len + inputs_I[None, :]
    x_IT = x + tokens_T.to(tl.int64)[None, :] * x_stride + inputs_I[:, None]
    mask_O, mask_T = outputs_O < num_outputs, tokens_T < num_tokens
    sums_OT = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
    for first in range(0, row_len, BLOCK_I):
        tile_OI = tl.load(codes_OI + first, mask=mask_O[:, None], other=0)
        mask_I = inputs_I < num_inputs - first
        tile_IT = tl.load(x_IT + first, mask=mask_I[:, None] & mask_T[None, :], other=0.0)
        sums_OT += _product(tile_OI, tile_IT)
    scales_O = tl.load(scales + outputs_O, mask=mask_O, other=0.0)
    y_OT = sums_OT * scales_O[:, None]
    _store(y, y_OT, bias, outputs_O, tokens_T, num_tokens, num_outputs, BIASED)


@triton.jit(do_not_specialize=("num_tokens",))
def multiply_int4(
    x, codes, scales, zeros, bias, y, x_stride, num_tokens, num_outputs, num_inputs, row_len,
    BIASED: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """A tile of outputs for a tile of tokens: grid (any, any). Two groups at a time."""
    outputs_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    tokens_T = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    inputs_M = tl.arange(0, _GROUP)
    codes_OM = codes + outputs_O.to(tl.int64)[:, None] * row_len + inputs_M[None, :]
    x_MT = x + tokens_T.to(tl.int64)[None, :] * x_stride + inputs_M[:, None]
    mask_O, mask_1T = outputs_O < num_outputs, (tokens_T < num_tokens)[None, :]
    sums_OT = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
    for first in range(0, row_len, _GROUP):
        bytes_OM = tl.load(codes_OM + first, mask=mask_O[:, None], other=0)
        for half in tl.static_range(2):
            codes_of_half_OM = (bytes_OM >> 4 if half else bytes_OM & 0xF).to(tl.int8)
            group_O = (2 * first // _GROUP + half) * num_outputs + outputs_O
            zeros_O = tl.load(zeros + group_O, mask=mask_O, other=0).to(tl.int8)
            scales_O = tl.load(scales + group_O, mask=mask_O, other=0.0).to(tl.float32)
            start = 2 * first + half * _GROUP
            mask_MT = (inputs_M < num_inputs - start)[:, None] & mask_1T
            tile_MT = tl.load(x_MT + start, mask=mask_MT, other=0.0)
            sums_of_half_OT = _product(codes_of_half_OM - zeros_O[:, None], tile_MT)
            sums_OT += sums_of_half_OT * scales_O[:, None]
    _store(y, sums_OT, bias, outputs_O, tokens_T, num_tokens, num_outputs, BIASED)


@triton.jit
def encode_rows(x, codes, scales, x_stride, num_inputs, BLOCK: tl.constexpr):
    """Grid (T,)."""
    token = tl.program_id(0).to(tl.int64)
    inputs_I = tl.arange(0, BLOCK)
    x_I, codes_I = x + token * x_stride + inputs_I, codes + token * num_inputs + inputs_I
    most_I = tl.zeros([BLOCK], tl.float32)
    for first in range(0, num_inputs, BLOCK):
        tile_I = tl.load(x_I + first, mask=inputs_I < num_inputs - first, other=0.0)
        most_I = tl.maximum(most_I, tl.abs(tile_I.to(tl.float32)))
    scale = tl.div_rn(tl.maximum(tl.max(most_I, 0), _LEAST_AMPLITUDE), _MOST)
    tl.store(scales + token, scale)
    for first in range(0, num_inputs, BLOCK):
        mask_I = inputs_I < num_inputs - first
        tile_I = tl.load(x_I + first, mask=mask_I, other=0.0).to(tl.float32)
        tile_I = tl.div_rn(tile_I, tl.broadcast_to(scale, tile_I.shape))
        tl.store(codes_I + first, to_float8(tile_I), mask=mask_I)


@triton.jit
def _product(codes_OI, x_IT):
    """The codes are whole numbers that x's type has. In which order NumPy sums depends on where a
    token is in its tile, so that the interpreter takes float64, and rounds that once."""
    if _INTERPRETED:
        x_IT = x_IT.to(tl.float32).to(tl.float64)
        return tl.dot(codes_OI.to(tl.float64), x_IT, out_dtype=tl.float64).to(tl.float32)
    return tl.dot(codes_OI.to(x_IT.dtype), x_IT, input_precision="ieee")


@triton.jit
def _store(y, y_OT, bias, outputs_O, tokens_T, num_tokens, num_outputs, BIASED: tl.constexpr):
    mask_O, mask_T = outputs_O < num_outputs, tokens_T < num_tokens
    if BIASED:
        y_OT += tl.load(bias + outputs_O, mask=mask_O, other=0.0).to(tl.float32)[:, None]
    to_OT = y + tokens_T.to(tl.int64)[None, :] * num_outputs + outputs_O[:, None]
    tl.store(to_OT, y_OT.to(y.dtype.element_ty), mask=mask_O[:, None] & mask_T[None, :])

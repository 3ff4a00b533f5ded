"""Compiles all kernels of model.triton for a GPU that needn't be there: `python -m
tests.compile_kernels 90` for sm_90. Prints each one's name and its bytes of shared memory.

What the interpreter can't tell: whether a kernel is of one type in all branches, and fits.
"""

import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"  # before triton is imported

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from model.attention import triton_paged
from model.triton import attention, few_bits, fused, sampling

INT64, INT32, FLOAT32 = "*i64", "i32", "*fp32"
HEADS = {"H": 32, "K": 8, "P": 16}
ROWS = dict.fromkeys(("starts", "query_lens", "context_lens"), INT64)
VARIABLES = dict.fromkeys(("table_stride", "num_splits", "window"), INT32)
WEIGHT_ONLY_SIZES = ("x_stride", "num_tokens", "num_outputs", "num_inputs", "row_len")
INT4 = {"codes": "*u8", "scales": "*bf16", "zeros": "*u8"}
PARTS = {"parts": FLOAT32, "part_logs": FLOAT32}
TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}

Kernel = tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]
"""The function, the types of its arguments, the constants among them, and how it is launched."""


def attention_kernels(dtype: torch.dtype, head_dim: int, *, is_float8: bool) -> list[Kernel]:
    x = TYPES[dtype]
    strides = {"q_stride": INT32, "q_head_stride": INT32, "scale": "fp32", "softcap": "fp32"}
    types = ROWS | VARIABLES | strides | {"q": x, "out": x, "table": INT64}
    types |= {"pool": "*u8" if is_float8 else x, "scales": FLOAT32}
    how = triton_paged._launch(head_dim, dtype)
    options = {name: how.pop(name) for name in ("num_warps", "num_stages")}
    constants: dict[str, Any] = HEADS | {"D": head_dim, "WINDOWED": True, "SOFTCAPPED": True} | how
    constants["FLOAT8"] = is_float8
    if not is_float8:
        constants["scales"] = None
    tiles = {"tile_rows": INT64, "tile_firsts": INT64}
    tile = constants | {"BLOCK_M": triton_paged._least_tile(dtype)}
    split = constants | {"BLOCK_M": triton_paged.SPLIT_TILE, "SPLIT": triton_paged.SPLIT}
    return [
        (attention.attend_tile, types | tiles, tile, options),
        (attention.attend_splits, types | PARTS, split, options),
        (attention.join_splits, types | PARTS, split, {}),
    ]


def fused_kernels() -> list[Kernel]:
    x = "*bf16"
    norm = dict.fromkeys(("x", "branch", "weight", "sums", "normed"), x)
    norm |= {"x_stride": INT32, "branch_stride": INT32, "eps": "fp32", "W": INT32}
    rotation = dict.fromkeys(("qkv", "queries", "cos", "sin"), x)
    rotation |= {"pool": "*u8", "scales": FLOAT32, "page_ids": INT64, "offsets": INT64}
    heads = HEADS | {"D": 128, "R": 128, "BLOCK_D": 128, "BLOCK_H": fused.BLOCK_H, "FLOAT8": True}
    gate = {"gate_up": x, "out": x, "stride": INT32, "F": INT32}
    return [
        (fused.add_rms_norm, norm, {"BLOCK": 4096}, {"num_warps": 8}),
        (fused.rotate_and_store, rotation | {"stride": INT32}, heads, {}),
        *(
            (fused.activate_and_gate, gate, {"ACTIVATION": name, "BLOCK": fused.GATE_BLOCK}, {})
            for name in ("silu", "gelu", "gelu_tanh", "relu")
        ),
    ]


def sampling_kernels() -> list[Kernel]:
    types = dict.fromkeys(("logits", "temperatures", "top_ps", "min_ps", "tops", "scores"), FLOAT32)
    types |= dict.fromkeys(("top_ks", "last", "seeds", "positions", "ids", "out"), INT64)
    types |= {"stride": INT32, "num_blocks": INT32}
    return [
        (sampling.find_last, types, {"V": 151_936, "BLOCK": sampling.SEARCH_W}, {}),
        (sampling.race, types, {"V": 151_936, "BLOCK": sampling.BLOCK_W}, {}),
        (sampling.pick_winner, types, {"C": 64}, {}),
    ]


def few_bits_kernels(dtype: torch.dtype, num_outputs: int) -> list[Kernel]:
    types = dict.fromkeys(("x", "bias", "y"), TYPES[dtype]) | {"codes": "*i8", "scales": FLOAT32}
    types |= dict.fromkeys(WEIGHT_ONLY_SIZES, INT32)
    how = few_bits.launch(num_outputs, dtype)
    options = {name: how.pop(name) for name in ("num_warps", "num_stages")}
    constants = {"BIASED": True} | how
    return [
        (
            few_bits.multiply_int8,
            types,
            constants | {"BLOCK_I": few_bits.BLOCK_I},
            options,
        ),
        (few_bits.multiply_int4, types | INT4, constants, options),
        (few_bits.encode_rows, types | {"codes": "*u8"}, {"BLOCK": 4096}, {"num_warps": 8}),
    ]


def shared_bytes(kernel: Kernel, capability: int) -> int:
    function, types, constants, options = kernel
    names = function.arg_names
    source = ASTSource(
        function,
        signature={name: "constexpr" if name in constants else types[name] for name in names},
        constexprs={(names.index(name),): constants[name] for name in names if name in constants},
        attrs={
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(names)
            if name not in constants and (types[name][0] == "*" or name.startswith("q_"))
        },
    )
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options=options).metadata.shared


def main() -> None:
    kernels = attention_kernels(torch.bfloat16, 128, is_float8=False)
    kernels += attention_kernels(torch.float16, 256, is_float8=True)
    kernels += fused_kernels() + sampling_kernels()
    for dtype in TYPES:
        kernels += few_bits_kernels(dtype, 1024)
        kernels += few_bits_kernels(dtype, few_bits.FEW_OUTPUTS)
    for kernel in kernels:
        print(kernel[0].__name__, shared_bytes(kernel, int(sys.argv[1])), flush=True)


if __name__ == "__main__":
    main()

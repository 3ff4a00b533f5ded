"""The compiled library: which of its builds this processor can run, and what its calls take.

Knows no tensors. The structures mirror those of product.h, attention.h and forward.h.
"""

from ctypes import (
    CDLL,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_void_p,
)
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

FOLDER = Path(__file__).parent
CPUINFO = Path("/proc/cpuinfo")
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18

PAGE_SIZE = 16
BLOCK = 16
WEIGHT_GROUP = 64
INPUT_GROUP = 32
MOST_HEAD_DIM = 256
PHASES = ("norm", "qkv", "rotate", "attend", "output", "gate_up", "down", "head")

V3 = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"])
V4 = V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
NEEDED_FLAGS = {
    "amx": V4 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"},
    "avx512bf16": V4 | {"avx512_vnni", "avx512_bf16"},
    "avx512vnni": V4 | {"avx512_vnni"},
    "avx2": V3,
    "dotprod": frozenset(["asimddp"]),
    "plain": frozenset[str](),
}
"""What each build needs of the processor, by Linux's names; the fastest first."""
TILED = frozenset(["amx"])
"""Those that multiply by a tile unit: weights of 8 bits, an output's with one scale."""


DRAW = Struct("QQfiff")
"""That of sampling.h: seed, position, temperature, top-k, top-p, min-p. It is packed in a third of
the time that a structure of ctypes takes."""
ALLOWED_AT_ONCE = 16
"""Its bits of what may be drawn come in multiples of this."""


class Matrix(Structure):
    _fields_ = (
        ("num_inputs", c_int32),
        ("num_outputs", c_int32),
        ("bits", c_int32),
        ("codes", c_void_p),
        ("scales", c_void_p),
    )


class Layer(Structure):
    _fields_ = (
        ("attention_norm", c_void_p),
        ("qkv", Matrix),
        ("output", Matrix),
        ("feed_forward_norm", c_void_p),
        ("gate_up", Matrix),
        ("down", Matrix),
    )


class Model(Structure):
    _fields_ = (
        ("vocab_size", c_int32),
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("num_layers", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("norm_eps", c_float),
        ("embedding_block_bytes", c_int32),
        ("embedding", c_void_p),
        ("frequency", c_void_p),
        ("layers", c_void_p),
        ("norm", c_void_p),
        ("head", Matrix),
    )


class Batch(Structure):
    _fields_ = (
        ("num_tokens", c_int64),
        ("num_sequences", c_int64),
        ("table_width", c_int64),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("page_ids", c_void_p),
        ("offsets", c_void_p),
        ("page_table", c_void_p),
        ("query_lens", c_void_p),
        ("wanted_lens", c_void_p),
    )


def builds(folder: Path = FOLDER, cpuinfo: Path = CPUINFO) -> list[str]:
    """Those that are there and that this processor can run, the fastest first."""
    flags = _flags(cpuinfo)
    return [
        build
        for build, needed in NEEDED_FLAGS.items()
        if needed <= flags and _file(folder, build).exists()
        if "amx_tile" not in needed or _grants_tiles()
    ]


@cache
def load(build: str) -> CDLL:
    library = CDLL(str(_file(FOLDER, build)))
    declare(library, "state_create", [c_int], c_void_p)
    declare(library, "state_destroy", [c_void_p])
    declare(library, "state_take_seconds", [c_void_p, c_int, POINTER(c_double)])
    matrix, model, batch = POINTER(Matrix), POINTER(Model), POINTER(Batch)
    takes = [c_void_p, c_void_p, c_int, c_int, c_int, matrix, c_int, c_int]
    declare(library, "pack_matrix", takes)
    takes = [model, c_void_p, batch, c_void_p, c_void_p]
    declare(library, "forward_hidden", takes, c_int)
    takes = [model, c_void_p, c_void_p, c_int64, c_void_p]
    declare(library, "forward_logits", takes, c_int)
    takes = [c_void_p, c_void_p, c_int64, c_int, c_int, POINTER(c_char_p), c_char_p, c_void_p]
    declare(library, "draw_tokens", takes, c_int)
    return library


def declare(library: CDLL, name: str, takes: list[Any], gives: Any = None) -> None:
    function = getattr(library, name)
    function.argtypes, function.restype = takes, gives


def _grants_tiles() -> bool:
    """Asks Linux for the tile unit's registers, which a process has to (arch_prctl(2)); they are 8
    KiB that it then saves at each switch between threads which use them."""
    return CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0


def _file(folder: Path, build: str) -> Path:
    return folder / f"octavo_{build}.so"


def _flags(cpuinfo: Path) -> frozenset[str]:
    """ARM's are called features."""
    lines = cpuinfo.read_text().splitlines()
    found = (line for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(found, "").split())

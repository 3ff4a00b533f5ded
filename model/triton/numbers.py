"""What kernels need of numbers beyond Triton's own."""

import triton
import triton.language as tl

from model.float8 import MOST

FLOAT8_DECODED = tl.constexpr(256.0)
"""How much larger a number is than `from_float8` says."""

_MOST_FLOAT8 = tl.constexpr(MOST)
_LEAST_NORMAL = tl.constexpr(2.0**-6)
_SUBNORMALS_PER_ONE = tl.constexpr(2.0**9)
_ROUNDS_TO_ONES = tl.constexpr(2.0**23)
"""Where floats are integers: what is added to it is rounded, half to even."""
_BIAS_GAP = tl.constexpr((127 - 7) << 3)
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def product(a_MK, b_KN):
    """a @ b with sums in float32, and no TF32. The interpreter takes bfloat16 for integers."""
    if _INTERPRETED:
        a_MK, b_KN = a_MK.to(tl.float32), b_KN.to(tl.float32)
    return tl.dot(a_MK, b_KN, input_precision="ieee")


@triton.jit
def tanh(x):
    fallen = tl.exp(-2 * tl.abs(x))
    return tl.where(x < 0, -1.0, 1.0) * (1 - fallen) / (1 + fallen)


@triton.jit
def to_float8(x):
    """The nearest e4m3 of a float32, half to even, as a byte. By integers: the instructions for it
    are missing before sm_89."""
    magnitude = tl.minimum(tl.abs(x), _MOST_FLOAT8)
    bits = magnitude.to(tl.uint32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - _BIAS_GAP
    subnormal = magnitude * _SUBNORMALS_PER_ONE + _ROUNDS_TO_ONES
    subnormal = subnormal.to(tl.uint32, bitcast=True) & 0xF
    code = tl.where(magnitude < _LEAST_NORMAL, subnormal, normal)
    return (code | (x < 0).to(tl.uint32) << 7).to(tl.uint8)


@triton.jit
def from_float8(code):
    """A 256th of the number, in float16: its exponent and mantissa fit in without any rounding."""
    code = code.to(tl.uint16)
    bits = (code & 0x80) << 8 | (code & 0x7F) << 7
    return bits.to(tl.float16, bitcast=True)

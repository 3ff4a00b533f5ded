"""How the matrices of a folder are quantized: what its tensors' shapes don't tell.

Numbers alone; what they mean for the tensors is model.weights.quantized's.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    scheme: Literal["fp8", "int8", "packed", "gptq", "awq"]
    """fp8, int8: numbers as they are, beside their scales. packed: as compressed-tensors packs
    integers into words."""
    bits: int = 8
    block: tuple[int, int] | None = None
    """How many rows and columns share a scale, where it isn't a row or a part of one."""
    zero_shift: int = 0
    """What stored zero points lack."""

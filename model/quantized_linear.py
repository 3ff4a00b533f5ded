"""Linear layers whose weights are rounded to few bits as they are loaded.

Those of the blocks alone. A router, an embedding and a head stay as they are: what they round wrong
nothing behind them makes up for, and all of them are a small part of a large model.

Shapes: T packed tokens, O outputs, I inputs, and model.few_bits's.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn.functional import linear

from model import few_bits, float8
from model.few_bits import GROUP, Float8Matrix, Int4Matrix, Int8Matrix, Products

ROUNDED = ("qkv", "output", "gate_up", "up", "down")
"""A block's matrices."""


class QuantizedLinear(nn.Module, ABC):
    has_own_bits = True
    """Whether a token's are the same in any batch, as far as it is up to us."""

    def __init__(
        self, weight_OI: Tensor, bias_O: nn.Parameter | None = None, *, products: Products
    ) -> None:
        """weight_OI: float32."""
        super().__init__()
        self.num_inputs, self.bias, self.products = weight_OI.shape[1], bias_O, products
        for name, values in self.rounded(weight_OI)._asdict().items():
            self.register_buffer(name, values, persistent=False)

    @staticmethod
    @abstractmethod
    def rounded(weight_OI: Tensor) -> Int8Matrix | Int4Matrix | Float8Matrix:
        """Its matrix, of which each tensor is kept by its name."""

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """What it became: weight_OI, as float32."""

    @abstractmethod
    def forward(self, x_TI: Tensor) -> Tensor: ...

    @abstractmethod
    def reference(self, x_TI: Tensor) -> Tensor:
        """The same by PyTorch, slowly."""

    @staticmethod
    @abstractmethod
    def num_bytes(num_outputs: int, num_inputs: int) -> int:
        """Of such a layer's weights."""


class Int8Linear(QuantizedLinear):
    codes_OJ: Tensor
    scales_O: Tensor

    @staticmethod
    def rounded(weight_OI: Tensor) -> Int8Matrix:
        return few_bits.to_int8(weight_OI)

    @property
    def matrix(self) -> Int8Matrix:
        return Int8Matrix(self.codes_OJ, self.scales_O)

    @property
    def weight(self) -> Tensor:
        return few_bits.of_int8(self.matrix)[:, : self.num_inputs]

    def forward(self, x_TI: Tensor) -> Tensor:
        return self.products.by_int8(x_TI, self.matrix, self.bias)

    def reference(self, x_TI: Tensor) -> Tensor:
        return few_bits.by_int8(x_TI, self.matrix, self.bias)

    @staticmethod
    def num_bytes(num_outputs: int, num_inputs: int) -> int:
        return num_outputs * (few_bits.filled_len(num_inputs) + 4)


class Int4Linear(QuantizedLinear):
    codes_OB: Tensor
    scales_GO: Tensor
    zeros_GO: Tensor

    @staticmethod
    def rounded(weight_OI: Tensor) -> Int4Matrix:
        return few_bits.to_int4(weight_OI)

    @property
    def matrix(self) -> Int4Matrix:
        return Int4Matrix(self.codes_OB, self.scales_GO, self.zeros_GO)

    @property
    def weight(self) -> Tensor:
        return few_bits.of_int4(self.matrix)[:, : self.num_inputs]

    def forward(self, x_TI: Tensor) -> Tensor:
        return self.products.by_int4(x_TI, self.matrix, self.bias)

    def reference(self, x_TI: Tensor) -> Tensor:
        return few_bits.by_int4(x_TI, self.matrix, self.bias)

    @staticmethod
    def num_bytes(num_outputs: int, num_inputs: int) -> int:
        row_len = few_bits.filled_len(num_inputs)
        return num_outputs * (row_len // 2 + row_len // GROUP * 3)


class Float8Linear(QuantizedLinear):
    codes_OI: Tensor
    scales_O: Tensor
    has_own_bits = False

    @staticmethod
    def rounded(weight_OI: Tensor) -> Float8Matrix:
        return Float8Matrix(*float8.encoded(weight_OI))

    @property
    def matrix(self) -> Float8Matrix:
        return Float8Matrix(self.codes_OI, self.scales_O)

    @property
    def weight(self) -> Tensor:
        return float8.decoded(*self.matrix)

    def forward(self, x_TI: Tensor) -> Tensor:
        return self.products.by_float8(x_TI, self.matrix, self.bias)

    def reference(self, x_TI: Tensor) -> Tensor:
        bias_O = None if self.bias is None else self.bias.float()
        rounded_TI = float8.decoded(*float8.encoded(x_TI))
        return linear(rounded_TI, self.weight, bias_O).to(x_TI.dtype)

    @staticmethod
    def num_bytes(num_outputs: int, num_inputs: int) -> int:
        return num_outputs * (num_inputs + 4)


KINDS: dict[str, type[QuantizedLinear]] = {
    "int8": Int8Linear,
    "int4": Int4Linear,
    "fp8": Float8Linear,
}
"""By --quantization."""


def is_rounded(name: str) -> bool:
    """Whether a linear layer is one of those, by its name in a Transformer."""
    return name.rpartition(".")[2] in ROUNDED

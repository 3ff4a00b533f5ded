"""Linear layers whose weights are rounded to few bits as they are loaded.

Those of the blocks alone. A router, an embedding and a head stay as they are: what they round wrong
nothing behind them makes up for, and all of them are a small part of a large model.

Shapes: T packed tokens, O outputs, I inputs, and model.weight_only's.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from model import weight_only
from model.weight_only import GROUP, Int4Matrix, Int8Matrix, Products

ROUNDED = ("qkv", "output", "gate_up", "up", "down")
"""A block's matrices."""


class QuantizedLinear(nn.Module, ABC):
    has_own_bits = True
    """Whether a token's are the same in any batch."""

    def __init__(
        self, weight_OI: Tensor, bias_O: nn.Parameter | None = None, *, products: Products
    ) -> None:
        """weight_OI: float32."""
        super().__init__()
        self.num_inputs, self.bias, self.products = weight_OI.shape[1], bias_O, products

    def _keep(self, **tensors: Tensor) -> None:
        for name, values in tensors.items():
            self.register_buffer(name, values, persistent=False)

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

    def __init__(
        self, weight_OI: Tensor, bias_O: nn.Parameter | None = None, *, products: Products
    ) -> None:
        super().__init__(weight_OI, bias_O, products=products)
        self._keep(**weight_only.to_int8(weight_OI)._asdict())

    @property
    def matrix(self) -> Int8Matrix:
        return Int8Matrix(self.codes_OJ, self.scales_O)

    @property
    def weight(self) -> Tensor:
        return weight_only.of_int8(self.matrix)[:, : self.num_inputs]

    def forward(self, x_TI: Tensor) -> Tensor:
        return self.products.by_int8(x_TI, self.matrix, self.bias)

    def reference(self, x_TI: Tensor) -> Tensor:
        return weight_only.by_int8(x_TI, self.matrix, self.bias)

    @staticmethod
    def num_bytes(num_outputs: int, num_inputs: int) -> int:
        return num_outputs * (weight_only.filled_len(num_inputs) + 4)


class Int4Linear(QuantizedLinear):
    codes_OB: Tensor
    scales_GO: Tensor
    zeros_GO: Tensor

    def __init__(
        self, weight_OI: Tensor, bias_O: nn.Parameter | None = None, *, products: Products
    ) -> None:
        super().__init__(weight_OI, bias_O, products=products)
        self._keep(**weight_only.to_int4(weight_OI)._asdict())

    @property
    def matrix(self) -> Int4Matrix:
        return Int4Matrix(self.codes_OB, self.scales_GO, self.zeros_GO)

    @property
    def weight(self) -> Tensor:
        return weight_only.of_int4(self.matrix)[:, : self.num_inputs]

    def forward(self, x_TI: Tensor) -> Tensor:
        return self.products.by_int4(x_TI, self.matrix, self.bias)

    def reference(self, x_TI: Tensor) -> Tensor:
        return weight_only.by_int4(x_TI, self.matrix, self.bias)

    @staticmethod
    def num_bytes(num_outputs: int, num_inputs: int) -> int:
        row_len = weight_only.filled_len(num_inputs)
        return num_outputs * (row_len // 2 + row_len // GROUP * 3)


KINDS: dict[str, type[QuantizedLinear]] = {"int8": Int8Linear, "int4": Int4Linear}
"""By --quantization."""


def is_rounded(name: str) -> bool:
    """Whether a linear layer is one of those, by its name in a Transformer."""
    return name.rpartition(".")[2] in ROUNDED

"""Linear layers whose weights are laid out once for oneDNN, as it wants to read them.

PyTorch's own linear hands plain rows to MKL at each call, which for 4 to 64 rows takes up to three
times as long. Besides, a row's result here has the same bits whatever rows are computed beside it.

The two operators are those that torch.compile makes of a linear on a CPU; they have no other name.
"""

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    weight: Tensor

    def __init__(self, weight_OI: Tensor, bias_O: nn.Parameter | None = None) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI, None)  # for any number of rows
        self.register_buffer("weight", packed, persistent=False)
        self.bias = bias_O

    def forward(self, x_TI: Tensor) -> Tensor:
        if len(x_TI) == 1:  # a row alone is summed in another order on CPUs with AVX-512
            return self._product(x_TI.expand(2, -1))[:1]
        return self._product(x_TI)

    def _product(self, x_TI: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x_TI, self.weight, self.bias, "none", [], "")


@torch.inference_mode()
def packed(linear: nn.Linear) -> nn.Module:
    """Itself where there is no oneDNN, or for other numbers than a CPU's float32; else its plain
    weights are no longer needed."""
    weight = linear.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return linear
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return linear
    return PackedLinear(linear.weight.detach(), linear.bias)

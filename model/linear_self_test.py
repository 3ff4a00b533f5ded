"""Whether a model's products with quantized weights come out right, on the device at hand.

Shapes: T tokens, O outputs, I inputs.
"""

import torch
from torch import Tensor, nn

from model.attention.backend import Place, UnfitError
from model.config import ModelConfig
from model.few_bits import Products
from model.quantized_linear import KINDS
from model.weights.names import matrices

NUM_TOKENS = 70
PARTS = (slice(0, 1), slice(3, 8), slice(40, 70))
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Of outputs whose standard deviation is 1."""


@torch.inference_mode()
def check(quantization: str, products: Products, config: ModelConfig, place: Place) -> None:
    """All shapes of the model's matrices. Raises UnfitError, or whatever the device raises."""
    generator = torch.Generator(place.device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=place.device)

    for num_outputs, num_inputs in matrices(config):
        bias_O = nn.Parameter(random(num_outputs).to(place.dtype), requires_grad=False)
        weight_OI = random(num_outputs, num_inputs) / num_inputs**0.5
        layer = KINDS[quantization](weight_OI, bias_O, products=products)
        x_TI = random(NUM_TOKENS, num_inputs).to(place.dtype)
        y_TO, wanted_TO = layer(x_TI), layer.reference(x_TI)
        error = (y_TO.float() - wanted_TO.float()).abs().max().item()
        name = f"a product of {num_inputs} inputs and {num_outputs} outputs"
        if not error <= TOLERANCES[place.dtype]:
            raise UnfitError(f"{name} is {error:.2g} off PyTorch's")
        for part in PARTS:
            if layer.has_own_bits and not torch.equal(layer(x_TI[part]), y_TO[part]):
                raise UnfitError(f"a token's bits depend on what is beside it in {name}")

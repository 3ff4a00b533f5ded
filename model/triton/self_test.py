"""Whether the kernels of fused.py and sampling.py do what PyTorch's functions do, on the device at
hand.

Shapes: T tokens, W model width, F feed-forward width, S sequences, V vocabulary, H query heads,
K key-value heads, D head dimension.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from model import fused as plain
from model.attention.backend import Place, UnfitError
from model.batch import SamplingParams
from model.config import ModelConfig
from model.fused import Fused
from model.kv_cache import KVCache
from model.rope import Rotation, inverse_frequencies, rotation_at
from model.sampling import Sampler
from model.triton import fused
from model.triton.sampling import TritonSampler

__all__ = ["TritonSampler", "check", "fused"]

NUM_TOKENS, GATE_SIZE = 5, 2000
DRAWS = [
    (7, params)
    for params in (
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.7, seed=-3),
        SamplingParams(top_k=40, top_p=0.9, seed=1 << 62),
        SamplingParams(top_p=0.5, min_p=0.01),
    )
]
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-1}


def check(config: ModelConfig, place: Place) -> None:
    """Raises UnfitError, or whatever the device raises."""
    for (name, ours), (_, wanted) in zip(
        _outputs(fused, config, place), _outputs(plain, config, place), strict=True
    ):
        error = (ours.float() - wanted.float()).abs().max().item()
        if not error <= TOLERANCES[place.dtype]:
            raise UnfitError(f"its {name} is {error:.2g} off PyTorch's")
    generator = torch.Generator().manual_seed(0)
    logits_SV = torch.randn(len(DRAWS), config.vocab_size, generator=generator).to(place.device)
    samplers = [kind(config.vocab_size, device=place.device) for kind in (TritonSampler, Sampler)]
    if not torch.equal(*(sampler.draw(logits_SV, DRAWS) for sampler in samplers)):
        raise UnfitError("it draws other tokens than PyTorch")


def _outputs(kernels: Fused, config: ModelConfig, place: Place) -> Iterator[tuple[str, Tensor]]:
    """What each function makes of numbers that are the same at each call."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(place.device, place.dtype)

    norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps).to(place.device, place.dtype)
    x_TW, branch_TW = random(2, NUM_TOKENS, config.hidden_size)
    yield from zip(("sum", "norm"), kernels.add_norm(x_TW, branch_TW, norm), strict=True)
    yield "gate", kernels.gate(random(NUM_TOKENS, 2 * GATE_SIZE), config.activation)
    cache = KVCache.allocate(
        replace(config, num_layers=1),
        num_pages=1,
        page_size=16,
        dtype=place.cache_dtype,
        device=place.device,
    )
    slots_T = torch.arange(NUM_TOKENS, device=place.device)
    yield (
        "rotation of queries",
        kernels.rotate_and_cache(
            random(NUM_TOKENS, config.num_heads + 2 * config.num_kv_heads, config.head_dim),
            _rotation(config, slots_T * 999, place.dtype),
            cache.layers[0],
            num_heads=config.num_heads,
            page_ids_T=torch.zeros_like(slots_T),
            offsets_T=slots_T,
        ),
    )
    chunks_SJN = torch.arange(2 * config.num_kv_heads, device=place.device)[None, :, None]
    yield "cache", cache.layers[0].gather(chunks_SJN)


def _rotation(config: ModelConfig, positions_T: Tensor, dtype: torch.dtype) -> Rotation | None:
    if config.positions != "rotary":
        return None
    frequency_F = inverse_frequencies(config).to(positions_T.device)
    return rotation_at(positions_T, frequency_F, dtype=dtype)

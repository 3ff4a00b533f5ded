"""A model's file or folder → a Transformer with its weights, as float32, one tensor at a time.

Of a tensor that is missing, unknown or of the wrong shape, the error says which one it is.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from model.config import ModelConfig
from model.errors import ModelError
from model.host import available_memory
from model.transformer import Transformer
from model.weights import gguf_tensors, safetensors
from model.weights.names import (
    FREQUENCY_DIVISORS,
    Place,
    gguf_places,
    hugging_face_places,
    num_parameters,
)

Report = Callable[[str, float], None]
"""Takes the name of the tensor that was just read, and the share of the tensors read so far."""

Tensors = Iterator[tuple[str, Tensor]]


def load_model(path: Path, config: ModelConfig, *, report: Report) -> Transformer:
    _check_memory(path, config)
    with torch.device("meta"):  # shapes alone: random weights would take a second to draw
        model = Transformer(config)
    weights = {name: torch.empty_like(p, device="cpu") for name, p in model.named_parameters()}
    if config.tied_head:
        weights["head.weight"] = weights["embedding.weight"]
    weights[FREQUENCY_DIVISORS] = torch.ones(config.head_dim // 2)
    try:
        _fill(weights, *_source(path, config), report=report)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    model.frequency /= weights.pop(FREQUENCY_DIVISORS)
    model.load_state_dict(weights, assign=True)
    return model


def _check_memory(path: Path, config: ModelConfig) -> None:
    """While model.linear packs the head it is there twice; a tied one stays twice."""
    num_values = num_parameters(config) + config.vocab_size * config.hidden_size
    needed, free = num_values * torch.float32.itemsize, available_memory()
    if needed > free:
        raise ModelError(
            f"{path}: the weights take {needed} bytes of memory, but only {free} are free: take a "
            "smaller model, or free some memory"
        )


def _source(path: Path, config: ModelConfig) -> tuple[dict[str, Place], Tensors]:
    if path.suffix == ".gguf":
        return gguf_places(config), gguf_tensors.iter_tensors(path)
    return hugging_face_places(config), _without_copies(safetensors.iter_tensors(path), config)


def _without_copies(tensors: Tensors, config: ModelConfig) -> Tensors:
    """Leaves out what some folders hold besides the weights and what we know already."""
    for name, tensor in tensors:
        is_copy = config.tied_head and name == "lm_head.weight"
        if not is_copy and not name.endswith(".rotary_emb.inv_freq"):
            yield name, tensor


def _fill(
    weights: dict[str, Tensor], places: dict[str, Place], tensors: Tensors, *, report: Report
) -> None:
    missing = dict(places)
    for name, tensor in tensors:
        if name not in missing:
            raise ModelError(
                f"tensor {name!r} is none of a Llama model's, or comes twice: octavo can't run "
                "this model, take another"
            )
        place = missing.pop(name)
        if tensor.shape != place.shape:
            raise ModelError(
                f"tensor {name!r} has the shape {tuple(tensor.shape)} instead of {place.shape}: "
                "the file doesn't fit its own description, download it again"
            )
        rows = slice(place.first_row, place.first_row + place.shape[0])
        weights[place.parameter][rows] = _half_split(tensor, num_heads=place.interleaved_heads)
        report(name, 1 - len(missing) / len(places))
    missing.pop(FREQUENCY_DIVISORS, None)
    if missing:
        raise ModelError(f"tensor {min(missing)!r} is missing: download the file again")


def _half_split(tensor: Tensor, *, num_heads: int) -> Tensor:
    """Undoes the row order of Q and K in GGUF files for llama, head by head.

        theirs   0  F  1  F+1  2  F+2 …      the two of a rotated pair side by side
        ours     0  1  2 …   F  F+1  F+2 …   the pairs' first halves, then the second

    They reorder in LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py.
    """
    if not num_heads:
        return tensor
    return tensor.view(num_heads, -1, 2, tensor.shape[1]).transpose(1, 2).flatten(0, 2)

"""config.json's quantization_config → a Quantization, or a refusal that names what can't be read.

What it says about activations and the KV cache is left alone: both are computed in full precision,
whatever a checkpoint was calibrated for.
"""

from collections.abc import Callable

from model.errors import ModelError
from model.fields import Fields
from model.quantization import Quantization

RUNS = (
    "checkpoints quantized by fp8, by GPTQ or compressed-tensors with integers of 2, 4 or 8 bits, "
    "and by AWQ with 4"
)


def read_quantization(config: Fields) -> Quantization | None:
    if config.get("quantization_config") is None:
        return None
    stored = config.group("quantization_config", runs=RUNS)
    stored.require("quant_method", *READERS)
    return READERS[stored.get("quant_method")](stored)


def _fp8(stored: Fields) -> Quantization:
    """As DeepSeek-V3 (arXiv:2412.19437) and Qwen3 store it, in blocks, and as vLLM does, whole."""
    stored.allow("fmt", "e4m3", "float8_e4m3fn")
    return Quantization(scheme="fp8", block=_block(stored, "weight_block_size"))


def _gptq(stored: Fields) -> Quantization:
    """arXiv:2210.17323, as AutoGPTQ stores it; its first format holds zero points less one."""
    stored.require("bits", 2, 4, 8)
    stored.allow("checkpoint_format", "gptq", "gptq_v2")
    stored.allow("pack_dtype", "int32")
    stored.allow("is_marlin_format", False)
    stored.allow("dynamic", {})
    is_second = stored.get("checkpoint_format") == "gptq_v2"
    return Quantization(
        scheme="gptq", bits=stored.integer("bits"), zero_shift=0 if is_second else 1
    )


def _awq(stored: Fields) -> Quantization:
    """arXiv:2306.00978, as AutoAWQ stores it."""
    stored.require("bits", 4)
    stored.allow("version", "gemm", "GEMM")
    stored.allow("zero_point", True)
    return Quantization(scheme="awq", bits=4)


def _compressed_tensors(stored: Fields) -> Quantization:
    stored.require(
        *("format", "float-quantized", "int-quantized", "naive-quantized", "pack-quantized")
    )
    stored.group("sparsity_config").allow("format", "dense")
    stored.allow("transform_config", {})
    read = _packed if stored.get("format") == "pack-quantized" else _scaled
    return _one_of([read(group.group("weights")) for group in stored.groups("config_groups")])


def _scaled(weights: Fields) -> Quantization:
    weights.require("type", "float", "int")
    weights.require("num_bits", 8)
    weights.allow("strategy", "tensor", "channel", "group", "block")
    block = _block(weights, "block_structure")
    return Quantization(scheme="fp8" if weights.get("type") == "float" else "int8", block=block)


def _packed(weights: Fields) -> Quantization:
    weights.require("type", "int")
    weights.require("num_bits", 2, 4, 8)
    weights.allow("strategy", "channel", "group")
    return Quantization(scheme="packed", bits=weights.integer("num_bits"))


def _one_of(found: list[Quantization]) -> Quantization:
    if len(set(found)) != 1:
        raise ModelError(
            f"quantization_config.config_groups holds {len(set(found))} ways to quantize, but must "
            f"hold one. octavo runs {RUNS}"
        )
    return found[0]


def _block(fields: Fields, name: str) -> tuple[int, int] | None:
    sizes = fields.integers(name)
    if sizes is None:
        return None
    if len(sizes) != 2 or min(sizes) < 1:
        raise ModelError(f"{name} is {sizes!r}, but must be numbers of rows and of columns")
    return sizes[0], sizes[1]


READERS: dict[str, Callable[[Fields], Quantization]] = {
    "fp8": _fp8,
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
}

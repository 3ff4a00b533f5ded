"""What octavo would run: a model's dimensions and what they cost here, from its description alone.

Loads nothing: of a folder config.json will do, of a .gguf file its header. What is free is this
machine's, now, with all knobs as they are by default.
"""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model.config import ModelConfig, load_config
from model.fields import Fields, read_json
from model.footprint import (
    float32_page_bytes,
    float32_weight_bytes,
    native_page_bytes,
    native_weight_bytes,
)
from model.host import FREE_MEMORY_SHARE, available_memory
from model.native.library import PAGE_SIZE, builds
from model.weights.gguf import read_header
from model.weights.names import num_parameters
from service.config import EngineConfig

NORM_NAMES = {"rms": "RMSNorm", "layer": "LayerNorm"}
NORM_PLACES = {
    "pre": "before each branch",
    "sandwich": "before and behind each branch",
    "post": "behind each branch",
    "sum": "behind each sum",
}
LABEL_WIDTH = 22

Facts = dict[str, Any]


def inspect(path: Path) -> Facts:
    """Raises ModelError where octavo can't run it, as loading it would."""
    config = load_config(path)
    build = builds()[0] if config.is_plain_llama and builds() else None
    return _architecture(config) | {"stored_as": _stored_as(path)} | _costs(config, build)


def show(facts: Facts) -> str:
    lines = (f"{name.replace('_', ' '):{LABEL_WIDTH}}{_shown(v)}" for name, v in facts.items())
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _architecture(config: ModelConfig) -> Facts:
    return {
        "family": config.family,
        "layers": config.num_layers,
        "width": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "attention": _attention(config),
        "positions": _positions(config),
        "norms": _norms(config),
        "feed_forward": _feed_forward(config),
        "vocab_size": config.vocab_size,
        "tied_head": config.tied_head,
    }


def _attention(config: ModelConfig) -> str:
    num_local = len(config.local_layers)
    seen = (
        f"a window of {config.sliding_window} tokens in {num_local} of {config.num_layers} layers"
        if num_local
        else "the whole context"
    )
    cap = config.attention_softcap
    return seen if cap is None else f"{seen}, scores softly capped at {cap:g}"


def _positions(config: ModelConfig) -> str:
    if config.positions != "rotary":
        return config.positions
    parts = [f"rotary, theta {config.rope_theta:g}"]
    if config.rope_dim is not None:
        parts.append(f"of {config.rope_dim} dimensions")
    if config.local_rope_theta is not None:
        parts.append(f"theta {config.local_rope_theta:g} in windows")
    if config.unrotated_layers:
        parts.append(f"none in {len(config.unrotated_layers)} layers")
    if config.rope_scaling is not None:
        kind = type(config.rope_scaling).__name__.removesuffix("Scaling")
        numbers = asdict(config.rope_scaling).items()
        parts.append(f"{kind} scaling ({', '.join(f'{n} {v}' for n, v in numbers if _plain(v))})")
    return ", ".join(parts)


def _plain(value: Any) -> bool:
    return not isinstance(value, list | tuple)


def _norms(config: ModelConfig) -> str:
    parts = [NORM_NAMES[config.norm], NORM_PLACES[config.residual]]
    if config.parallel != "no":
        parts.append(f"both branches in parallel, {config.parallel}")
    if config.qk_norm != "none":
        parts.append("and of queries and keys")
    return ", ".join(parts)


def _feed_forward(config: ModelConfig) -> str:
    kind = f"{'gated ' if config.gated else ''}{config.activation}"
    if not config.num_experts:
        return f"{kind}, {config.intermediate_size} wide"
    num_active, num_experts = config.num_active_experts, config.num_experts
    return f"{kind}, {num_active} of {num_experts} experts, each {config.expert_size} wide"


def _stored_as(path: Path) -> str:
    if path.is_dir():
        config = Fields(read_json(path / "config.json"))
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "unknown")
        method = config.group("quantization_config").get("quant_method")
        return f"{dtype}, matrices by {method}" if method else dtype
    types = Counter(tensor.type.name for tensor in read_header(path).tensors.values())
    return ", ".join(f"{name} ({count} tensors)" for name, count in types.most_common())


def _costs(config: ModelConfig, build: str | None) -> Facts:
    if build:
        weight_bytes, page_bytes = native_weight_bytes(config), native_page_bytes(config)
    else:
        weight_bytes = float32_weight_bytes(config)
        page_bytes = float32_page_bytes(config, page_size=PAGE_SIZE)
    num_pages = _num_pages(config, weight_bytes=weight_bytes, page_bytes=page_bytes)
    return {
        "computed_in": _computed_in(build),
        "parameters": num_parameters(config),
        "weight_bytes": weight_bytes,
        "kv_bytes_per_token": page_bytes // PAGE_SIZE,
        "page_size": PAGE_SIZE,
        "pages_that_fit": num_pages,
        "context": config.context_len,
        "context_served": min(config.context_len, num_pages * PAGE_SIZE),
    }


def _computed_in(build: str | None) -> str:
    if build:
        return f"8-bit integers and bfloat16, by the native build {build}"
    return "float32, by PyTorch"


def _num_pages(config: ModelConfig, *, weight_bytes: int, page_bytes: int) -> int:
    free = max(0, available_memory() - weight_bytes)
    most = EngineConfig().max_sequences * -(-config.context_len // PAGE_SIZE)
    return min(most, int(free * FREE_MEMORY_SHARE) // page_bytes)

"""Which tensor of a file goes where in our model: names, rows and shapes, no values.

Our model holds Q, K and V in one matrix, and gate and up in another, so that each takes one
multiplication; most files hold them apart:

    blocks.3.attention.qkv.weight     Hugging Face                              GGUF
    ├ rows [0, H*D)                   model.layers.3.self_attn.q_proj.weight    blk.3.attn_q.weight
    ├ rows [H*D, (H+K)*D)             model.layers.3.self_attn.k_proj.weight    blk.3.attn_k.weight
    └ rows [(H+K)*D, (H+2K)*D)        model.layers.3.self_attn.v_proj.weight    blk.3.attn_v.weight

Which parts a model has follows from its config; what files call them, from model.weights.tables.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from math import prod
from typing import NamedTuple

from model.config import ModelConfig
from model.families.gguf import LONG_DIVISORS, SHORT_DIVISORS
from model.scaling import LongRopeScaling
from model.weights.tables import GGUF, HUGGING_FACE, TWO_NORMS_IN_FALCON, Table

FREQUENCY_DIVISORS = "rope_freqs.weight"
"""How GGUF files hold Llama 3's scaling of the rotary frequencies; other models have none."""
OPTIONAL = frozenset({FREQUENCY_DIVISORS})
HEADS = frozenset({"lm_head.weight", "embed_out.weight"})
BUFFERS = (
    *(".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"),
    *(".attention.bias", ".attention.masked_bias"),
)
"""How the names of masks and rotary frequencies end, which older folders hold with the weights."""
NORMS = {
    "pre": ("attention_norm", "feed_forward_norm"),
    "sandwich": (
        *("attention_norm", "attention_post_norm"),
        *("feed_forward_norm", "feed_forward_post_norm"),
    ),
    "post": ("attention_post_norm", "feed_forward_post_norm"),
    "sum": ("attention_post_norm", "feed_forward_post_norm"),
}
"""What norms a block has, by ModelConfig.residual."""


OTHER_PREFIXES = ("", "language_model.model.", "model.language_model.")
"""What names begin with in files of a bare model, and of one that takes images as well."""
PARTS_FOR_IMAGES = tuple(
    f"{prefix}{part}."
    for prefix in ("", "model.")
    for part in ("vision_tower", "multi_modal_projector")
)
"""Of models of which octavo runs the text's side alone."""


class Change(NamedTuple):
    """What is done to a stored tensor; see model.weights.changes."""

    kind: str
    num_heads: int = 0
    head_dim: int = 0


TRANSPOSE, ADD_ONE = Change("transpose"), Change("add one")


class Place(NamedTuple):
    """A tensor of this shape fills the rows from first_row on of our parameter."""

    parameter: str
    shape: tuple[int, ...]
    first_row: int = 0
    change: Change | None = None


class Part(NamedTuple):
    """What tables have a name for: a weight and maybe a bias, by our names but for the layer's."""

    name: str
    parameter: str
    shape: tuple[int, ...]
    first_row: int = 0
    bias: bool = False
    expert: int = 0


def hugging_face_places(config: ModelConfig, names: Container[str]) -> dict[str, Place]:
    """names: of the tensors that are there, which tell what they begin with."""
    table = HUGGING_FACE[config.family]
    if config.family == "falcon" and config.parallel == "two norms":
        table = table._replace(names={**table.names, **TWO_NORMS_IN_FALCON})
    embedding = f"{table.names['embedding']}.weight"
    prefixes = (table.prefix, *OTHER_PREFIXES)
    prefix = next((p for p in prefixes if p + embedding in names), table.prefix)
    return _all_places(config, table._replace(prefix=prefix))


def gguf_places(config: ModelConfig) -> dict[str, Place]:
    places = _all_places(config, GGUF[config.family])
    divisors = Place(FREQUENCY_DIVISORS, (config.rotary_dim // 2,))
    scaling = config.rope_scaling
    if isinstance(scaling, LongRopeScaling):
        is_long = config.context_len > scaling.original_context_len
        return places | {LONG_DIVISORS if is_long else SHORT_DIVISORS: divisors}
    return places | {FREQUENCY_DIVISORS: divisors}


def is_redundant(name: str, places: Container[str]) -> bool:
    """What some files hold besides the weights that are used, and what we know already."""
    unused = name in HEADS or name in (LONG_DIVISORS, SHORT_DIVISORS)
    return name not in places and (
        unused or name.endswith(BUFFERS) or name.startswith(PARTS_FOR_IMAGES)
    )


def num_parameters(config: ModelConfig) -> int:
    """Counted without listing them: of a damaged description there may be too many to list."""
    num_dense = len(config.dense_layers) if config.num_experts else config.num_layers
    dense = _num_values(_feed_forward_parts(config, config.intermediate_size))
    expert = _num_values(_feed_forward_parts(config, config.expert_size))
    routed = config.num_experts * (config.hidden_size + expert)
    in_all_layers = _num_values((*_norm_parts(config), *_attention_parts(config)))
    return (
        _num_values(_outer_parts(config))
        + config.num_layers * in_all_layers
        + num_dense * dense
        + (config.num_layers - num_dense) * routed
    )


def matrices(config: ModelConfig) -> Counter[tuple[int, int]]:
    """How many matrices with how many rows and columns the blocks have, but for routers."""
    num_dense = len(config.dense_layers) if config.num_experts else config.num_layers
    num_experts = (config.num_layers - num_dense) * config.num_experts
    counts: Counter[tuple[int, int]] = Counter()
    for parts, count in (
        (_attention_parts(config), config.num_layers),
        (_feed_forward_parts(config, config.intermediate_size), num_dense),
        (_feed_forward_parts(config, config.expert_size), num_experts),
    ):
        rows: Counter[str] = Counter()
        columns = {}
        for part in parts:
            if len(part.shape) == 2 and count:
                rows[part.parameter] += part.shape[0]
                columns[part.parameter] = part.shape[1]
        for parameter, num_rows in rows.items():
            counts[num_rows, columns[parameter]] += count
    return counts


def _num_values(parts: Iterable[Part]) -> int:
    return sum(prod(part.shape) + (part.shape[0] if part.bias else 0) for part in parts)


def _all_places(config: ModelConfig, table: Table) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for part in _outer_parts(config):
        prefix = "" if part.name == "head" else table.prefix
        places |= _places(part, prefix + table.names[part.name], _change(part, config, table))
    for layer in range(config.num_layers):
        prefix = table.prefix + table.layer.format(layer)
        for part in _layer_parts(config, layer, table.names):
            ours = part._replace(parameter=f"blocks.{layer}.{part.parameter}")
            stem = prefix + table.names[part.name].format(part.expert)
            places |= _places(ours, stem, _change(part, config, table))
    return places


def _places(part: Part, stem: str, change: Change | None) -> Iterator[tuple[str, Place]]:
    shape = part.shape[::-1] if change == TRANSPOSE else part.shape
    yield f"{stem}.weight", Place(f"{part.parameter}.weight", shape, part.first_row, change)
    if part.bias:
        change = None if change == TRANSPOSE else change
        yield (
            f"{stem}.bias",
            Place(f"{part.parameter}.bias", part.shape[:1], part.first_row, change),
        )


def _change(part: Part, config: ModelConfig, table: Table) -> Change | None:
    if part.name in ("embedding", "positions", "head"):
        return None
    if len(part.shape) == 1:
        return ADD_ONE if table.norms_less_one else None
    if table.transposed:
        return TRANSPOSE
    if table.grouped and part.name == "qkv":
        return Change("ungroup", config.num_kv_heads, config.head_dim)
    if table.interleaved and part.name in ("q", "k"):
        return Change("half split", part.shape[0] // config.head_dim, config.head_dim)
    return None


def _outer_parts(config: ModelConfig) -> Iterator[Part]:
    W, V = config.hidden_size, config.vocab_size
    yield Part("embedding", "embedding", (V, W))
    if config.positions == "learned":
        yield Part("positions", "positions", (config.num_positions, W))
    if config.residual != "sum":  # there, the last block ends with a norm
        yield Part("norm", "norm", (W,), bias=config.norm_bias)
    if not config.tied_head:
        yield Part("head", "head", (V, W))


def _layer_parts(config: ModelConfig, layer: int, names: Container[str]) -> Iterator[Part]:
    """names: whether a family's files hold the parts of qkv and gate_up apart."""
    yield from _norm_parts(config)
    yield from _attention_parts(config, names)
    if not config.num_experts or layer in config.dense_layers:
        yield from _feed_forward_parts(config, config.intermediate_size, names)
        return
    yield Part("router", "feed_forward.router", (config.num_experts, config.hidden_size))
    for expert in range(config.num_experts):
        for part in _feed_forward_parts(config, config.expert_size):
            inside = part.parameter.removeprefix("feed_forward.")
            yield part._replace(
                name=f"expert.{part.name}",
                parameter=f"feed_forward.experts.{expert}.{inside}",
                expert=expert,
            )


def _norm_parts(config: ModelConfig) -> Iterator[Part]:
    for name in NORMS[config.residual]:
        if name != "feed_forward_norm" or config.parallel != "one norm":
            yield Part(name, name, (config.hidden_size,), bias=config.norm_bias)


def _attention_parts(config: ModelConfig, names: Container[str] = ()) -> Iterator[Part]:
    W, D, bias = config.hidden_size, config.head_dim, config.qkv_bias
    HD, KD, qkv = config.num_heads * D, config.num_kv_heads * D, "attention.qkv"
    if "qkv" in names:
        yield Part("qkv", qkv, (HD + 2 * KD, W), bias=bias)
    else:
        yield Part("q", qkv, (HD, W), bias=bias)
        yield Part("k", qkv, (KD, W), first_row=HD, bias=bias)
        yield Part("v", qkv, (KD, W), first_row=HD + KD, bias=bias)
    if config.qk_norm != "none":
        whole = config.qk_norm == "width"
        yield Part("q_norm", "attention.q_norm", (HD if whole else D,))
        yield Part("k_norm", "attention.k_norm", (KD if whole else D,))
    yield Part("output", "attention.output", (W, HD), bias=config.output_bias)


def _feed_forward_parts(
    config: ModelConfig, size: int, names: Container[str] = ()
) -> Iterator[Part]:
    W, F, bias = config.hidden_size, size, config.feed_forward_bias
    gate_up = "feed_forward.gate_up"
    if "gate_up" in names:
        yield Part("gate_up", gate_up, (2 * F, W), bias=bias)
    elif config.gated:
        yield Part("gate", gate_up, (F, W), bias=bias)
        yield Part("up", gate_up, (F, W), first_row=F, bias=bias)
    else:
        yield Part("up", "feed_forward.up", (F, W), bias=bias)
    yield Part("down", "feed_forward.down", (W, F), bias=bias)

"""The Transformer of 2017 as a configuration, against PyTorch's own layers under a causal mask.

"Attention Is All You Need" (arXiv:1706.03762): sinusoids added to scaled embeddings, as many heads
of keys as of queries, norms behind the sums, ReLU between two layers with biases.
"""

import math
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from model import transformer
from model.batch import Row
from model.config import ModelConfig
from model.packing import pack
from model.transformer import Transformer
from tests.tiny_llama import CONFIG as LLAMA, empty_cache, random_transformer

CONFIG = ModelConfig(
    family="transformer",
    vocab_size=50,
    hidden_size=24,
    intermediate_size=40,
    num_layers=3,
    num_heads=4,
    num_kv_heads=4,
    head_dim=6,
    context_len=64,
    norm_eps=1e-5,
    rope_theta=1.0,
    rope_scaling=None,
    tied_head=True,
    positions="sinusoidal",
    embedding_scale=math.sqrt(24),
    norm="layer",
    norm_bias=True,
    residual="sum",
    activation="relu",
    gated=False,
    feed_forward_bias=True,
    qkv_bias=True,
    output_bias=True,
)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], list(range(40))]


def random_model() -> Transformer:
    torch.manual_seed(2)
    model = Transformer(CONFIG).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def as_pytorch_has_them(model: Transformer) -> nn.ModuleList:
    """The same weights in layers of torch.nn."""
    layers = nn.ModuleList()
    for block in model.blocks:
        layer = nn.TransformerEncoderLayer(
            *(CONFIG.hidden_size, CONFIG.num_heads, CONFIG.intermediate_size),
            dropout=0.0,
            batch_first=True,
            dtype=torch.float64,
        )
        ours = block.state_dict()
        names = {
            "self_attn.in_proj_": "attention.qkv.",
            "self_attn.out_proj.": "attention.output.",
            "linear1.": "feed_forward.up.",
            "linear2.": "feed_forward.down.",
            "norm1.": "attention_post_norm.",
            "norm2.": "feed_forward_post_norm.",
        }
        weights = {f"{t}{k}": ours[f"{o}{k}"] for t, o in names.items() for k in ("weight", "bias")}
        layer.load_state_dict(weights)
        layers.append(layer.eval())
    return layers


def positions_by_the_paper(length: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same."""
    width = CONFIG.hidden_size
    table = torch.empty(length, width, dtype=torch.float64)
    for position in range(length):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            table[position, 2 * i], table[position, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


@torch.no_grad()
def their_logits(model: Transformer, ids: list[int]) -> Tensor:
    embedded = model.embedding.weight[ids] * math.sqrt(CONFIG.hidden_size)
    x = (embedded + positions_by_the_paper(len(ids)))[None]
    causal = nn.Transformer.generate_square_subsequent_mask(len(ids), dtype=torch.float64)
    for layer in as_pytorch_has_them(model):
        x = layer(x, src_mask=causal, is_causal=True)
    return x[0] @ model.head.weight.T


@torch.no_grad()
def test_it_is_pytorch_s_own_encoder_under_a_causal_mask() -> None:
    model = random_model()
    rows = [Row(ids, 0, range(4 * i, 4 * i + 4), None) for i, ids in enumerate(PROMPTS)]
    batch = pack(rows, page_size=16)
    cache = empty_cache(model, num_pages=12)
    logits = model(batch, cache, output_rows_S=torch.arange(len(batch.token_ids_T)))
    for ours, ids in zip(torch.split(logits, list(map(len, PROMPTS))), PROMPTS, strict=True):
        # The angles are float32, as those of rotary positions.
        torch.testing.assert_close(ours, their_logits(model, ids), atol=1e-4, rtol=1e-4)


def test_the_guide_to_the_paper_names_what_is_there() -> None:
    document = transformer.__doc__ or ""
    guide = document.split("is made of:")[1].split("Shapes:")[0]
    parts = re.findall(r"^ {4}[a-z &,-]+?  +([A-Z]\w+)(?:\.(\w+))?", guide, re.MULTILINE)
    assert len(parts) == 6
    model = random_model()
    for class_name, member in parts:
        found = getattr(transformer, class_name)
        assert not member or hasattr(found, member) or hasattr(model, member)


@pytest.mark.parametrize("unrotated", [True, False])
@torch.no_grad()
def test_without_positions_the_order_of_what_came_before_is_nothing(unrotated: bool) -> None:
    """To one layer, a token without positions sees a set."""
    layers = frozenset({0}) if unrotated else frozenset[int]()
    config = replace(LLAMA, num_layers=1, unrotated_layers=layers)
    model = random_transformer(config, dtype=torch.float64)
    last_logits = []
    for ids in ([3, 1, 4, 15, 9], [15, 4, 3, 1, 9]):
        batch = pack([Row(ids, 0, [0], None)], page_size=16)
        cache = empty_cache(model, num_pages=1)
        last_logits.append(model(batch, cache, output_rows_S=torch.tensor([4])))
    assert torch.allclose(*last_logits) == unrotated

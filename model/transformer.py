"""The model, in reading order: embedding, blocks of attention and feed-forward, norm, head.

Inference only, over a ragged batch whose keys and values go to a paged cache. Knows no rows,
sampling or files; what differs between models is in ModelConfig.

Shapes: T packed tokens, S rows of the output, W model width, H query heads, K key-value heads,
J = 2K (keys' heads, then values'), D head dimension, F feed-forward width, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from model.attention.reference import Plan, attend, prepare
from model.config import ModelConfig
from model.kv_cache import KVCache, LayerCache
from model.packing import RaggedBatch
from model.rope import Rotation, inverse_frequencies, rotate_, rotation_at


class Step(NamedTuple):
    """What all layers of one forward pass share."""

    rotation: Rotation
    page_ids_T: Tensor
    offsets_T: Tensor
    plan: Plan


class Transformer(nn.Module):
    frequency: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.head = _linear(config.hidden_size, config.vocab_size)
        self.register_buffer("frequency", inverse_frequencies(config), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    def forward(self, batch: RaggedBatch, cache: KVCache, *, output_rows_S: Tensor) -> Tensor:
        """The logits of the tokens that follow those at `output_rows_S` of the packed batch."""
        return self.logits(self.hidden(batch, cache)[output_rows_S])

    def hidden(self, batch: RaggedBatch, cache: KVCache) -> Tensor:
        """What the last block makes of each token: x_TW, before the norm."""
        step = self._step(batch)
        x_TW = self.embedding(batch.token_ids_T)
        for block, layer_cache in zip(self.blocks, cache.layers, strict=True):
            x_TW = block(x_TW, layer_cache, step)
        return x_TW

    def logits(self, x_SW: Tensor) -> Tensor:
        return self.head(self.norm(x_SW))

    def _step(self, batch: RaggedBatch) -> Step:
        return Step(
            rotation_at(batch.positions_T, self.frequency, dtype=self.dtype),
            batch.page_ids_T,
            batch.offsets_T,
            prepare(batch, num_kv_heads=self.config.num_kv_heads, dtype=self.dtype),
        )


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x_TW: Tensor, cache: LayerCache, step: Step) -> Tensor:
        x_TW = x_TW + self.attention(self.attention_norm(x_TW), cache, step)
        return x_TW + self.feed_forward(self.feed_forward_norm(x_TW))


class Attention(nn.Module):
    """Each of the K key-value heads serves H/K query heads (arXiv:2305.13245)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        width = config.num_heads * config.head_dim
        self.qkv = _linear(config.hidden_size, width + 2 * config.num_kv_heads * config.head_dim)
        self.output = _linear(width, config.hidden_size)

    def forward(self, x_TW: Tensor, cache: LayerCache, step: Step) -> Tensor:
        #   qkv: │ queries: H │ keys: K │ values: K │ heads
        #        └─── are rotated ──────┘
        #                     └─── are cached ───────┘
        qkv = self.qkv(x_TW).unflatten(1, (-1, self.head_dim))
        rotate_(qkv[:, : self.num_heads + self.num_kv_heads], step.rotation)
        q_THD, kv_TJD = qkv.split((self.num_heads, 2 * self.num_kv_heads), dim=1)
        cache.write(kv_TJD, page_ids_T=step.page_ids_T, offsets_T=step.offsets_T)
        return self.output(attend(q_THD, cache, step.plan).flatten(1))


class FeedForward(nn.Module):
    """SwiGLU: one half of the hidden layer gates the other (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = _linear(config.hidden_size, 2 * config.intermediate_size)
        self.down = _linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_TW: Tensor) -> Tensor:
        gate_TF, up_TF = self.gate_up(x_TW).chunk(2, dim=1)
        return self.down(silu(gate_TF) * up_TF)


def _linear(num_inputs: int, num_outputs: int) -> nn.Linear:
    return nn.Linear(num_inputs, num_outputs, bias=False)

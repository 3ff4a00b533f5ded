"""The model, in reading order: embedding, blocks of attention and feed-forward, norm, head.

Inference only, over a ragged batch whose keys and values go to a paged cache. Knows no rows,
sampling or files; what differs between models is in ModelConfig.

Where the parts are that the first Transformer (arXiv:1706.03762, figure 1) is made of:

    embedding               Transformer.embedding
    positional encoding     Transformer._embedded; rotations are in Attention
    multi-head attention    Attention; scaled dot product and masks: model.attention, model.masks
    add & norm              Block._added
    feed forward            FeedForward
    linear, softmax         Transformer.head; the softmax comes with drawing: model.sampling

Shapes: T packed tokens, S rows of the output, W model width, H query heads, K key-value heads,
J = 2K (keys' heads, then values'), D head dimension, F feed-forward width, V vocabulary,
E experts, A active ones.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.fused import ACTIVATIONS
from model.kernels import PLAIN, Kernels
from model.kv_cache import KVCache, LayerCache
from model.packing import RaggedBatch
from model.parallel import ALONE, Ranks, SplitEmbedding, share
from model.rope import (
    Rotation,
    inverse_frequencies,
    plain_frequencies,
    rotation_at,
    sinusoids,
)

NO_NORM = nn.Identity()


class View(NamedTuple):
    """What all layers that see as far share: the whole context, or a window of it."""

    rotation: Rotation
    plan: Any
    """For the backend of attention that made it."""


class Step(NamedTuple):
    """What all layers of one forward pass share."""

    views: dict[bool, View]
    """By whether it is local, as far as there are layers of that kind."""
    page_ids_T: Tensor
    offsets_T: Tensor


class Transformer(nn.Module):
    frequency: Tensor
    local_frequency: Tensor
    """Of layers that see a window, where it is another."""

    def __init__(self, config: ModelConfig, kernels: Kernels = PLAIN, ranks: Ranks = ALONE) -> None:
        """config: of the whole model; `self.config` is of this rank's share."""
        super().__init__()
        config = share(config, ranks)
        self.config, self.kernels, self.ranks = config, kernels, ranks
        self.embedding = SplitEmbedding(config, ranks)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.num_positions, config.hidden_size)
        self.blocks = nn.ModuleList(
            Block(config, layer, kernels, ranks) for layer in range(config.num_layers)
        )
        self.norm = nn.Identity() if config.residual == "sum" else _norm(config)
        num_rows = self.embedding.num_embeddings
        self.head = nn.Linear(config.hidden_size, num_rows, bias=False)
        self.register_buffer("frequency", inverse_frequencies(config), persistent=False)
        if config.local_rope_theta is not None:
            local = plain_frequencies(config.rotary_dim, config.local_rope_theta)
            self.register_buffer("local_frequency", local, persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    def forward(self, batch: RaggedBatch, cache: KVCache, *, output_rows_S: Tensor) -> Tensor:
        """The logits of the tokens that follow those at `output_rows_S` of the packed batch."""
        return self.logits(self.hidden(batch, cache)[output_rows_S])

    def hidden(self, batch: RaggedBatch, cache: KVCache) -> Tensor:
        """What the last block makes of each token: x_TW, before the norm."""
        step = self._step(batch)
        x_TW = self._embedded(batch.token_ids_T, batch.positions_T)
        for block, layer_cache in zip(self.blocks, cache.layers, strict=True):
            x_TW = block(x_TW, layer_cache, step)
        return x_TW

    def logits(self, x_SW: Tensor) -> Tensor:
        logits_SV = self.head(self.norm(x_SW))
        logits_SV = self.ranks.gathered(logits_SV, vocab_size=self.config.vocab_size)
        if self.config.logit_scale != 1:
            logits_SV = logits_SV * self.config.logit_scale
        if (softcap := self.config.logit_softcap) is not None:
            logits_SV = softcap * torch.tanh(logits_SV / softcap)
        return logits_SV

    def _embedded(self, token_ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """The tokens and, unless rotations tell them, their positions."""
        x_TW = self.embedding(token_ids_T)
        if self.config.embedding_scale != 1:
            x_TW = x_TW * self.config.embedding_scale
        match self.config.positions:
            case "learned":
                return x_TW + self.positions(positions_T)
            case "sinusoidal":
                return x_TW + sinusoids(positions_T, self.config.hidden_size, dtype=self.dtype)
            case _:
                return x_TW

    def _step(self, batch: RaggedBatch) -> Step:
        num_local = len(self.config.local_layers)
        kinds = [num_local > 0] if num_local in (0, self.config.num_layers) else [False, True]
        views = {is_local: self._view(batch, is_local=is_local) for is_local in kinds}
        return Step(views, batch.page_ids_T, batch.offsets_T)

    def _view(self, batch: RaggedBatch, *, is_local: bool) -> View:
        config, dtype = self.config, self.dtype
        has_own_theta = is_local and config.local_rope_theta is not None
        frequency_F = self.local_frequency if has_own_theta else self.frequency
        scale = 1.0 if has_own_theta else config.rotation_scale
        window = config.sliding_window if is_local else None
        return View(
            rotation_at(batch.positions_T, frequency_F, dtype=dtype, scale=scale),
            self.kernels.attention.prepare(
                batch,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                dtype=dtype,
                window=window,
            ),
        )


class Block(nn.Module):
    """Two branches, each added to what goes in, one after the other or side by side.

    Norms stand where the family has them:

    pre        x + f(norm(x))           Llama, GPT-2
    sandwich   x + norm'(f(norm(x)))    Gemma 2
    post       x + norm'(f(x))          OLMo 2
    sum        norm'(x + f(x))          the first Transformer (arXiv:1706.03762), GPT
    """

    def __init__(self, config: ModelConfig, layer: int, kernels: Kernels, ranks: Ranks) -> None:
        super().__init__()
        self.fused, self.ranks = kernels.fused, ranks
        self.residual_scale, self.norms_the_sum = config.residual_scale, config.residual == "sum"
        self.parallel = config.parallel
        before, behind = config.residual in ("pre", "sandwich"), config.residual != "pre"
        self.attention_norm = _norm(config) if before else nn.Identity()
        self.attention = Attention(config, layer, kernels)
        self.attention_post_norm = _norm(config) if behind else nn.Identity()
        own_norm = before and config.parallel != "one norm"
        self.feed_forward_norm = _norm(config) if own_norm else nn.Identity()
        is_routed = config.num_experts > 0 and layer not in config.dense_layers
        self.feed_forward = (
            RoutedFeedForward(config, kernels)
            if is_routed
            else FeedForward(config, kernels, config.intermediate_size)
        )
        self.feed_forward_post_norm = _norm(config) if behind else nn.Identity()

    def forward(self, x_TW: Tensor, cache: LayerCache, step: Step) -> Tensor:
        normed_TW = self.attention_norm(x_TW)
        attended_TW = self.attention(normed_TW, cache, step)
        if self.parallel != "no":
            if self.parallel == "two norms":
                normed_TW = self.feed_forward_norm(x_TW)
            return x_TW + self.ranks.sum_(attended_TW + self.feed_forward(normed_TW))
        x_TW, normed_TW = self._added(
            x_TW, attended_TW, self.attention_post_norm, next_norm=self.feed_forward_norm
        )
        thought_TW = self.feed_forward(normed_TW)
        return self._added(x_TW, thought_TW, self.feed_forward_post_norm)[0]

    def _added(
        self,
        x_TW: Tensor,
        branch_TW: Tensor,
        post_norm: nn.Module,
        next_norm: nn.Module = NO_NORM,
    ) -> tuple[Tensor, Tensor]:
        """What comes out of a branch, and what the next one gets of that."""
        branch_TW = self.ranks.sum_(branch_TW)
        if self.norms_the_sum:
            x_TW = post_norm(x_TW + branch_TW)
            return x_TW, next_norm(x_TW)
        branch_TW = post_norm(branch_TW)
        if self.residual_scale != 1:
            branch_TW = branch_TW * self.residual_scale
        return self.fused.add_norm(x_TW, branch_TW, next_norm)


class Attention(nn.Module):
    """Each of the K key-value heads serves H/K query heads (arXiv:2305.13245)."""

    def __init__(self, config: ModelConfig, layer: int, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim, self.rotary_dim = config.head_dim, config.rotary_dim
        self.scale, self.softcap = config.attention_scale, config.attention_softcap
        self.is_local = layer in config.local_layers
        self.is_rotated = config.positions == "rotary" and layer not in config.unrotated_layers
        width, kv_width = config.num_heads * self.head_dim, config.num_kv_heads * self.head_dim
        self.qkv = nn.Linear(config.hidden_size, width + 2 * kv_width, bias=config.qkv_bias)
        self.output = nn.Linear(width, config.hidden_size, bias=config.output_bias)
        self.qk_norm = config.qk_norm
        if config.qk_norm != "none":
            whole = config.qk_norm == "width"
            self.q_norm = _rms_norm(config, width if whole else self.head_dim)
            self.k_norm = _rms_norm(config, kv_width if whole else self.head_dim)

    def forward(self, x_TW: Tensor, cache: LayerCache, step: Step) -> Tensor:
        view = step.views[self.is_local]
        qkv = self.qkv(x_TW).unflatten(1, (-1, self.head_dim))
        if self.qk_norm != "none":
            self._norm_(qkv)
        q_THD = self.kernels.fused.rotate_and_cache(
            qkv,
            view.rotation if self.is_rotated else None,
            cache,
            num_heads=self.num_heads,
            page_ids_T=step.page_ids_T,
            offsets_T=step.offsets_T,
        )
        out_THD = self.kernels.attention.attend(
            q_THD, cache, view.plan, scale=self.scale, softcap=self.softcap
        )
        return self.output(out_THD.flatten(1))

    def _norm_(self, qkv: Tensor) -> None:
        """Queries and keys: each head by itself, or all heads of a token together."""
        heads = qkv[:, : self.num_heads], qkv[:, self.num_heads : -self.num_kv_heads]
        for x_THD, norm in zip(heads, (self.q_norm, self.k_norm), strict=True):
            normed = norm(x_THD.flatten(1) if self.qk_norm == "width" else x_THD)
            x_THD.copy_(normed.view_as(x_THD))


class FeedForward(nn.Module):
    """Two layers, or SwiGLU and its like: one half of the hidden layer gates the other
    (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig, kernels: Kernels, size: int) -> None:
        super().__init__()
        self.fused, self.activation = kernels.fused, config.activation
        bias, self.is_gated = config.feed_forward_bias, config.gated
        if config.gated:
            self.gate_up = nn.Linear(config.hidden_size, 2 * size, bias=bias)
        else:
            self.up = nn.Linear(config.hidden_size, size, bias=bias)
        self.down = nn.Linear(size, config.hidden_size, bias=bias)

    def forward(self, x_TW: Tensor) -> Tensor:
        if self.is_gated:
            return self.down(self.fused.gate(self.gate_up(x_TW), self.activation))
        return self.down(ACTIVATIONS[self.activation](self.up(x_TW)))


class RoutedFeedForward(nn.Module):
    """A router sends each token to the A of the E experts that it finds best (arXiv:2401.04088)."""

    def __init__(self, config: ModelConfig, kernels: Kernels) -> None:
        super().__init__()
        self.num_active, self.normalizes = config.num_active_experts, config.normalize_experts
        self.router = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = nn.ModuleList(
            FeedForward(config, kernels, config.expert_size) for _ in range(config.num_experts)
        )

    def forward(self, x_TW: Tensor) -> Tensor:
        """Expert by expert, so that a token's sum has one order whatever tokens are beside it."""
        weights_TE = self.router(x_TW).softmax(-1)
        weights_TA, experts_TA = weights_TE.topk(self.num_active)
        if self.normalizes:
            weights_TA = weights_TA / weights_TA.sum(-1, keepdim=True)
        out_TW = torch.zeros_like(x_TW)
        for expert in experts_TA.unique().tolist():
            tokens, ranks = (experts_TA == expert).nonzero(as_tuple=True)
            thought = self.experts[expert](x_TW[tokens])
            out_TW.index_add_(0, tokens, thought * weights_TA[tokens, ranks, None])
        return out_TW


def _norm(config: ModelConfig) -> nn.Module:
    if config.norm == "layer":
        return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)
    return _rms_norm(config, config.hidden_size)


def _rms_norm(config: ModelConfig, width: int) -> nn.RMSNorm:
    return nn.RMSNorm(width, eps=config.norm_eps)

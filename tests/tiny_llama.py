"""Small random Llama models, ours and transformers', for tests that need numbers but no words."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from model.config import ModelConfig
from model.kv_cache import KVCache
from model.transformer import Transformer

CONFIG = ModelConfig(
    vocab_size=96,
    hidden_size=24,
    intermediate_size=40,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    context_len=256,
    norm_eps=1e-5,
    rope_theta=1000.0,
    rope_scaling=None,
    tied_head=True,
)


def random_transformer(config: ModelConfig = CONFIG, *, dtype: torch.dtype) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(config).to(dtype)
    for parameter in model.parameters():
        # Wide enough that attention is far from uniform and logits are far apart.
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def empty_cache(model: Transformer, *, num_pages: int) -> KVCache:
    return KVCache.allocate(model.config, num_pages=num_pages, page_size=16, dtype=model.dtype)


def transformers_llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=CONFIG.vocab_size,
        hidden_size=CONFIG.hidden_size,
        intermediate_size=CONFIG.intermediate_size,
        num_hidden_layers=CONFIG.num_layers,
        num_attention_heads=CONFIG.num_heads,
        num_key_value_heads=CONFIG.num_kv_heads,
        head_dim=CONFIG.head_dim,
        max_position_embeddings=CONFIG.context_len,
        initializer_range=0.3,
        **changes,
    )
    return LlamaForCausalLM(config)

"""What a model takes in memory, its weights and the pages of its cache, by either way of computing.

Integers from the config alone. Imports no torch, so that whoever only asks needn't.
"""

from model.config import ModelConfig
from model.native.library import BLOCK, PAGE_SIZE
from model.weights.names import num_parameters

FLOAT32_BYTES, BFLOAT16_BYTES, INT8_BYTES = 4, 2, 1


def float32_weight_bytes(config: ModelConfig) -> int:
    """While a head is packed it is there twice; a tied one stays twice."""
    return (num_parameters(config) + _num_head_values(config)) * FLOAT32_BYTES


def native_weight_bytes(config: ModelConfig) -> int:
    """At most: with an embedding of float32, which a file's blocks spare, and a head besides."""
    head = _num_head_values(config) * (INT8_BYTES + FLOAT32_BYTES)
    return num_parameters(config) * INT8_BYTES + head


def float32_page_bytes(config: ModelConfig, *, page_size: int) -> int:
    """Of one page in all layers together."""
    return page_size * _num_cached_values(config, config.head_dim) * FLOAT32_BYTES


def native_page_bytes(config: ModelConfig) -> int:
    """The same, with heads padded to whole vectors."""
    head_dim = -(-config.head_dim // BLOCK) * BLOCK
    return PAGE_SIZE * _num_cached_values(config, head_dim) * BFLOAT16_BYTES


def _num_head_values(config: ModelConfig) -> int:
    return config.vocab_size * config.hidden_size


def _num_cached_values(config: ModelConfig, head_dim: int) -> int:
    """Of a token: keys and values."""
    return config.num_layers * 2 * config.num_kv_heads * head_dim

"""The default model as transformers reads and computes it, in float32."""

import functools
from pathlib import Path

import gguf
import pytest
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def load_by_transformers(path: Path) -> LlamaForCausalLM:
    """What from_pretrained(…, gguf_file=…) does, which also wants the package accelerate."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        )
    )
    with pytest.MonkeyPatch.context() as patch:  # it would make the same map 397 times
        patch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
        checkpoint = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)
    outcome = model.load_state_dict(checkpoint["tensors"], strict=False)
    assert outcome.missing_keys == ["lm_head.weight"]  # tied
    assert not outcome.unexpected_keys
    return model

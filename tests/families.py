"""Small random models of every family as transformers makes them, for tests that compare with it.

Each is made from transformers' own config class, with what makes its family different turned on.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 11
"""Shorter than the prompts, so that it matters."""
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
}
YARN = {
    **{"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0},
    "original_max_position_embeddings": 32,
}
YARN_WEIGHED = YARN | {"mscale": 0.7, "mscale_all_dim": 0.4, "beta_fast": 8.0, "truncate": False}
SHORT_FACTORS, LONG_FACTORS = [1.0, 1.1, 1.3, 1.6], [1.0, 2.5, 4.0, 9.0]
LONGROPE = {
    **{"rope_type": "longrope", "rope_theta": 1000.0},
    **{"short_factor": SHORT_FACTORS, "long_factor": LONG_FACTORS},
}
PHI_LONG = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}


@dataclass(frozen=True, slots=True)
class Kind:
    """A variant of a family."""

    family: str
    """The prefix of transformers' classes."""
    changes: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=lambda: SIZES)
    config: str = ""
    served_len: int | None = None
    """Of the context, where the rotations depend on it."""
    prompt_lens: tuple[int, ...] = (1, 37, 16, 50)
    model: str = ""

    def make(self, **changes: Any) -> PreTrainedModel:
        torch.manual_seed(3)
        config = self.describe(**changes)
        return _lively(getattr(transformers, self.architecture)(config)).eval()

    def describe(self, **changes: Any) -> PretrainedConfig:
        config_class = getattr(transformers, self.config or f"{self.family}Config")
        sizes = self.sizes | {"architectures": [self.architecture], "dtype": torch.float32}
        return config_class(**sizes | self.changes | changes)

    @property
    def architecture(self) -> str:
        return self.model or f"{self.family}ForCausalLM"


def _lively(model: PreTrainedModel) -> PreTrainedModel:
    """With weights wide enough that attention is far from uniform and logits are far apart; norms
    and biases far from what they begin as, so that one left out is seen."""
    for name, parameter in model.named_parameters():
        is_norm = "norm" in name or "ln_" in name
        torch.nn.init.normal_(parameter, mean=0.7 * is_norm, std=0.3)
    return model


KINDS = {
    "Llama": Kind("Llama"),
    "Llama with biases": Kind("Llama", {"attention_bias": True, "mlp_bias": True}),
    "Llama 3 scaling": Kind("Llama", {"rope_parameters": LLAMA3}),
    "linear scaling": Kind("Llama", {"rope_parameters": LINEAR}),
    "YaRN": Kind("Llama", {"rope_parameters": YARN}),
    "YaRN, weighed": Kind("Llama", {"rope_parameters": YARN_WEIGHED}),
    "Mistral": Kind("Mistral", {"sliding_window": WINDOW, "head_dim": 12}),
    "Mixtral": Kind("Mixtral", {"sliding_window": None, "num_local_experts": 5}),
    "Qwen2": Kind("Qwen2"),
    "Qwen2 with windows": Kind(
        "Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    ),
    "Qwen3": Kind("Qwen3", {"head_dim": 12}),
    "Qwen3-MoE": Kind(
        "Qwen3Moe",
        {
            **{"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20},
            **{"mlp_only_layers": [1], "norm_topk_prob": True, "head_dim": 12},
        },
    ),
    "Gemma": Kind("Gemma", {"head_dim": 12}),
    "Gemma 2": Kind(
        "Gemma2",
        {
            **{"head_dim": 12, "sliding_window": WINDOW, "query_pre_attn_scalar": 20},
            **{"final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0},
        },
    ),
    "Gemma 3": Kind(
        "Gemma3",
        {
            **{"head_dim": 12, "sliding_window": WINDOW, "query_pre_attn_scalar": 20},
            "sliding_window_pattern": 3,
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
        config="Gemma3TextConfig",
    ),
    "Phi-3": Kind("Phi3", {"sliding_window": WINDOW}),
    "Phi-3, long": Kind("Phi3", PHI_LONG, prompt_lens=(33, 50, 37)),
    "Phi-3, short": Kind("Phi3", PHI_LONG, served_len=32, prompt_lens=(1, 24, 17)),
    "Phi-4-mini": Kind(
        "Phi3",
        {
            **PHI_LONG | {"hidden_size": 64, "tie_word_embeddings": True},
            "rope_parameters": LONGROPE | {"partial_rotary_factor": 0.5},
        },
        prompt_lens=(33, 50, 37),
    ),
    "SmolLM3": Kind("SmolLM3", {"no_rope_layer_interval": 2}),
    "SmolLM3 with windows": Kind(
        "SmolLM3",
        {**{"no_rope_layer_interval": 2, "use_sliding_window": True}, "sliding_window": WINDOW},
    ),
    "OLMo 2": Kind("Olmo2"),
    "OLMo 3": Kind(
        "Olmo3",
        {
            **{"num_hidden_layers": 5, "sliding_window": WINDOW},
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
    ),
    "Granite": Kind(
        "Granite",
        {
            **{"embedding_multiplier": 3.0, "attention_multiplier": 0.2},
            **{"residual_multiplier": 0.6, "logits_scaling": 4.0},
        },
    ),
    "StableLM": Kind("StableLm", {"use_qkv_bias": True}),
    "StableLM, parallel": Kind("StableLm", {"use_parallel_residual": True}),
    "StarCoder2": Kind("Starcoder2", {"sliding_window": WINDOW}),
    "Cohere": Kind("Cohere", {"logit_scale": 0.3, "attention_bias": True}),
    "Cohere 2": Kind("Cohere2", {"num_hidden_layers": 5, "sliding_window": WINDOW}),
    "GPT-NeoX": Kind("GPTNeoX"),
    "GPT-NeoX, sequential": Kind("GPTNeoX", {"use_parallel_residual": False}),
    "Falcon 7B": Kind("Falcon", {"ffn_hidden_size": 48}),
    "Falcon 40B": Kind("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "Falcon, sequential": Kind(
        "Falcon", {"multi_query": False, "parallel_attn": False, "bias": True}
    ),
    "GPT-2": Kind("GPT2", sizes=GPT_SIZES, model="GPT2LMHeadModel"),
    "GPT": Kind("OpenAIGPT", sizes=GPT_SIZES, model="OpenAIGPTLMHeadModel"),
}

"""config.json → the fields of a ModelConfig: which family a folder is of, and who reads it.

Fields of transformers that only training looks at are none of ours.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from model.errors import ModelError
from model.families import gpts, llamas
from model.families.common import Values
from model.families.quantization import read_quantization
from model.fields import Fields


class Family(NamedTuple):
    name: str
    title: str
    read: Callable[[Fields], Values]


def describe(content: Mapping[str, Any]) -> Values:
    config = Fields(content, runs=_titles())
    architectures = config.words("architectures") or ["none"]
    family = FAMILIES.get(architectures[0])
    if family is None:
        raise ModelError(
            f"architectures is {config.get('architectures')!r}, which octavo can't run. "
            f"It runs {_titles()}"
        )
    values = family.read(config)
    return {"family": family.name, "quantization": read_quantization(config)} | values


def _titles() -> str:
    return ", ".join(dict.fromkeys(family.title for family in FAMILIES.values()))


FAMILIES = {
    "LlamaForCausalLM": Family("llama", "Llama", llamas.llama),
    "MistralForCausalLM": Family("mistral", "Mistral", llamas.mistral),
    "MixtralForCausalLM": Family("mixtral", "Mixtral", llamas.mixtral),
    "Qwen2ForCausalLM": Family("qwen2", "Qwen2", llamas.qwen2),
    "Qwen3ForCausalLM": Family("qwen3", "Qwen3", llamas.qwen3),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", "Qwen3-MoE", llamas.qwen3_moe),
    "GemmaForCausalLM": Family("gemma", "Gemma", llamas.gemma),
    "Gemma2ForCausalLM": Family("gemma2", "Gemma 2", llamas.gemma2),
    "Gemma3ForCausalLM": Family("gemma3", "Gemma 3", llamas.gemma3),
    "Gemma3ForConditionalGeneration": Family("gemma3", "Gemma 3", llamas.gemma3_with_images),
    "Phi3ForCausalLM": Family("phi3", "Phi-3", llamas.phi3),
    "SmolLM3ForCausalLM": Family("smollm3", "SmolLM3", llamas.smollm3),
    "Olmo2ForCausalLM": Family("olmo2", "OLMo 2", llamas.olmo2),
    "Olmo3ForCausalLM": Family("olmo3", "OLMo 3", llamas.olmo3),
    "GraniteForCausalLM": Family("granite", "Granite", llamas.granite),
    "StableLmForCausalLM": Family("stablelm", "StableLM", gpts.stablelm),
    "Starcoder2ForCausalLM": Family("starcoder2", "StarCoder2", gpts.starcoder2),
    "CohereForCausalLM": Family("cohere", "Cohere", gpts.cohere),
    "Cohere2ForCausalLM": Family("cohere2", "Cohere 2", gpts.cohere2),
    "GPTNeoXForCausalLM": Family("gpt_neox", "GPT-NeoX", gpts.gpt_neox),
    "FalconForCausalLM": Family("falcon", "Falcon", gpts.falcon),
    "GPT2LMHeadModel": Family("gpt2", "GPT-2", gpts.gpt2),
    "OpenAIGPTLMHeadModel": Family("openai-gpt", "GPT", gpts.openai_gpt),
}

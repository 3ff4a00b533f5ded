"""What scripts/gpu_check.py has computed: models by their shapes, and requests to them.

Knows nothing of devices and time.
"""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import torch

from model.batch import SamplingParams
from model.config import ModelConfig
from model.families.hugging_face import describe
from model.place import page_bytes
from model.weights.names import num_parameters
from service.engine.messages import Request

NUM_WARMING, WARMING_TOKENS = 32, 32
"""Requests, and tokens of each: enough for a prompt step of the largest size, and for more steps
than there are sizes of graphs."""

Content = dict[str, Any]
"""Of a config.json."""

LLAMA = {
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
QWEN3 = LLAMA | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
}
SMOLLM2 = LLAMA | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000,
}
TINY = {
    "vocab_size": 320,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


class Shape(NamedTuple):
    name: str
    content: Content

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(**describe(self.content))


class Way(NamedTuple):
    graphs: bool
    overlap: bool


WAYS = tuple(Way(graphs, overlap) for graphs in (True, False) for overlap in (True, False))
"""The first one is how octavo does it unless told otherwise."""


class Scale(NamedTuple):
    shapes: tuple[Shape, ...]
    """The protocol goes over HTTP to the first one."""
    ways: tuple[Way, ...]
    """Of all but the protocol offline, which goes every way."""
    num_requests: int
    lengths: tuple[int, int]
    greatest_id: int
    num_decodes: tuple[int, ...]
    decode_len: int
    num_prompts: int
    prompt_lens: tuple[int, ...]
    max_batch_tokens: int


FULL = Scale(
    shapes=(Shape("Qwen3-0.6B", QWEN3), Shape("SmolLM2-135M", SMOLLM2)),
    ways=WAYS,
    num_requests=256,
    lengths=(100, 1024),
    greatest_id=10_000,
    num_decodes=(1, 8, 64, 256),
    decode_len=512,
    num_prompts=4,
    prompt_lens=(128, 1024, 4000),
    max_batch_tokens=16_384,
)
DRY = Scale(
    shapes=(Shape("Qwen3-0.6B, tiny", QWEN3 | TINY),),
    ways=(WAYS[0], WAYS[-1]),
    num_requests=2,
    lengths=(2, 3),
    greatest_id=TINY["vocab_size"] - 1,
    num_decodes=(1,),
    decode_len=2,
    num_prompts=1,
    prompt_lens=(3,),
    max_batch_tokens=32,
)


class Load(NamedTuple):
    name: str
    requests: list[Request]

    @property
    def num_tokens(self) -> int:
        """To generate."""
        return sum(request.max_tokens for request in self.requests)

    @property
    def num_read(self) -> int:
        """Cached tokens that all steps together read at the least: each token's whole context."""
        return sum(
            r.max_tokens * len(r.prompt_ids) + r.max_tokens * (r.max_tokens - 1) // 2
            for r in self.requests
        )

    @property
    def longest(self) -> int:
        return max(len(request.prompt_ids) + request.max_tokens for request in self.requests)

    @property
    def warming(self) -> list[Request]:
        """Some of its requests, shortened, whose prompts have nothing in common with it."""
        return [
            Request(
                id=f"warming {request.id}",
                prompt_ids=request.prompt_ids[::-1],
                max_tokens=min(request.max_tokens, WARMING_TOKENS),
                sampling=request.sampling,
            )
            for request in self.requests[:NUM_WARMING]
        ]

    def num_bytes(self, config: ModelConfig, dtype: torch.dtype, *, num_steps: int) -> int:
        """What these steps must read at the least: weights each time, and contexts."""
        a_token = page_bytes(config, page_size=1, cache_dtype=dtype)
        return num_steps * num_parameters(config) * dtype.itemsize + self.num_read * a_token


def protocol(scale: Scale) -> Load:
    """nano-vllm's, down to the ids (https://github.com/GeeeekExplorer/nano-vllm, bench.py): at full
    scale 142,827 prompt tokens and 133,966 to generate."""
    draw = Random(0)
    prompts = [
        [draw.randint(0, scale.greatest_id) for _ in range(draw.randint(*scale.lengths))]
        for _ in range(scale.num_requests)
    ]
    requests = [_request(i, ids, draw.randint(*scale.lengths)) for i, ids in enumerate(prompts)]
    return Load(f"protocol, {scale.num_requests}", requests)


def other_loads(scale: Scale) -> Iterator[Load]:
    for num in scale.num_decodes:
        yield _alike(f"decode, {num}", scale, num, prompt_len=16, max_tokens=scale.decode_len)
    for length in scale.prompt_lens:
        name, num = f"prefill, {length}", scale.num_prompts
        yield _alike(name, scale, num, prompt_len=length, max_tokens=1)


def _alike(name: str, scale: Scale, num: int, *, prompt_len: int, max_tokens: int) -> Load:
    draw = Random(name)
    prompts = [[draw.randint(0, scale.greatest_id) for _ in range(prompt_len)] for _ in range(num)]
    return Load(name, [_request(i, ids, max_tokens) for i, ids in enumerate(prompts)])


def _request(number: int, prompt_ids: list[int], max_tokens: int) -> Request:
    sampling = SamplingParams(temperature=0.6, seed=number)
    return Request(id=str(number), prompt_ids=prompt_ids, max_tokens=max_tokens, sampling=sampling)

"""Folders as they come: configs older than transformers 5, halves, shards, bare models."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.config import ModelConfig
from model.errors import ModelError
from model.families.hugging_face import describe
from model.fields import Fields
from model.weights.names import num_parameters
from tests.families import KINDS, LINEAR, LONGROPE, SIZES, YARN
from tests.test_families import Pair, assert_same_logits, load, make_pair, some_ids

ROPE = ("rope_parameters",)
LAYERS = ("layer_types",)


@pytest.mark.parametrize(
    ("kind", "dropped", "older"),
    [
        ("linear scaling", ROPE, {"rope_theta": 1000.0, "rope_scaling": LINEAR}),
        ("Llama", ROPE, {}),
        ("Gemma 2", LAYERS, {}),
        (
            "Gemma 3",
            (*ROPE, *LAYERS),
            {
                **{"rope_theta": 1000.0, "rope_local_base_freq": 50.0},
                "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            },
        ),
        ("OLMo 3", LAYERS, {}),
        ("OLMo 3", ROPE, {"rope_theta": 1000.0, "rope_scaling": YARN}),
        ("Cohere 2", LAYERS, {}),
        ("GPT-NeoX", ROPE, {"rotary_pct": 0.25, "rotary_emb_base": 10_000}),
        ("GPT-NeoX", ROPE, {}),
        ("StableLM", ROPE, {"partial_rotary_factor": 0.25}),
        ("StableLM", ROPE, {}),
        ("Phi-3, long", ROPE, {"rope_theta": 1000.0, "rope_scaling": LONGROPE | {"type": "su"}}),
        ("Qwen2 with windows", LAYERS, {}),
        ("SmolLM3", ("no_rope_layers", *LAYERS), {}),
        ("SmolLM3 with windows", ("no_rope_layers", *LAYERS), {}),
        ("Mixtral", ROPE, {}),
        ("Falcon 7B", (*ROPE, "ffn_hidden_size"), {"ffn_hidden_size": 48}),
        ("GPT-2", ("n_inner", "layer_norm_epsilon"), {}),
        ("Qwen3-MoE", ("num_local_experts",), {"num_experts": 6}),
        ("Gemma", ("hidden_act",), {"hidden_act": "gelu"}),
    ],
)
def test_an_older_config_says_the_same(
    kind: str, dropped: tuple[str, ...], older: dict[str, Any]
) -> None:
    newer = KINDS[kind].describe().to_dict()
    kept = {name: value for name, value in newer.items() if name not in dropped}
    assert describe(kept | older) == describe(newer)


def test_a_window_as_long_as_the_context_is_none() -> None:
    config = KINDS["Mistral"].describe(sliding_window=SIZES["max_position_embeddings"])
    values = describe(config.to_dict())
    assert "sliding_window" not in values


def test_yarn_may_name_the_whole_context_or_the_original_one() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    older = KINDS["Llama"].describe().to_dict() | {"rope_parameters": None, "rope_scaling": yarn}
    for context_len in (32, 128):
        assert describe(older | {"max_position_embeddings": context_len})["context_len"] == 128
    without = {name: value for name, value in yarn.items() if name != "factor"}
    values = describe(older | {"rope_scaling": without, "max_position_embeddings": 64})
    assert values["rope_scaling"].factor == 2


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("Falcon 7B", {"alibi": True}, "alibi is True, but must be False. octavo runs Llama, Mist"),
        ("StableLM", {"qk_layernorm": True}, "qk_layernorm is True"),
        ("Gemma 2", {"hidden_activation": "silu_and"}, "hidden_activation is 'silu_and'"),
        ("Gemma", {"hidden_act": "silu"}, "hidden_act is 'silu', but must be 'gelu'"),
        ("Gemma 3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("Qwen3-MoE", {"use_sliding_window": True}, "use_sliding_window is True"),
        ("GPT-2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx is True"),
        ("GPT-2", {"add_cross_attention": True}, "add_cross_attention is True"),
        ("Cohere", {"use_qk_norm": True}, "use_qk_norm is True"),
        ("GPT", {"afn": "relu"}, "afn is 'relu'"),
        (
            "GPT-2",
            {"quantization_config": {"quant_method": "gptq"}},
            "quantization_config is .* must be absent",
        ),
        ("Gemma 2", {"layer_types": [1]}, r"layer_types is \[1\], but must be a list of words"),
    ],
)
def test_what_a_family_cannot_run_is_refused_by_name(
    kind: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        describe(KINDS[kind].describe().to_dict() | changes)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from(list(KINDS)), data=st.data())
def test_a_damaged_config_is_a_config_or_a_refusal(kind: str, data: st.DataObject) -> None:
    """Any exception but a ModelError fails the test."""
    content = described(kind)
    names = data.draw(st.lists(st.sampled_from(sorted(content)), min_size=1, max_size=3))
    damaged = content | {name: data.draw(json_values) for name in names}
    try:
        config = ModelConfig(**describe(damaged))
    except ModelError:
        return
    assert num_parameters(config) > 0


@cache
def described(kind: str) -> dict[str, Any]:
    return KINDS[kind].describe().to_dict()


def test_a_list_of_numbers_holds_numbers_alone() -> None:
    with pytest.raises(ModelError, match=r"x is \[True\], but must be a list of numbers"):
        Fields({"x": [True]}).numbers("x")


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["GPT-2", "GPT-NeoX", "Falcon 7B", "Qwen3"])
def test_a_bare_model_with_its_masks_is_read(kind: str, tmp_path: Path) -> None:
    """As the first files of GPT-2 and Pythia are: no prefix, and buffers beside the weights."""
    pair = make_pair(KINDS[kind], tmp_path)
    prefix = pair.theirs.base_model_prefix + "."

    def older(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        masks = {
            "h.0.attn.bias": torch.ones(1, 1, 4, 4),
            "h.0.attn.masked_bias": torch.ones(1),
            "layers.0.attention.bias": torch.ones(1, 1, 4, 4),
            "layers.0.attention.masked_bias": torch.ones(1),
            "layers.1.attention.rotary_emb.inv_freq": torch.ones(4),
        }
        return {name.removeprefix(prefix): t for name, t in tensors.items()} | masks

    rewrite(tmp_path, older)
    assert_same_logits(Pair(load(tmp_path), pair.theirs, pair.prompts))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_of_a_model_with_images_the_text_side_is_read(prefix: str, tmp_path: Path) -> None:
    pair = make_pair(KINDS["Gemma 3"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))

    def with_images(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        seen = {f"{part}.x": torch.ones(3) for part in ("vision_tower", "multi_modal_projector")}
        return {prefix + name.removeprefix("model."): t for name, t in tensors.items()} | seen

    rewrite(tmp_path, with_images)
    assert_same_logits(Pair(load(tmp_path), pair.theirs, pair.prompts))


def test_the_description_of_a_text_side_may_leave_out_sizes() -> None:
    """As that of gemma-3-4b-it does."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    rope = {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    values = describe(
        {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text | rope}
    )
    config = ModelConfig(**values)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.context_len, config.sliding_window) == (
        262_208,
        131_072,
        1024,
    )
    assert (config.rope_theta, config.local_rope_theta) == (1_000_000, 10_000)
    assert len(config.local_layers) == 29


@pytest.mark.parametrize("kind", ["Gemma 2", "GPT-2", "Mixtral"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_in_shards_are_computed_in_float32(
    kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    theirs = KINDS[kind].make().to(dtype)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    widened = type(theirs).from_pretrained(tmp_path, dtype=torch.float32)
    assert_same_logits(Pair(load(tmp_path), widened.eval(), some_ids(20, 3)))

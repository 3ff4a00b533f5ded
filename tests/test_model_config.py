import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from model.config import from_folder, from_gguf, load_config
from model.errors import ModelError
from model.scaling import Llama3Scaling
from model.weights.gguf import GgufHeader

JSON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.vocab_size": 96,
    "llama.embedding_length": 24,
    "llama.feed_forward_length": 40,
    "llama.block_count": 2,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 256,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 5000.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {"type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4]}


def write_folder(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(JSON | changes))
    return folder


def header(**changes: Any) -> GgufHeader:
    metadata = METADATA | {name.replace("__", "."): value for name, value in changes.items()}
    return GgufHeader({k: v for k, v in metadata.items() if v is not None}, {}, 0)


def test_folder_and_gguf_say_the_same(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tie_word_embeddings=True)
    assert from_folder(folder) == from_gguf(header())


def test_the_default_model(smollm2_path: Path) -> None:
    config = load_config(smollm2_path)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (30, 9, 3)
    assert (config.head_dim, config.context_len, config.vocab_size) == (64, 8192, 49152)
    assert config.rope_theta == 100_000
    assert config.tied_head


def test_what_transformers_writes_is_read(tmp_path: Path) -> None:
    """Version 5 keeps theta and the scaling in rope_parameters."""
    theirs = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        rope_parameters=LLAMA3 | {"rope_theta": 700.0},
        head_dim=12,
    )
    theirs.save_pretrained(tmp_path)
    ours = load_config(tmp_path)
    assert ours.rope_theta == 700
    assert ours.rope_scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_len=64
    )
    assert ours.head_dim == 12
    assert ours.num_kv_heads == ours.num_heads == theirs.num_attention_heads


def test_older_rope_scaling_is_read(tmp_path: Path) -> None:
    config = from_folder(write_folder(tmp_path, rope_scaling=LLAMA3))
    assert config.rope_scaling is not None
    assert config.rope_theta == 5000


def test_absent_and_null_fields_take_the_usual_values(tmp_path: Path) -> None:
    changes = dict.fromkeys(["num_key_value_heads", "head_dim", "rope_theta", "rope_scaling"])
    config = from_folder(write_folder(tmp_path, **changes))
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (6, 4, 10_000)
    assert config.rope_scaling is None
    assert not config.tied_head


def test_gguf_vocabulary_may_be_told_by_the_tokenizer_alone() -> None:
    config = from_gguf(header(llama__vocab_size=None, tokenizer__ggml__tokens=["a"] * 77))
    assert config.vocab_size == 77


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, r"architectures is \['Mamba.*It runs Llama, M"),
        ({"architectures": None}, "architectures is None"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'Llama.*a list of words"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', but must be 'silu'. octavo runs Llama, M"),
        ({"quantization_config": {"quant_method": "awq"}}, "bits is None, but must be 4"),
        ({"rope_scaling": {"type": "mrope", "factor": 2}}, "type is 'mrope'.*'llama3'"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": LONGROPE | {"long_factor": 2}}, "long_factor is 2, but must be a list"),
        ({"rope_scaling": LONGROPE | {"long_factor": [1]}}, r"longrope has \[1, 2\] fact"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is missing"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn', but must be an object"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": "24"}, "hidden_size is '24', but must be a positive whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05, but must be a positive number"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, but must be true or false"),
        ({"num_key_value_heads": 4}, "6 attention heads can't be shared out evenly among 4"),
        ({"head_dim": 5}, "head dimension is 5"),
        ({"partial_rotary_factor": 0.75}, "rotated dimension is 3"),
        (
            {
                "architectures": ["MistralForCausalLM"],
                "sliding_window": 8,
                "num_hidden_layers": 9**9,
            },
            "num_hidden_layers is 387420489, which is more than any model has",
        ),
    ],
)
def test_a_folder_we_cannot_run_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message) as error:
        load_config(write_folder(tmp_path, **changes))
    assert str(error.value).startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__architecture": "rwkv6"}, "general.architecture is 'rwkv6'.*It runs llama, q"),
        ({"llama__expert_count": 8}, "llama.expert_used_count is missing"),
        ({"llama__rope__scaling__type": "longrope"}, "rope.scaling.type is 'longrope'.*llama, q"),
        ({"llama__rope__scaling__type": "yarn"}, "llama.rope.scaling.factor is missing"),
        ({"llama__rope__dimension_count": 3}, "rotated dimension is 3"),
        ({"llama__attention__value_length": 8}, "value_length is 8"),
        ({"llama__attention__head_count_kv": [2, 4]}, r"head_count_kv is \[2, 4\]"),
        ({"llama__vocab_size": None}, "llama.vocab_size is 0"),
    ],
)
def test_a_gguf_we_cannot_run_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_gguf(header(**changes))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "isn't JSON"), ("[" * 100_000, "isn't JSON"), ("[]", "no JSON object")],
)
def test_a_damaged_config_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=f"config.json.*{message}"):
        load_config(tmp_path)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json can't be read: No such file"):
        load_config(tmp_path)


@pytest.mark.parametrize(("name", "problem"), [("a.bin", "is neither"), ("b.bin", "doesn't exist")])
def test_another_path_is_refused(name: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.bin").touch()
    with pytest.raises(ModelError, match=f"{name} {problem}.*give a Hugging Face folder or"):
        load_config(tmp_path / name)


def test_reading_a_config_loads_no_torch() -> None:
    code = "import sys, model.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

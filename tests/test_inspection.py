"""octavo inspect: what it says of a description alone, and that loading would cost the same."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import load_config
from model.errors import ModelError
from model.footprint import float32_page_bytes, native_page_bytes
from service import cli, inspection
from service.config import EngineConfig
from tests.families import KINDS, WINDOW
from tests.test_gguf_families import FILES, make, write


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.inspection.available_memory", lambda: 1 << 30)
    monkeypatch.setattr("service.inspection.builds", lambda: [])


def describe(folder: Path, kind: str) -> Path:
    """config.json alone."""
    KINDS[kind].describe(dtype=torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        (
            "Llama 3 scaling",
            {
                **{"family": "llama", "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 8},
                **{"attention": "the whole context", "feed_forward": "gated silu, 48 wide"},
                "positions": "rotary, theta 1000, Llama3 scaling (factor 8.0, low_freq_factor 1.0, "
                "high_freq_factor 4.0, original_context_len 64)",
                "norms": "RMSNorm, before each branch",
                **{"vocab_size": 96, "tied_head": False, "stored_as": "bfloat16"},
            },
        ),
        (
            "Gemma 2",
            {
                "attention": f"a window of {WINDOW} tokens in 2 of 3 layers, scores softly "
                "capped at 5",
                "norms": "RMSNorm, before and behind each branch",
            },
        ),
        ("Gemma 3", {"norms": "RMSNorm, before and behind each branch, and of queries and keys"}),
        ("GPT-2", {"positions": "learned", "norms": "LayerNorm, before each branch"}),
        ("GPT-2", {"feed_forward": "gelu_tanh, 128 wide", "tied_head": True}),
        ("Mixtral", {"feed_forward": "gated silu, 2 of 5 experts, each 48 wide"}),
        ("SmolLM3", {"positions": "rotary, theta 2e+06, none in 1 layers"}),
        (
            "GPT-NeoX",
            {
                "positions": "rotary, theta 10000, of 2 dimensions",
                "norms": "LayerNorm, before each branch, both branches in parallel, two norms",
            },
        ),
        (
            "Phi-3, long",
            {
                "positions": "rotary, theta 1000, LongRope scaling (original_context_len 32, "
                "attention_factor 1.1832159566199232)"
            },
        ),
    ],
)
def test_a_config_alone_says_what_would_run(
    kind: str, facts: dict[str, Any], tmp_path: Path
) -> None:
    found = inspection.inspect(describe(tmp_path, kind))
    assert {name: found[name] for name in facts} == facts


def test_a_window_has_a_theta_of_its_own(tmp_path: Path) -> None:
    positions = inspection.inspect(describe(tmp_path, "Gemma 3"))["positions"]
    assert positions == "rotary, theta 1000, theta 50 in windows, Linear scaling (factor 4.0)"


def test_costs_are_those_of_loading(tmp_path: Path) -> None:
    facts = inspection.inspect(describe(tmp_path, "Qwen2"))
    size = float32_page_bytes(load_config(tmp_path), page_size=16)
    assert facts["kv_bytes_per_token"] * facts["page_size"] == size
    assert facts["parameters"] == KINDS["Qwen2"].make().num_parameters()
    assert facts["computed_in"] == "float32, by PyTorch"
    assert facts["context_served"] == facts["context"] == 128
    assert facts["pages_that_fit"] == EngineConfig().max_sequences * 128 // 16


def test_costs_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = describe(tmp_path, "Qwen2")
    facts = inspection.inspect(path)
    room = facts["weight_bytes"] + 5 * facts["page_size"] * facts["kv_bytes_per_token"]
    for free, num_pages in [(room, 2), (facts["weight_bytes"] - 1, 0)]:
        monkeypatch.setattr("service.inspection.available_memory", lambda free=free: free)
        facts = inspection.inspect(path)
        assert facts["pages_that_fit"] == num_pages
        assert facts["context_served"] == 16 * num_pages


def test_costs_of_native_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.inspection.builds", lambda: ["avx2"])
    facts = inspection.inspect(describe(tmp_path, "Llama"))
    assert facts["computed_in"] == "8-bit integers and bfloat16, by the native build avx2"
    size = native_page_bytes(load_config(tmp_path))
    assert facts["kv_bytes_per_token"] * facts["page_size"] == size
    assert inspection.inspect(describe(tmp_path, "Qwen3"))["computed_in"].startswith("float32")


def test_a_gguf_says_the_types_of_its_tensors(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", FILES["qwen2"], make(FILES["qwen2"]))
    assert inspection.inspect(tmp_path / "m.gguf")["stored_as"] == "F32 (39 tensors)"


def test_a_folder_may_not_say_how_it_is_stored(tmp_path: Path) -> None:
    content = json.loads((describe(tmp_path, "Llama") / "config.json").read_text())
    del content["dtype"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert inspection.inspect(tmp_path)["stored_as"] == "unknown"


def test_a_quantized_folder_says_by_what(tmp_path: Path) -> None:
    content = json.loads((describe(tmp_path, "Llama") / "config.json").read_text())
    content["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert inspection.inspect(tmp_path)["stored_as"] == "bfloat16, matrices by fp8"


def test_what_cannot_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    with pytest.raises(ModelError, match=r"architectures is \['MambaForCausalLM'\]"):
        inspection.inspect(tmp_path)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_command_prints_it(
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = describe(tmp_path, "OLMo 2")
    monkeypatch.setattr(sys, "argv", ["octavo", "inspect", str(path), *flags])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    out = capsys.readouterr().out
    assert not exit_info.value.code
    if flags:
        assert json.loads(out) == inspection.inspect(path)
    else:
        assert "norms                 RMSNorm, behind each branch, and of queries and keys" in out
        assert "tied head             no\n" in out

"""What a model's maker recommends, from either kind of file."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from gguf import GGUFValueType, GGUFWriter

from model.errors import ModelError
from service.text.generation_config import read_defaults

RECOMMENDED = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0,
    "repetition_penalty": 1.05,
}


def folder(path: Path, config: Any) -> Path:
    (path / "generation_config.json").write_bytes(orjson.dumps(config))
    return path


def test_a_folders_recommendations(tmp_path: Path) -> None:
    others = {"eos_token_id": [1, 2], "do_sample": True, "max_new_tokens": 99, "top_a": 3}
    assert read_defaults(folder(tmp_path, RECOMMENDED | others)) == RECOMMENDED
    assert read_defaults(folder(tmp_path, {"top_k": 5, "top_p": None})) == {"top_k": 5}


def test_a_folder_without_recommendations(tmp_path: Path) -> None:
    assert read_defaults(tmp_path) == {}
    assert read_defaults(folder(tmp_path, [])) == {}


def gguf(path: Path, **sampling: float) -> Path:
    writer = GGUFWriter(path, "llama")
    for key, value in sampling.items():
        kind = GGUFValueType.INT32 if isinstance(value, int) else GGUFValueType.FLOAT32
        writer.add_key_value(f"general.sampling.{key}", value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_files_recommendations(tmp_path: Path) -> None:
    path = gguf(tmp_path / "a.gguf", temp=0.5, top_k=20, penalty_repeat=1.25, mirostat=0)
    expected = {"temperature": 0.5, "top_k": 20, "repetition_penalty": 1.25}
    assert read_defaults(path) == expected
    assert read_defaults(gguf(tmp_path / "b.gguf")) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.5),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_k", 1.5),
        ("top_k", -2),
        ("min_p", -0.1),
        ("repetition_penalty", 0),
    ],
)
def test_what_no_request_could_ask_is_refused_at_load(
    tmp_path: Path, name: str, value: Any
) -> None:
    with pytest.raises(ModelError, match=f"generation_config.json's {name} is") as caught:
        read_defaults(folder(tmp_path, {name: value}))
    assert "--generation-config none" in str(caught.value)


def test_the_error_names_a_gguf_files_own_key(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"general\.sampling\.temp is 9\.0"):
        read_defaults(gguf(tmp_path / "a.gguf", temp=9.0))

"""How many tokens there are, by the files that hold the tokenizer."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from model.vocabulary import num_tokens

ADDED = [{"id": 7, "content": "<eos>"}]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"model": {"vocab": {"a": 0, "b": 4}}}, 5),
        ({"model": {"vocab": {"a": 0, "b": 4}}, "added_tokens": ADDED}, 8),
        ({"model": {"vocab": [["a", -0.5], ["b", -1]]}}, 2),
        ({"model": {"vocab": {}}}, None),
        ({"model": {}}, None),
        ([], None),
    ],
)
def test_of_a_folder(content: Any, expected: int | None, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert num_tokens(tmp_path) == expected


def test_of_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    assert num_tokens(tmp_path) is None


@pytest.mark.parametrize(
    ("types", "expected"), [([1, 3, 5, 1, 5, 5], 4), ([1, 6], 2), (None, None)]
)
def test_of_a_gguf_the_unused_ones_at_the_end_do_not_count(
    types: list[int] | None, expected: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    if types is not None:
        writer.add_token_types(types)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert num_tokens(path) == expected

"""Folders of safetensors: what is read, and that nothing outside the folder or pickled is."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from model.errors import ModelError
from model.weights.safetensors import stored_tensors

WEIGHTS = {
    "embed": torch.arange(12.0).reshape(3, 4),
    "norm": torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
    "head": torch.full((2, 2), 0.5, dtype=torch.float16),
}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    return {tensor.name: tensor.read() for tensor in stored_tensors(folder)}


def write_single(folder: Path) -> None:
    save_file(WEIGHTS, folder / "model.safetensors")


def write_index(folder: Path, weight_map: object) -> None:
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def write_shards(folder: Path) -> None:
    save_file({"embed": WEIGHTS["embed"]}, folder / FIRST)
    save_file({name: WEIGHTS[name] for name in ("norm", "head")}, folder / SECOND)
    write_index(folder, {"embed": FIRST, "norm": SECOND, "head": SECOND})


def assert_holds_weights(folder: Path) -> None:
    read = read_all(folder)
    assert read.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        assert read[name].dtype == torch.float32
        assert torch.equal(read[name], tensor.float())
    assert {t.name: t.shape for t in stored_tensors(folder)} == {
        name: tuple(tensor.shape) for name, tensor in WEIGHTS.items()
    }


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_all(folder)


@pytest.mark.parametrize("write", [write_single, write_shards])
def test_a_folder_gives_its_tensors_as_float32(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path)
    assert_holds_weights(tmp_path)


def test_the_cache_of_hugging_face_is_read_through_its_links(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    write_shards(blobs)
    for name in (FIRST, SECOND, "model.safetensors.index.json"):
        (snapshot / name).symlink_to(Path("..", "..", "blobs", name))
    assert_holds_weights(snapshot)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "deeper/secret.safetensors",
        "deeper\\secret.safetensors",
        "..",
        "",
        "secret\0.safetensors",
        "pytorch_model.bin",
    ],
)
def test_an_index_names_only_plain_files_of_its_folder(tmp_path: Path, name: str) -> None:
    write_index(tmp_path, {"embed": name})
    assert_refused(tmp_path, "isn't the plain name")


@pytest.mark.parametrize("name", [FIRST, "model.safetensors"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    write_single(outside)
    write_index(inside, {"embed": FIRST})
    (inside / name).symlink_to(outside / "model.safetensors")
    assert_refused(inside, "is a link out of its folder")


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path, {"embed": FIRST})
    (tmp_path / FIRST).symlink_to(FIRST)
    assert_refused(tmp_path, "can't be read")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / SECOND).unlink()
    assert_refused(tmp_path, f"{SECOND} can't be read")


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:5],
        lambda raw: raw[:40],
        lambda raw: raw[:-1],
        lambda raw: raw + b"x",
        lambda raw: struct.pack("<Q", 1 << 60) + raw[8:],
        lambda raw: raw[:8] + b"\xff" + raw[9:],
    ],
    ids=["empty", "cut length", "cut header", "cut data", "too long", "endless header", "not JSON"],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    write_single(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    assert_refused(tmp_path, r"model\.safetensors can't be read: .* download it again")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', '{"x": ' + "[" * 100_000],
)
def test_an_unusable_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert_refused(tmp_path, "isn't a usable index")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickled_weights_are_never_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    assert_refused(tmp_path, f"{name}, .* Convert it to safetensors")


def test_an_empty_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path, "holds neither model.safetensors nor")
    assert_refused(tmp_path / "none", "isn't a folder")


def test_the_tensors_outlive_the_file(tmp_path: Path) -> None:
    write_single(tmp_path)
    read = read_all(tmp_path)
    os.unlink(tmp_path / "model.safetensors")
    assert torch.equal(read["embed"], WEIGHTS["embed"])

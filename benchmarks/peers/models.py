"""The same model in the forms that the peers read, all made from one GGUF file of a Llama.

    hugging-face/   its values as float32, in Hugging Face's layout
    endless/        the same, but for what ends an answer: it is as long as it may be, also where a
                    request can't ask for that
    w8a8/           the same with the layers' linear weights as 8 bits, a scale for each output, and
                    inputs to be rounded to 8 bits by row; in the format of compressed-tensors
    q4_0/           a GGUF file whose matrices are Q4_0, which llama.cpp has its quickest products
                    for; what is Q8_0 stays, such as the embedding

Knows file formats, not who reads them.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, ReaderField, ReaderTensor
from gguf.constants import GGUFValueType, Keys
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.config import ModelConfig, load_config
from model.weights.changes import changed
from model.weights.gguf_tensors import stored_tensors
from model.weights.names import gguf_places, hugging_face_places
from service.text.tokenizer import Tokenizer

WEIGHTS, GGUF_FILE = "model.safetensors", "model.gguf"
Q4_0, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0
FILE_TYPE_Q4_0 = 2
"""general.file_type of a file whose matrices are mostly Q4_0."""
W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def whole(folder: Path, write: Callable[[Path], None]) -> Path:
    """The folder, written unless it is there: under another name first, so that one whose writing
    was cut short is not taken for done."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(unfinished)
        unfinished.rename(folder)
    return folder


def hugging_face(gguf: Path, folder: Path) -> Path:
    config, tokenizer = load_config(gguf), Tokenizer.load(gguf)
    if config.family != "llama" or config.rope_scaling is not None:
        raise ValueError(f"{gguf}: only a plain Llama model is written in Hugging Face's layout")

    def write(folder: Path) -> None:
        save_file(hugging_face_tensors(gguf, config), folder / WEIGHTS, {"format": "pt"})
        write_json(folder / "config.json", hugging_face_config(config, tokenizer))
        write_json(folder / "generation_config.json", token_ids(tokenizer))
        (folder / "tokenizer.json").write_text(tokenizer.to_json())
        write_json(folder / "tokenizer_config.json", tokenizer_config(config, tokenizer))

    return whole(folder, write)


def hugging_face_tensors(gguf: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Of our parts of each parameter, what Hugging Face's files call them."""
    theirs = {
        (place.parameter, place.first_row): name
        for name, place in hugging_face_places(config, ()).items()
    }
    places = gguf_places(config)
    tensors = {}
    for tensor in stored_tensors(gguf):
        place = places[tensor.name]
        values = changed(tensor.read(), place.change)
        tensors[theirs[place.parameter, place.first_row]] = values.contiguous()
    return tensors


def hugging_face_config(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    return token_ids(tokenizer) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.context_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied_head,
    }


def tokenizer_config(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "chat_template": tokenizer.chat_template,
        "model_max_length": config.context_len,
    }


def token_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    return {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}


def write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1))


def endless(plain: Path, folder: Path) -> Path:
    """plain: in Hugging Face's layout. The weights are the same file under a second name."""

    def write(folder: Path) -> None:
        for file in plain.glob("*.json"):
            content = json.loads(file.read_text())
            content.pop("eos_token_id", None)
            write_json(folder / file.name, content)
        (folder / WEIGHTS).hardlink_to(plain / WEIGHTS)

    return whole(folder, write)


def w8a8(plain: Path, folder: Path) -> Path:
    """plain: in Hugging Face's layout."""

    def write(folder: Path) -> None:
        for file in plain.glob("*.json"):
            (folder / file.name).write_bytes(file.read_bytes())
        config = json.loads((plain / "config.json").read_text())
        write_json(folder / "config.json", config | {"quantization_config": W8A8})
        tensors: dict[str, Tensor] = {}
        for name, values in load_file(plain / WEIGHTS).items():
            tensors |= rounded(name, values) if "_proj." in name else {name: values}
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})

    return whole(folder, write)


def rounded(name: str, weight: Tensor) -> dict[str, Tensor]:
    """weight: [outputs, inputs]."""
    scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
    return {name: (weight / scale).round().to(torch.int8), f"{name}_scale": scale}


def q4_0(gguf: Path, folder: Path) -> Path:
    """The file in the folder."""

    def write(folder: Path) -> None:
        reader = GGUFReader(gguf)
        writer = GGUFWriter(
            folder / GGUF_FILE, arch=reader.fields[Keys.General.ARCHITECTURE].contents()
        )
        for field in reader.fields.values():
            copy_field(writer, field)
        writer.add_file_type(FILE_TYPE_Q4_0)
        for tensor in reader.tensors:
            add_tensor(writer, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    return whole(folder, write) / GGUF_FILE


def copy_field(writer: GGUFWriter, field: ReaderField) -> None:
    """The writer itself says what GGUF.* and the architecture are."""
    kind, *rest = field.types
    is_own = field.name in (Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE)
    if not is_own and not field.name.startswith("GGUF."):
        items = rest[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=items)


def add_tensor(writer: GGUFWriter, tensor: ReaderTensor) -> None:
    data, kind = tensor.data, tensor.tensor_type
    if len(tensor.shape) == 2 and kind != Q8_0:
        data, kind = quantize(dequantize(data, kind).astype(np.float32), Q4_0), Q4_0
    writer.add_tensor(tensor.name, data, raw_dtype=kind)

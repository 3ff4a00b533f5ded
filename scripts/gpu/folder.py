"""Writes a model folder that `octavo serve` takes: random weights, and a made-up vocabulary.

The vocabulary is as large as the model, as it decides what is drawn from; its words are about as
long as those of other models, so that their text costs as much.
"""

import json
from pathlib import Path
from string import ascii_lowercase

from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from model.config import load_config
from model.transformer import Transformer
from model.weights.names import hugging_face_places
from scripts.gpu.loads import Shape

WORD_LEN = 4
NUM_LETTERS = len(ascii_lowercase)
SPACE = "Ġ"
"""As byte-level vocabularies write it."""


def write_folder(folder: Path, shape: Shape, model: Transformer) -> None:
    """model: of that shape, and of a family whose tensors are stored as they are used."""
    (folder / "config.json").write_text(json.dumps(shape.content, indent=2))
    assert load_config(folder) == shape.config
    parameters = model.state_dict()
    tensors = {}
    for name, (parameter, tensor_shape, first_row, change) in hugging_face_places(
        shape.config, names=()
    ).items():
        assert change is None
        rows = parameters[parameter][first_row : first_row + tensor_shape[0]]
        tensors[name] = rows.cpu().clone()
    save_file(tensors, folder / "model.safetensors")
    _tokenizer(shape.config.vocab_size).save(str(folder / "tokenizer.json"))


def _tokenizer(vocab_size: int) -> Tokenizer:
    """A token for each byte, then words with a space before them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *(SPACE + _word(i) for i in range(vocab_size - len(alphabet)))]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _word(number: int) -> str:
    """Each number has its own."""
    places = (number // NUM_LETTERS**place for place in range(WORD_LEN))
    return "".join(ascii_lowercase[at % NUM_LETTERS] for at in places)

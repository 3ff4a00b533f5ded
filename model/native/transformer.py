"""The native model: owns the packed weights and the threads, and calls the library for each step.

A stand-in for model.transformer.Transformer with the same two verbs, `hidden` and `logits`, and one
for model.native.sampling, `draw`. Weights come one parameter at a time, by the names of
model.weights.names, as float32.

Shapes: T packed tokens, S rows of the output, W model width, V vocabulary.
"""

from collections.abc import Sequence
from ctypes import CDLL, addressof, byref, c_char_p, c_double
from pathlib import Path
from weakref import finalize

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from model.config import ModelConfig
from model.errors import ModelError
from model.footprint import native_weight_bytes
from model.native.cache import NativeCache
from model.native.library import (
    BLOCK,
    INPUT_GROUP,
    MOST_HEAD_DIM,
    PHASES,
    TILED,
    WEIGHT_GROUP,
    Batch,
    Layer,
    Matrix,
    Model,
    load,
)
from model.native.memory import Room
from model.packing import RaggedBatch
from model.rope import inverse_frequencies
from model.weights.load import Report, check_memory, read_parameters
from model.weights.names import FREQUENCY_DIVISORS

KEPT_TYPES = ("Q4_0", "Q4_1", "Q8_0")
"""Of GGUF files: their blocks are packed without becoming floats first."""
NIBBLE_BLOCK_BYTES = (18, 20)
"""Of the first two."""
SCALE_BYTES = 2


class NativeTransformer:
    def __init__(self, config: ModelConfig, *, build: str, threads: int) -> None:
        self.config = config
        self._build = build
        self._library = load(build)
        self._state = _create_state(self._library, threads)
        finalize(self, self._library.state_destroy, self._state)
        self._layers = (Layer * config.num_layers)()
        self._room = Room()
        self._tensors: dict[str, Tensor] = {}
        """What the structures point into."""
        self._model = Model(
            config.vocab_size,
            config.hidden_size,
            config.intermediate_size,
            config.num_layers,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            norm_eps=config.norm_eps,
            frequency=self._kept("frequency", inverse_frequencies(config)),
            layers=addressof(self._layers),
        )

    def set(self, parameter: str, values: Tensor) -> None:
        """Takes a parameter; matrices are quantized and packed at once."""
        if parameter == FREQUENCY_DIVISORS:
            self._tensors["frequency"] /= values
            return
        name = parameter.removesuffix(".weight")
        values = values.contiguous()
        if name == "embedding":
            self._model.embedding = self._kept(name, values)
            self._model.embedding_block_bytes = _block_bytes(values)
            if self.config.tied_head:
                self._model.head = self._packed("head", values)
        else:
            is_vector = values.dim() == 1
            place = self._kept(name, values) if is_vector else self._packed(name, values)
            setattr(self._owner(name), name.rpartition(".")[2], place)

    def _owner(self, name: str) -> Model | Layer:
        """What has the field that the last part of the name says."""
        parts = name.split(".")
        return self._layers[int(parts[1])] if parts[0] == "blocks" else self._model

    def _kept(self, name: str, values: Tensor) -> int:
        self._tensors[name] = values
        return values.data_ptr()

    def _packed(self, name: str, weights: Tensor) -> Matrix:
        """Of floats [N, K], or of blocks [N, K / 32, bytes]. Gate and up, which come one
        below the other, take turns block by block."""
        parts = weights.chunk(2) if name.endswith(".gate_up") else (weights,)
        block_bytes = _block_bytes(weights)
        num_inputs = weights.shape[1] * (INPUT_GROUP if block_bytes else 1)
        num_groups = -(-num_inputs // WEIGHT_GROUP)
        num_rows = sum(-(-len(part) // BLOCK) for part in parts) * BLOCK
        is_tiled = self._build in TILED
        is_small = block_bytes in NIBBLE_BLOCK_BYTES and not is_tiled
        bits, num_scales = (4, 4) if is_small else (8, 1)
        num_scaled = 1 if is_tiled else num_groups
        codes = self._room.take(num_rows * num_groups * WEIGHT_GROUP * bits // 8)
        scales = self._room.take(num_rows * num_scaled * num_scales * SCALE_BYTES)
        matrix = Matrix(
            num_groups * WEIGHT_GROUP,
            len(weights),
            bits,
            self._kept(f"{name}.codes", codes),
            self._kept(f"{name}.scales", scales),
        )
        for index, part in enumerate(parts):
            self._library.pack_matrix(
                self._state,
                part.data_ptr(),
                len(part),
                weights.shape[1],
                block_bytes,
                byref(matrix),
                index,
                len(parts),
            )
        return matrix

    def hidden(self, batch: RaggedBatch, cache: NativeCache) -> Tensor:
        """What the last block makes of each token that is asked for: x_TW, before the norm."""
        x_TW = torch.empty(len(batch.token_ids_T), self.config.hidden_size)
        _check(
            self._library.forward_hidden(
                byref(self._model),
                self._state,
                byref(native_batch(batch)),
                cache.pool.data_ptr(),
                x_TW.data_ptr(),
            )
        )
        return x_TW

    def logits(self, x_SW: Tensor) -> Tensor:
        x_SW = x_SW.contiguous()
        logits_SV = torch.empty(len(x_SW), self.config.vocab_size)
        _check(
            self._library.forward_logits(
                byref(self._model), self._state, x_SW.data_ptr(), len(x_SW), logits_SV.data_ptr()
            )
        )
        return logits_SV

    def norm(self, x_TW: Tensor) -> Tensor:
        """The last one, which `logits` begins with."""
        weight_W = self._tensors["norm"]
        return rms_norm(x_TW, weight_W.shape, weight_W, self.config.norm_eps)

    def draw(
        self, logits_SV: Tensor, allowed: Sequence[bytes | None], draws: bytes, ids_S: Tensor
    ) -> int:
        """Writes each row's id, or -1 where the library leaves it undecided; how many those are."""
        assert logits_SV.dtype == torch.float32
        assert logits_SV.stride(1) == 1
        return self._library.draw_tokens(
            self._state,
            logits_SV.data_ptr(),
            logits_SV.stride(0),
            *logits_SV.shape,
            (c_char_p * len(allowed))(*allowed),
            draws,
            ids_S.data_ptr(),
        )

    @property
    def bytes_read(self) -> int:
        """By a step of any size: all matrices, once."""
        return sum(
            tensor.nbytes
            for name, tensor in self._tensors.items()
            if name.endswith((".codes", ".scales"))
        )

    def take_seconds(self, *, timed: bool) -> dict[str, float]:
        """By phase, since the last call; zeros unless that asked for them."""
        seconds = (c_double * len(PHASES))()
        self._library.state_take_seconds(self._state, timed, seconds)
        return dict(zip(PHASES, seconds, strict=True))


def is_native(config: ModelConfig) -> bool:
    """Whether the library knows how to compute such a model."""
    return config.is_plain_llama and config.head_dim <= MOST_HEAD_DIM


def load_native(
    path: Path, config: ModelConfig, *, build: str, threads: int, report: Report
) -> NativeTransformer:
    check_memory(path, native_weight_bytes(config))
    model = NativeTransformer(config, build=build, threads=threads)
    read_parameters(path, config, model.set, report=report, kept_types=KEPT_TYPES)
    return model


def _block_bytes(weights: Tensor) -> int:
    """0 of floats."""
    return 0 if weights.dim() == 2 else weights.shape[2]


def _create_state(library: CDLL, threads: int) -> int:
    state = library.state_create(threads)
    if state is None:
        raise ModelError(f"the system grants no {threads} threads: take fewer by --threads")
    return state


def native_batch(batch: RaggedBatch) -> Batch:
    num_sequences, table_width = batch.page_table_SN.shape
    return Batch(
        len(batch.token_ids_T),
        num_sequences,
        table_width,
        batch.token_ids_T.data_ptr(),
        batch.positions_T.data_ptr(),
        batch.page_ids_T.data_ptr(),
        batch.offsets_T.data_ptr(),
        batch.page_table_SN.data_ptr(),
        batch.query_lens_S.data_ptr(),
        batch.wanted_lens_S.data_ptr(),
    )


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for what a step works with")

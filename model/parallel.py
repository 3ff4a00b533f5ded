"""Tensor parallelism: several processes, the ranks, compute one model together.

As in Megatron-LM (https://arxiv.org/abs/1909.08053): each rank has some heads and a part of every
feed-forward network, so that the first product of each branch needs no word from the others, and
the second gives a part of a sum. The vocabulary is split as well:

    embedding          rows        summed: a rank has zeros for the others' ids
    qkv, gate_up, up   rows        nothing to exchange
    output, down       columns     summed, once for each branch
    head               rows        gathered
    norms, router, learned positions: each rank has all

With fewer key-value heads than ranks, ranks whose queries need the same one each have it. All ranks
are given the same batches, and draw the same tokens, since noise is no matter of state.

Shapes: T packed tokens, S rows of the output, R the ranks' rows, one rank's after the other's,
W model width, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad

from model.config import ModelConfig
from model.errors import ModelError
from model.rendezvous import Rendezvous
from model.wire import Wire, connect, gather

CPU_BACKEND, GPU_BACKEND = "gloo", "cpu:gloo,cuda:nccl"
"""Numbers that only the host needs are a CPU's in either case."""
GATHER = next(n for n in ("all_gather_single", "all_gather_into_tensor") if hasattr(dist, n))
"""Into one tensor, which PyTorch has called the latter until 2.13."""
WIRE = "octavo/wire"
"""Under which the store has what `connect` takes."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that share a model; what they exchange. All must call the same."""

    rank: int = 0
    size: int = 1
    num_local: int = 1
    """How many share this host's cores and memory."""

    @property
    def local_rank(self) -> int:
        """Among those."""
        return self.rank % self.num_local

    def part(self, length: int) -> slice:
        """This rank's of so many; the last one's may be shorter."""
        part_len = -(-length // self.size)
        return slice(self.rank * part_len, min((self.rank + 1) * part_len, length))

    def kv_heads(self, num_kv_heads: int) -> slice:
        """Those that this rank's queries need: some of its own, or one that others have too."""
        first = self.rank * num_kv_heads // self.size
        return slice(first, first + max(1, num_kv_heads // self.size))

    def sum_(self, x_TW: Tensor) -> Tensor:
        """The sum of all ranks' x, in place of it."""
        if self.size > 1:
            dist.all_reduce(x_TW)
        return x_TW

    def gathered(self, logits_SV: Tensor, *, vocab_size: int) -> Tensor:
        """Of each rank's part of the vocabulary: all of it."""
        if self.size == 1:
            return logits_SV
        part_len = -(-vocab_size // self.size)
        padded_SV = pad(logits_SV, (0, part_len - logits_SV.shape[1]))
        parts_RV = padded_SV.new_empty(self.size * len(padded_SV), part_len)
        getattr(dist, GATHER)(parts_RV, padded_SV)
        parts = parts_RV.view(self.size, -1, part_len)
        return parts.transpose(0, 1).flatten(1)[:, :vocab_size]

    def least(self, number: int) -> int:
        """Of the numbers that the ranks call this with."""
        if self.size == 1:
            return number
        numbers = torch.tensor([number])
        dist.all_reduce(numbers, dist.ReduceOp.MIN)
        return int(numbers)


ALONE = Ranks()


class SplitEmbedding(nn.Embedding):
    """The vectors of a part of the vocabulary; what a token's is, the ranks find out together."""

    def __init__(self, config: ModelConfig, ranks: Ranks) -> None:
        part = ranks.part(config.vocab_size)
        super().__init__(part.stop - part.start, config.hidden_size)
        self.first_id, self.ranks = part.start, ranks

    def forward(self, token_ids_T: Tensor) -> Tensor:
        if self.ranks.size == 1:
            return super().forward(token_ids_T)
        rows_T = token_ids_T - self.first_id
        elsewhere_T = (rows_T < 0) | (rows_T >= self.num_embeddings)
        x_TW = super().forward(rows_T.masked_fill(elsewhere_T, 0))
        return self.ranks.sum_(x_TW.masked_fill_(elsewhere_T[:, None], 0))


def join(rendezvous: Rendezvous, *, seconds: float) -> tuple[Ranks, Wire]:
    """Waits for the other ranks. An exchange that takes longer than this raises RuntimeError, or
    OSError on the wire, as does one with a rank that has died."""
    timeout = timedelta(seconds=seconds)
    is_first = rendezvous.rank == 0
    store = dist.TCPStore(  # type: ignore[attr-defined]
        rendezvous.address,
        rendezvous.port,
        rendezvous.size,
        is_master=is_first,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=rendezvous.listener if is_first else None,
    )
    dist.init_process_group(
        GPU_BACKEND if torch.cuda.is_available() else CPU_BACKEND,
        store=store,
        rank=rendezvous.rank,
        world_size=rendezvous.size,
        timeout=timeout,
    )
    if is_first:
        wire = gather(
            rendezvous.address,
            num_others=rendezvous.size - 1,
            seconds=seconds,
            publish=partial(store.set, WIRE),
        )
    else:
        published = store.get(WIRE).decode()
        wire = connect(rendezvous.address, published=published, seconds=seconds)
    return Ranks(rendezvous.rank, rendezvous.size, rendezvous.num_local), wire


def share(config: ModelConfig, ranks: Ranks) -> ModelConfig:
    """What each rank has of the model's heads and widths. Raises ModelError where they can't be
    shared out."""
    if ranks.size == 1:
        return config
    for problem in _problems(config, ranks.size):
        raise ModelError(f"tensor_parallel_size is {ranks.size}, but {problem}: take another, or 1")
    return replace(
        config,
        num_heads=config.num_heads // ranks.size,
        num_kv_heads=max(1, config.num_kv_heads // ranks.size),
        intermediate_size=config.intermediate_size // ranks.size,
        expert_size=config.expert_size // ranks.size,
    )


def _problems(config: ModelConfig, size: int) -> Iterator[str]:
    for name, number in (
        ("attention heads", config.num_heads),
        ("units of a feed-forward network", config.intermediate_size),
        ("units of an expert", config.expert_size),
    ):
        if number % size:
            yield f"the model's {number} {name} can't be shared out evenly"
    num_kv_heads = config.num_kv_heads
    if num_kv_heads % size and size % num_kv_heads:
        yield f"the model's {num_kv_heads} key-value heads can be neither shared out nor copied"
    if config.qk_norm == "width":
        yield f"{config.family} norms all heads' queries together, which no rank has"

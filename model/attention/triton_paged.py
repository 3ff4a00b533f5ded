"""Attention in Triton, for CUDA: reads pages in place, rows of any lengths in one call.

The query heads that share a key-value head share a tile, so that keys and values are read once for
them all (grouped-query packing, arXiv:2305.13245). A row's own number of queries says how it is
computed, never what else is in the batch:

    one query     splits of SPLIT keys side by side, then joined (Flash-Decoding), since a long
                  context would else be read by a few of the GPU's processors
    more          tiles of queries, each of which goes through all the keys that it sees

All that `prepare` does is work of the batch's device, of a size that follows from the shapes alone:
nothing waits for the device, and a CUDA graph can hold it. See model.triton on launch parameters.

Shapes: T packed tokens, S sequences, I tiles, N pages of the longest sequence, P tokens in a page,
H query heads, K key-value heads, J = 2K, D head dimension, C splits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from model.attention.backend import Place
from model.config import ModelConfig
from model.kv_cache import LayerCache
from model.packing import RaggedBatch
from model.triton.attention import attend_splits, attend_tile, join_splits

PAGE_SIZE = 16
"""The cache may have any power of 2 from 16 to 256; small pages are shared more often."""
SPLIT = 512
"""A constant, as what a row's sums are depends on it."""
SPLIT_PROGRAMS = 512
"""Enough to occupy the processors of a GPU, of which an H200 has 132."""
SPLIT_TILE = 16
"""The least that matrix units multiply."""
MOST_HEAD_DIM = 256
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True)
class Plan:
    page_table_SN: Tensor
    starts_S: Tensor
    """Of each row's tokens in the batch."""
    query_lens_S: Tensor
    context_lens_S: Tensor
    tile_rows_I: Tensor
    """-1 where there is no tile: there are never more than I, but mostly less."""
    tile_firsts_I: Tensor
    """Of a row's queries, that which its tile begins with."""
    window: int | None


def refusal(config: ModelConfig, place: Place) -> str:
    """Why such a model can't be computed here; empty if it can."""
    if place.dtype not in DTYPES:
        return f"it doesn't compute in {place.dtype}"
    if config.head_dim > MOST_HEAD_DIM:
        return f"heads have {config.head_dim} dimensions, more than {MOST_HEAD_DIM}"
    return ""


def prepare(
    batch: RaggedBatch,
    *,
    num_heads: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    window: int | None = None,
) -> Plan:
    num_sharing = num_heads // num_kv_heads
    tile_len = _block(num_sharing, _least_tile(dtype)) // num_sharing
    lens_S = batch.query_lens_S
    # Of q > 1 queries there are (q - 1) // tile_len + 1 tiles, of one there is none. All together
    # they are no more than this, which asks the device for nothing.
    num_spare = min(len(batch.token_ids_T) - len(lens_S), len(lens_S))
    num_tiles = (len(batch.token_ids_T) - len(lens_S)) // tile_len + num_spare
    rows, firsts = _tiles(lens_S, num_tiles, tile_len=tile_len)
    return Plan(
        page_table_SN=batch.page_table_SN,
        starts_S=lens_S.cumsum(0) - lens_S,
        query_lens_S=lens_S,
        context_lens_S=batch.context_lens_S,
        tile_rows_I=rows,
        tile_firsts_I=firsts,
        window=window,
    )


def attend(
    q_THD: Tensor,
    cache: LayerCache,
    plan: Plan,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """scale: of the scores, if not 1/√D. softcap: the most that a score can be, softly."""
    T, H, D = q_THD.shape
    S, N = plan.page_table_SN.shape
    _, J, P, _ = cache.pool_NJPD.shape
    K, num_splits, num_tiles = J // 2, cdiv(N * P, SPLIT), len(plan.tile_rows_I)
    out_THD = torch.empty(T, H, D, dtype=q_THD.dtype, device=q_THD.device)
    parts_SHCD = torch.empty(S, H, num_splits, D, dtype=torch.float32, device=q_THD.device)
    part_logs_SHC = torch.empty(S, H, num_splits, dtype=torch.float32, device=q_THD.device)
    pages = (cache.pool_NJPD, cache.scales_NJP, plan.page_table_SN)
    lens = (plan.starts_S, plan.query_lens_S, plan.context_lens_S)
    strides = (q_THD.stride(0), q_THD.stride(1), plan.page_table_SN.stride(0))
    numbers = (D**-0.5 if scale is None else scale, softcap or 0.0, plan.window or 0)
    shape = {"H": H, "K": K, "D": D, "P": P}
    how = {
        "WINDOWED": plan.window is not None,
        "SOFTCAPPED": softcap is not None,
        "FLOAT8": cache.scales_NJP is not None,
    } | _launch(D, q_THD.dtype)
    if num_tiles:
        tiles = (plan.tile_rows_I, plan.tile_firsts_I)
        attend_tile[num_tiles, K](
            q_THD, out_THD, *pages, *tiles, *lens, *strides, *numbers,
            BLOCK_M=_block(H // K, _least_tile(q_THD.dtype)), **shape, **how,
        )  # fmt: skip
    turns = min(num_splits, cdiv(SPLIT_PROGRAMS, S * K))
    attend_splits[S, K, turns](
        q_THD, parts_SHCD, part_logs_SHC, *pages, *lens, *strides, num_splits, *numbers,
        BLOCK_M=_block(H // K, SPLIT_TILE), SPLIT=SPLIT, **shape, **how,
    )  # fmt: skip
    join_splits[S, H](
        parts_SHCD, part_logs_SHC, out_THD, *lens, num_splits, plan.window or 0,
        H=H, D=D, SPLIT=SPLIT, BLOCK_D=next_power_of_2(D), WINDOWED=plan.window is not None,
    )  # fmt: skip
    return out_THD


def _tiles(query_lens_S: Tensor, num_tiles: int, *, tile_len: int) -> tuple[Tensor, Tensor]:
    """The row of each tile, and its first query."""
    counts_S = torch.where(query_lens_S > 1, (query_lens_S - 1) // tile_len + 1, 0)
    ends_S = counts_S.cumsum(0)
    tiles_I = torch.arange(num_tiles, device=ends_S.device)
    rows_I = torch.searchsorted(ends_S, tiles_I, right=True)
    is_tile_I = rows_I < len(ends_S)
    known_I = torch.where(is_tile_I, rows_I, 0)
    firsts_I = (tiles_I - (ends_S - counts_S)[known_I]) * tile_len
    return torch.where(is_tile_I, rows_I, -1), firsts_I


def _block(num_sharing: int, least: int) -> int:
    return max(least, next_power_of_2(num_sharing))


def _least_tile(dtype: torch.dtype) -> int:
    return 64 if dtype.itemsize == 2 else 32


def _launch(head_dim: int, dtype: torch.dtype) -> dict[str, int]:
    """As the compiler reports for sm_80, sm_89 and sm_90, hardly anything is spilt from registers,
    and the shared memory of an L4 holds it: at most 96 KiB. float32 is for comparisons: there are
    no matrix units for it."""
    block_d = next_power_of_2(head_dim)
    is_wide, is_half = block_d > 128, dtype.itemsize == 2
    return {
        "BLOCK_N": (64 if is_half else 32) // (2 if is_wide else 1),
        "BLOCK_D": block_d,
        "num_warps": 4 if is_half and not is_wide else 8,
        "num_stages": 2 if is_half or not is_wide else 1,
    }

"""Attention over the paged cache, by tiles of queries, and how the parts of a long context join.

Softmax is computed as keys come along (online softmax, arXiv:1805.02867; FlashAttention-2,
arXiv:2307.08691), to the base of 2, whose exponential is one instruction. Blocks of keys begin at
multiples of BLOCK_N and splits at multiples of SPLIT, counted from the sequence's first token: what
is summed in which order depends on a row alone.

Slots outside of what a tile may see aren't read, so they may hold anything.

Shapes: M rows of a tile, G of which in turn belong to the heads of one query; N keys of a block,
S sequences, H query heads, K key-value heads, J = 2K, D head dimension (padded to a power of 2),
P tokens in a page, C splits.
"""

import triton
import triton.language as tl

from model.triton.numbers import FLOAT8_DECODED, from_float8, product, tanh

VARIABLES = ("table_stride", "num_splits", "window")
"""What changes while serving, which must not mean to compile again."""
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=VARIABLES)
def attend_tile(
    q, out, pool, scales, table, tile_rows, tile_firsts, starts, query_lens, context_lens,
    q_stride, q_head_stride, table_stride, scale, softcap, window,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    WINDOWED: tl.constexpr, SOFTCAPPED: tl.constexpr, FLOAT8: tl.constexpr,
):  # fmt: skip
    """One tile of a prompt's queries with all keys that they see: grid (tiles, K)."""
    row, head = tl.load(tile_rows + tl.program_id(0)), tl.program_id(1)
    if row < 0:
        return
    G: tl.constexpr = H // K
    first = tl.load(tile_firsts + tl.program_id(0))
    num_queries = tl.minimum(tl.load(query_lens + row) - first, BLOCK_M // G)
    position = tl.load(context_lens + row) - tl.load(query_lens + row) + first
    rows_M, dims_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    is_query_M = rows_M < num_queries * G
    tokens_M = tl.load(starts + row).to(tl.int64) + first + rows_M // G
    heads_M = head * G + rows_M % G
    mask_MD = is_query_M[:, None] & (dims_D < D)[None, :]
    from_MD = (tokens_M * q_stride + heads_M * q_head_stride)[:, None] + dims_D[None, :]
    positions_M = tl.where(is_query_M, position + rows_M // G, -1)
    q_MD = tl.load(q + from_MD, mask=mask_MD, other=0.0)
    lowest = tl.maximum(position - window + 1, 0) if WINDOWED else 0
    _, sum_M, out_MD = _attend_keys(
        q_MD, positions_M, lowest, lowest // BLOCK_N * BLOCK_N, position + num_queries,
        pool, scales, table + row.to(tl.int64) * table_stride, head, scale, softcap, window,
        K, D, P, BLOCK_M, BLOCK_N, BLOCK_D, WINDOWED, SOFTCAPPED, FLOAT8,
    )  # fmt: skip
    out_MD /= tl.where(sum_M > 0, sum_M, 1.0)[:, None]
    to_MD = (tokens_M * H + heads_M)[:, None] * D + dims_D[None, :]
    tl.store(out + to_MD, out_MD.to(out.dtype.element_ty), mask=mask_MD)


@triton.jit(do_not_specialize=VARIABLES)
def attend_splits(
    q, parts, part_logs, pool, scales, table, starts, query_lens, context_lens,
    q_stride, q_head_stride, table_stride, num_splits, scale, softcap, window,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, P: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    WINDOWED: tl.constexpr, SOFTCAPPED: tl.constexpr, FLOAT8: tl.constexpr,
):  # fmt: skip
    """Rows of one query, a split of the context at a time: grid (S, K, any), whose programs take
    turns with the splits. Fills parts_SHCD, each a mean of values, and the log of its weight."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(query_lens + row) != 1:
        return
    G: tl.constexpr = H // K
    position = tl.load(context_lens + row) - 1
    rows_M, dims_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    heads_M = head * G + rows_M
    mask_MD = (rows_M < G)[:, None] & (dims_D < D)[None, :]
    from_MD = (heads_M * q_head_stride)[:, None] + dims_D[None, :]
    q_MD = tl.load(q + tl.load(starts + row) * q_stride + from_MD, mask=mask_MD, other=0.0)
    positions_M = tl.where(rows_M < G, position, -1)
    lowest = tl.maximum(position - window + 1, 0) if WINDOWED else 0
    first, turns = lowest // SPLIT + tl.program_id(2), tl.num_programs(2)
    for split in range(first, position // SPLIT + 1, turns):
        begin = tl.maximum(split * SPLIT, lowest // BLOCK_N * BLOCK_N)
        best_M, sum_M, out_MD = _attend_keys(
            q_MD, positions_M, lowest, begin, tl.minimum(split * SPLIT + SPLIT, position + 1),
            pool, scales, table + row * table_stride, head, scale, softcap, window,
            K, D, P, BLOCK_M, BLOCK_N, BLOCK_D, WINDOWED, SOFTCAPPED, FLOAT8,
        )  # fmt: skip
        sum_M = tl.where(sum_M > 0, sum_M, 1.0)
        parts_M = (row * H + heads_M) * num_splits + split
        to_MD = parts_M[:, None] * D + dims_D[None, :]
        tl.store(parts + to_MD, out_MD / sum_M[:, None], mask=mask_MD)
        tl.store(part_logs + parts_M, best_M + tl.log2(sum_M), mask=rows_M < G)


@triton.jit(do_not_specialize=("num_splits", "window"))
def join_splits(
    parts, part_logs, out, starts, query_lens, context_lens, num_splits, window,
    H: tl.constexpr, D: tl.constexpr, SPLIT: tl.constexpr, BLOCK_D: tl.constexpr,
    WINDOWED: tl.constexpr,
):  # fmt: skip
    """The mean of a head's parts by their weights, first to last: grid (S, H)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(query_lens + row) != 1:
        return
    position = tl.load(context_lens + row) - 1
    lowest = tl.maximum(position - window + 1, 0) if WINDOWED else 0
    dims_D = tl.arange(0, BLOCK_D)
    first = (row * H + head) * num_splits
    best, total = float("-inf"), 0.0
    out_D = tl.zeros([BLOCK_D], tl.float32)
    for split in range(lowest // SPLIT, position // SPLIT + 1):
        log = tl.load(part_logs + first + split)
        part_D = tl.load(parts + (first + split) * D + dims_D, mask=dims_D < D, other=0.0)
        higher = tl.maximum(best, log)
        faded, weight = tl.exp2(best - higher), tl.exp2(log - higher)
        out_D, total, best = out_D * faded + part_D * weight, total * faded + weight, higher
    to_D = (tl.load(starts + row).to(tl.int64) * H + head) * D + dims_D
    tl.store(out + to_D, (out_D / total).to(out.dtype.element_ty), mask=dims_D < D)


@triton.jit
def _attend_keys(
    q_MD, positions_M, lowest, begin, stop, pool, scales, pages, head, scale, softcap, window,
    K: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    WINDOWED: tl.constexpr, SOFTCAPPED: tl.constexpr, FLOAT8: tl.constexpr,
):  # fmt: skip
    """The largest score (to the base of 2), the sum of weights and the weighted sum of values, over
    the keys in [begin, stop), of which those before `lowest` aren't read."""
    best_M = tl.full([BLOCK_M], float("-inf"), tl.float32)
    sum_M = tl.zeros([BLOCK_M], tl.float32)
    out_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    dims_D = tl.arange(0, BLOCK_D)
    for start in range(begin, stop, BLOCK_N):
        keys_N = start + tl.arange(0, BLOCK_N)
        is_read_N = (keys_N >= lowest) & (keys_N < stop)
        pages_N = tl.load(pages + keys_N // P, mask=is_read_N, other=0).to(tl.int64)
        slots_N = (pages_N * (2 * K) + head) * P + keys_N % P
        mask_ND = is_read_N[:, None] & (dims_D < D)[None, :]
        at_ND = slots_N[:, None] * D + dims_D[None, :]
        k_ND = _load(pool + at_ND, mask_ND, q_MD.dtype, FLOAT8)
        v_ND = _load(pool + at_ND + K * P * D, mask_ND, q_MD.dtype, FLOAT8)
        scores_MN = product(q_MD, tl.trans(k_ND)) * scale
        if FLOAT8:
            scores_MN *= _scales(scales + slots_N, is_read_N)[None, :]
        if SOFTCAPPED:
            scores_MN = softcap * tanh(scores_MN / softcap)
        is_seen_MN = is_read_N[None, :] & (keys_N[None, :] <= positions_M[:, None])
        if WINDOWED:
            is_seen_MN &= keys_N[None, :] > positions_M[:, None] - window
        scores_MN = tl.where(is_seen_MN, scores_MN * LOG2_E, float("-inf"))
        higher_M = tl.maximum(best_M, tl.max(scores_MN, 1))
        ceiling_M = tl.where(higher_M == float("-inf"), 0.0, higher_M)  # lest ∞ - ∞ be NaN
        weights_MN = tl.exp2(scores_MN - ceiling_M[:, None])
        faded_M = tl.exp2(best_M - ceiling_M)
        sum_M, best_M = sum_M * faded_M + tl.sum(weights_MN, 1), higher_M
        if FLOAT8:
            weights_MN *= _scales(scales + slots_N + K * P, is_read_N)[None, :]
        out_MD = out_MD * faded_M[:, None] + product(weights_MN.to(q_MD.dtype), v_ND)
    return best_M, sum_M, out_MD


@triton.jit
def _scales(at_N, mask_N):
    return tl.load(at_N, mask=mask_N, other=0.0) * FLOAT8_DECODED


@triton.jit
def _load(at_ND, mask_ND, dtype: tl.constexpr, FLOAT8: tl.constexpr):
    """Of an e4m3, a 256th, which `_scales` makes up for."""
    if FLOAT8:
        return from_float8(tl.load(at_ND, mask=mask_ND, other=0)).to(dtype)
    return tl.load(at_ND, mask=mask_ND, other=0.0).to(dtype)

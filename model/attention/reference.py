"""The obvious attention: gathers pages, masks padding and future, calls PyTorch's attention.

Neighbouring rows with as many queries share a group, so that no query is ever padded; the keys of
single queries are padded to the group's longest context. Several queries beside more keys would get
other bits from PyTorch on processors without AVX-512, so those rows have as many pages as well. The
runner puts alike rows next to each other:

    queries of a row     1   1   1   │ 1   1   │ 7       │ 480
    pages of its keys    2   3   3   │ 20  22  │ 1       │ 30
                         decodes     │ decodes │ prompts, or chunks of them

Shapes: T packed tokens, S sequences of a group, Q queries of each, N pages of each, C keys,
H query heads, K key-value heads, J = 2K, D head dimension.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model.attention.backend import Place
from model.config import ModelConfig
from model.kv_cache import LayerCache, chunk_ids
from model.masks import additive, causal_mask, padding_mask, window_mask
from model.packing import RaggedBatch

PAGE_SIZE = 16
GROUP_COST = 8
"""A group more costs about as much time as this many pages gathered and masked in vain."""


@dataclass(frozen=True, slots=True)
class Group:
    num_tokens: int
    query_len: int
    chunk_ids_SJN: Tensor
    mask_S1QC: Tensor


Plan = list[Group]


def refusal(config: ModelConfig, place: Place) -> str:
    return ""


def prepare(
    batch: RaggedBatch,
    *,
    num_heads: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    window: int | None = None,
) -> Plan:
    query_lens = batch.query_lens_S.tolist()
    num_pages = (-(-batch.context_lens_S // PAGE_SIZE)).tolist()
    positions = torch.split(batch.positions_T, query_lens)
    groups = []
    for first, stop in _alike(query_lens, num_pages):
        positions_SQ = torch.stack(positions[first:stop])
        table_SN = batch.page_table_SN[first:stop, : max(num_pages[first:stop])]
        num_keys = table_SN.shape[1] * PAGE_SIZE
        mask_SQC = causal_mask(positions_SQ, num_keys=num_keys)
        if window is not None:
            mask_SQC &= window_mask(positions_SQ, num_keys=num_keys, window=window)
        # The future is masked, and all padding lies in it; said all the same, as the oracle should.
        mask_SQC &= padding_mask(batch.context_lens_S[first:stop], num_keys=num_keys)[:, None]
        groups.append(
            Group(
                num_tokens=positions_SQ.numel(),
                query_len=query_lens[first],
                chunk_ids_SJN=chunk_ids(table_SN, num_kv_heads=num_kv_heads),
                mask_S1QC=additive(mask_SQC, dtype=dtype)[:, None],
            )
        )
    return groups


def attend(
    q_THD: Tensor,
    cache: LayerCache,
    plan: Plan,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """scale: of the scores, if not 1/√D. softcap: the most that a score can be, softly."""
    queries = torch.split(q_THD, [group.num_tokens for group in plan])
    return torch.cat(
        [
            _attend_group(q, cache, group, scale=scale, softcap=softcap)
            for q, group in zip(queries, plan, strict=True)
        ]
    )


def _attend_group(
    q_THD: Tensor, cache: LayerCache, group: Group, *, scale: float | None, softcap: float | None
) -> Tensor:
    q_SHQD = q_THD.view(-1, group.query_len, *q_THD.shape[1:]).transpose(1, 2)
    k_SKCD, v_SKCD = cache.gather(group.chunk_ids_SJN).to(q_THD.dtype).chunk(2, dim=1)
    if softcap is None:
        out_SHQD = scaled_dot_product_attention(
            q_SHQD, k_SKCD, v_SKCD, attn_mask=group.mask_S1QC, scale=scale, enable_gqa=True
        )
    else:
        q_SHQD = q_SHQD * (q_SHQD.shape[-1] ** -0.5 if scale is None else scale)
        out_SHQD = _softcapped_attention(q_SHQD, k_SKCD, v_SKCD, group.mask_S1QC, softcap)
    return out_SHQD.transpose(1, 2).flatten(0, 1)


def _softcapped_attention(
    q_SHQD: Tensor, k_SKCD: Tensor, v_SKCD: Tensor, mask_S1QC: Tensor, softcap: float
) -> Tensor:
    """softmax(softcap·tanh(QKᵀ/softcap) + M)V, as Gemma 2 wants it (arXiv:2408.00118)."""
    num_sharing = q_SHQD.shape[1] // k_SKCD.shape[1]
    k_SHCD, v_SHCD = (kv.repeat_interleave(num_sharing, dim=1) for kv in (k_SKCD, v_SKCD))
    scores_SHQC = softcap * torch.tanh(q_SHQD @ k_SHCD.transpose(2, 3) / softcap)
    return torch.softmax(scores_SHQC + mask_S1QC, dim=-1) @ v_SHCD


def _alike(query_lens: list[int], num_pages: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of rows with as many queries, where padding costs less than one group more, or where
    there is none."""
    first, widest = 0, num_pages[0]
    for row in range(1, len(query_lens)):
        wider = num_pages[row] - widest
        fits = (row - first) * wider <= GROUP_COST if query_lens[row] == 1 else wider == 0
        if query_lens[row] != query_lens[first] or not fits:
            yield first, row
            first, widest = row, 0
        widest = max(widest, num_pages[row])
    yield first, len(query_lens)

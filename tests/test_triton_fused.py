"""Triton's kernels between the matrix products, against PyTorch's functions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from model import fused as plain
from model.attention.backend import Place, UnfitError
from model.float8 import FLOAT8, MOST
from model.fused import ACTIVATIONS
from model.kv_cache import KVCache, chunk_ids
from model.rope import Rotation, plain_frequencies, rotation_at
from model.triton import fused, self_test
from tests.tiny_llama import CONFIG
from tests.triton_device import DEVICE

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
dtypes = st.sampled_from([*TOLERANCES])
lengths = st.integers(1, 5)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills what torch.empty gives with NaN
    yield
    torch.use_deterministic_algorithms(False)


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)


def agree(ours: Tensor, wanted: Tensor) -> None:
    bound = TOLERANCES[wanted.dtype]
    assert_close(ours, wanted, rtol=bound, atol=bound)


@settings(max_examples=20, deadline=None)
@given(num_tokens=lengths, width=st.integers(1, 700), dtype=dtypes)
def test_add_norm(num_tokens: int, width: int, dtype: torch.dtype) -> None:
    norm = nn.RMSNorm(width, eps=1e-3).to(DEVICE, dtype)
    nn.init.normal_(norm.weight)
    x_TW, branch_TW = random(2, num_tokens, width, dtype=dtype)
    (ours_TW, ours_normed_TW), (sum_TW, normed_TW) = (
        kernels.add_norm(x_TW, branch_TW, norm) for kernels in (fused, plain)
    )
    agree(ours_TW, sum_TW)  # the interpreter cuts a bfloat16 off instead of rounding it
    agree(ours_normed_TW, normed_TW)


def test_other_norms_are_pytorchs() -> None:
    x_TW, branch_TW = random(2, 3, 20, dtype=torch.float32)
    for norm in (nn.LayerNorm(20, device=DEVICE), nn.Identity()):
        for ours, wanted in zip(
            fused.add_norm(x_TW, branch_TW, norm),
            plain.add_norm(x_TW, branch_TW, norm),
            strict=True,
        ):
            assert torch.equal(ours, wanted)


@settings(max_examples=30, deadline=None)
@given(
    num_tokens=lengths,
    width=st.integers(1, 2500),
    dtype=dtypes,
    activation=st.sampled_from([*ACTIVATIONS]),
)
def test_gate(num_tokens: int, width: int, dtype: torch.dtype, activation: str) -> None:
    gate_up_TF = 3 * random(num_tokens, 2 * width, dtype=dtype)
    agree(fused.gate(gate_up_TF, activation), plain.gate(gate_up_TF, activation))


def test_an_unknown_activation_is_a_bug() -> None:
    with pytest.raises(Exception, match=r"static_assert|AssertionError"):
        fused.gate(random(1, 8, dtype=torch.float32), "swoosh")


@settings(max_examples=20, deadline=None)
@given(
    num_tokens=lengths,
    heads=st.sampled_from([(4, 2), (7, 1), (3, 3), (12, 4)]),
    dims=st.sampled_from([(64, 64), (80, 32), (64, 0), (128, 128)]),
    page_size=st.sampled_from([16, 256]),
    dtype=dtypes,
    is_float8=st.booleans(),
)
def test_rotate_and_cache(
    num_tokens: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    page_size: int,
    dtype: torch.dtype,
    is_float8: bool,
) -> None:
    """Slots in any order; all others stay as they are."""
    (num_heads, num_kv_heads), (head_dim, rotary_dim) = heads, dims
    qkv = random(num_tokens, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype)
    slots_T = torch.randperm(3 * page_size)[:num_tokens].to(DEVICE)
    config = replace(
        CONFIG,
        num_layers=1,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        positions="learned",
    )
    caches = [
        KVCache.allocate(
            config,
            num_pages=3,
            page_size=page_size,
            dtype=FLOAT8 if is_float8 else dtype,
            device=DEVICE,
        )
        for _ in range(2)
    ]
    ours_THD, q_THD = (
        kernels.rotate_and_cache(
            qkv.clone(),
            rotation(rotary_dim, slots_T * 99, dtype),
            cache.layers[0],
            num_heads=num_heads,
            page_ids_T=slots_T // page_size,
            offsets_T=slots_T % page_size,
        )
        for kernels, cache in zip((fused, plain), caches, strict=True)
    )
    agree(ours_THD, q_THD)
    chunks_SJN = chunk_ids(torch.arange(3, device=DEVICE)[None], num_kv_heads=num_kv_heads)
    ours_SJCD, kv_SJCD = (cache.layers[0].gather(chunks_SJN) for cache in caches)
    if not is_float8:
        agree(ours_SJCD, kv_SJCD)
    else:  # to the next number of e4m3, where rounding decides
        amplitude = kv_SJCD.abs().amax(-1, keepdim=True)
        error_SJCD = (ours_SJCD - kv_SJCD).abs()
        assert (error_SJCD <= kv_SJCD.abs() / 8 + amplitude * 2 * TOLERANCES[dtype]).all()


def rotation(dim: int, positions_T: Tensor, dtype: torch.dtype) -> Rotation | None:
    if dim == 0:
        return None
    return rotation_at(positions_T, plain_frequencies(dim, 1e4).to(DEVICE), dtype=dtype, scale=1.1)


def test_e4m3_is_rounded_as_pytorch_rounds_it() -> None:
    """A head for each vector of bits: all numbers of e4m3, what lies halfway between them, and
    what lies beside that; the first is the largest, so that the scale is 1."""
    numbers = torch.arange(0x7F, dtype=torch.uint8).view(FLOAT8).float()
    halves = (numbers[1:] + numbers[:-1]) / 2
    beside = torch.cat([halves * (1 + 2**-20), halves * (1 - 2**-20)])
    values = torch.cat([numbers, halves, beside])
    values = torch.cat([values, -values])
    values = torch.nn.functional.pad(values, (0, -len(values) % 63)).view(-1, 63)
    heads = torch.cat([torch.full((len(values), 1), MOST), values], dim=1)
    config = replace(
        CONFIG, num_layers=1, num_heads=len(heads), num_kv_heads=len(heads), head_dim=64
    )
    caches = [KVCache.allocate(config, num_pages=1, page_size=16, dtype=FLOAT8, device=DEVICE)] * 2
    qkv = torch.cat([heads[:1], heads, heads])[None].to(DEVICE)
    zero = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    pools = []
    for kernels, cache in zip((fused, plain), caches, strict=True):
        kernels.rotate_and_cache(
            qkv, None, cache.layers[0], num_heads=1, page_ids_T=zero, offsets_T=zero
        )
        pools.append(cache.layers[0].pool_NJPD.clone())
    assert torch.equal(*(pool.view(FLOAT8).float() for pool in pools))


@pytest.mark.parametrize(
    ("changes", "cache_dtype"),
    [({}, FLOAT8), ({"positions": "learned", "activation": "gelu_tanh"}, torch.bfloat16)],
    ids=["plain, float8", "learned positions, gelu"],
)
def test_they_pass_the_self_test(changes: dict[str, Any], cache_dtype: torch.dtype) -> None:
    self_test.check(replace(CONFIG, **changes), Place(DEVICE, torch.bfloat16, cache_dtype))


def test_what_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(DEVICE, torch.float32, torch.float32)
    monkeypatch.setattr(fused, "gate", lambda *args: plain.gate(*args) + 1)
    with pytest.raises(UnfitError, match=r"^its gate is 1 off PyTorch's$"):
        self_test.check(CONFIG, place)
    monkeypatch.undo()
    monkeypatch.setattr(self_test.TritonSampler, "draw", lambda *args: torch.zeros(4).long())
    with pytest.raises(UnfitError, match=r"^it draws other tokens than PyTorch$"):
        self_test.check(CONFIG, place)

"""The attention that PyTorch brings along, in the place of which a CPU has what its documentation
says."""

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn_out

from model.attention import self_test, varlen
from model.attention.backend import Place, UnfitError
from model.kv_cache import CPU
from tests.tiny_llama import CONFIG

SIGNATURE = inspect.signature(varlen_attn_out)
HALF = Place(CPU, torch.float16, torch.float16)


def documented(*args: Any, **kwargs: Any) -> Tensor:
    """One query at a time, in float32."""
    a = SIGNATURE.bind(*args, **kwargs).arguments
    assert a["enable_gqa"]
    assert a["block_table"].dtype == a["seqused_k"].dtype == a["cu_seq_q"].dtype == torch.int32
    assert a["cu_seq_k"].diff().equal(a["seqused_k"])
    assert a["max_q"] >= a["cu_seq_q"].diff().max()
    assert a["max_k"] >= a["seqused_k"].max()
    assert a["num_splits"] == 1, "a row's bits would depend on the longest context"
    for row, num_keys in enumerate(a["seqused_k"].tolist()):
        first, stop = a["cu_seq_q"][row : row + 2].tolist()
        k_CKD, v_CKD = (
            a[name][a["block_table"][row]].flatten(0, 1)[:num_keys].float()
            for name in ("key", "value")
        )
        for index in range(first, stop):
            position = num_keys - stop + index
            before, behind = a["window_size"]
            seen = slice(max(position - before, 0) if before >= 0 else 0, position + behind + 1)
            a["out"][index] = attended(a["query"][index].float(), k_CKD[seen], v_CKD[seen], a)
    return a["out"]


def attended(q_HD: Tensor, k_CKD: Tensor, v_CKD: Tensor, a: dict[str, Any]) -> Tensor:
    k_HCD, v_HCD = (
        x.repeat_interleave(len(q_HD) // x.shape[1], 1).transpose(0, 1) for x in (k_CKD, v_CKD)
    )
    scale = q_HD.shape[1] ** -0.5 if a["scale"] is None else a["scale"]
    weights_H1C = (q_HD[:, None] @ k_HCD.mT * scale).softmax(-1)
    return (weights_H1C @ v_HCD)[:, 0].to(a["out"].dtype)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_scale": 0.3},
        {"sliding_window": 40, "local_layers": frozenset({0})},
    ],
    ids=["plain", "scale", "window"],
)
def test_it_asks_for_the_attention_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn_out", documented)
    self_test.check(varlen, replace(CONFIG, **changes), HALF)


@pytest.mark.parametrize(
    ("changes", "place", "reason"),
    [
        ({}, HALF, ""),
        ({}, HALF._replace(dtype=torch.float32), "it doesn't compute in torch.float32"),
        (
            {},
            HALF._replace(cache_dtype=torch.float8_e4m3fn),
            "it doesn't read a cache in torch.float8_e4m3fn",
        ),
        ({"attention_softcap": 5.0}, HALF, "it has no softcap"),
        ({"head_dim": 100}, HALF, "it has no heads of 100 dimensions"),
        ({"head_dim": 264}, HALF, "it has no heads of 264 dimensions"),
    ],
)
def test_what_it_cannot_do_it_refuses(changes: dict[str, Any], place: Place, reason: str) -> None:
    assert varlen.refusal(replace(CONFIG, **changes), place) == reason


def test_a_torch_without_pages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn_out", lambda out, query: out)
    assert varlen.refusal(CONFIG, HALF) == f"PyTorch {torch.__version__} has it without pages"


def test_a_device_without_it_is_found_out() -> None:
    with pytest.raises((NotImplementedError, RuntimeError)):
        self_test.check(varlen, CONFIG, HALF)


def test_a_wrong_result_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(out: Tensor, *args: Any, **kwargs: Any) -> None:
        documented(out, *args, **kwargs)
        out[-1, 0, 0] += 0.1

    monkeypatch.setattr(varlen, "varlen_attn_out", off)
    with pytest.raises(UnfitError, match=r"^it is 0.1 off the reference, with a window of None$"):
        self_test.check(varlen, CONFIG, HALF)


def test_bits_that_depend_on_the_batch_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(out: Tensor, *args: Any, **kwargs: Any) -> None:
        documented(out, *args, **kwargs)
        out *= 1 + (len(out) > 90) * 1e-3

    monkeypatch.setattr(varlen, "varlen_attn_out", off)
    with pytest.raises(UnfitError, match=r"^a row's bits depend on what is beside it$"):
        self_test.check(varlen, CONFIG, HALF)

"""Packed linear layers against plain ones, and the bits of a row in batches of any size."""

import pytest
import torch
from torch import nn

from model.linear import PackedLinear, pack_linears


@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 33, 64, 300])
def test_packed_is_as_plain(num_rows: int) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(576, 960, bias=False)
    packed = PackedLinear(plain.weight.detach())
    x_TI = torch.randn(num_rows, 576)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x_TI), plain(x_TI), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(576, 960), (1536, 576), (576, 3072)])
def test_a_row_has_the_same_bits_in_any_batch(num_inputs: int, num_outputs: int) -> None:
    torch.manual_seed(0)
    packed = PackedLinear(torch.randn(num_outputs, num_inputs))
    x_TI = torch.randn(64, num_inputs)
    with torch.inference_mode():
        whole = packed(x_TI)
        for first, stop in [(0, 1), (7, 8), (3, 20), (0, 31), (33, 64)]:
            assert torch.equal(packed(x_TI[first:stop].clone()), whole[first:stop])


def test_all_linears_of_a_model_are_replaced() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Sequential(nn.Linear(8, 4, bias=False)))
    x_TI = torch.ones(3, 8)
    with torch.inference_mode():
        expected = model(x_TI)
        pack_linears(model)
        torch.testing.assert_close(model(x_TI), expected)
    assert not [module for module in model.modules() if isinstance(module, nn.Linear)]


def test_without_onednn_the_plain_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    pack_linears(model)
    assert isinstance(model[0], nn.Linear)

"""Packed linear layers against plain ones, and the bits of a row in batches of any size."""

import pytest
import torch
from torch import nn

from model.linear import PackedLinear, packed


@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 33, 64, 300])
def test_packed_is_as_plain(num_rows: int) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(576, 960, bias=False)
    x_TI = torch.randn(num_rows, 576)
    with torch.inference_mode():
        torch.testing.assert_close(packed(plain)(x_TI), plain(x_TI), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(576, 960), (1536, 576), (576, 3072)])
def test_a_row_has_the_same_bits_in_any_batch(num_inputs: int, num_outputs: int) -> None:
    torch.manual_seed(0)
    linear = PackedLinear(torch.randn(num_outputs, num_inputs))
    x_TI = torch.randn(64, num_inputs)
    with torch.inference_mode():
        whole = linear(x_TI)
        for first, stop in [(0, 1), (7, 8), (3, 20), (0, 31), (33, 64)]:
            assert torch.equal(linear(x_TI[first:stop].clone()), whole[first:stop])


def test_without_onednn_a_layer_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nn.Linear(8, 8, bias=False)
    assert isinstance(packed(plain), PackedLinear)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert packed(plain) is plain

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from model.masks import additive, causal_mask, padding_mask, window_mask


def test_causal_mask_is_the_picture() -> None:
    mask = causal_mask(torch.tensor([2, 3, 4]), num_keys=6)
    assert mask.int().tolist() == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
    ]


def test_causal_mask_takes_one_row_of_positions_per_sequence() -> None:
    mask = causal_mask(torch.tensor([[0, 1], [1, 2]]), num_keys=3)
    assert mask.int().tolist() == [[[1, 0, 0], [1, 1, 0]], [[1, 1, 0], [1, 1, 1]]]


def test_window_mask_is_the_picture() -> None:
    positions = torch.tensor([2, 3, 4])
    mask = window_mask(positions, num_keys=6, window=2)
    assert mask.int().tolist() == [
        [0, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1],
        [0, 0, 0, 1, 1, 1],
    ]
    both = mask & causal_mask(positions, num_keys=6)
    assert both.int().tolist() == [
        [0, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
    ]


def test_padding_mask_is_the_picture() -> None:
    mask = padding_mask(torch.tensor([2, 6, 3]), num_keys=6)
    assert mask.int().tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0],
    ]


def test_additive_is_zero_or_minus_infinity() -> None:
    values = additive(torch.tensor([True, False]), dtype=torch.float64)
    assert values.tolist() == [0.0, -math.inf]
    assert values.dtype == torch.float64


def test_softmax_of_scores_plus_mask_by_hand() -> None:
    """softmax(QKᵀ/√d + M)V with d = 4, so √d = 2, over keys of which only two are real.

    q = (2, 0, 0, 0) meets k0 = (ln 3, 0, 0, 0) and k1 = 0 and the padding k2 = (9, 9, 9, 9):
    scores 2·ln3/2 = ln 3, 0, -∞, weights 3/4, 1/4, 0, output 3/4·(4, 0) + 1/4·(0, 8) = (3, 2).
    """
    q = torch.tensor([[[2.0, 0, 0, 0]]])
    k = torch.tensor([[[math.log(3), 0, 0, 0], [0, 0, 0, 0], [9, 9, 9, 9]]])
    v = torch.tensor([[[4.0, 0], [0, 8], [7, 7]]])
    mask = additive(padding_mask(torch.tensor([2]), num_keys=3), dtype=torch.float32)
    scores = q @ k.transpose(1, 2) / 2 + mask
    assert scores[0, 0].tolist() == pytest.approx([math.log(3), 0, -math.inf])
    assert (torch.softmax(scores, -1) @ v)[0, 0].tolist() == pytest.approx([3, 2])
    attended = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert attended[0, 0].tolist() == pytest.approx([3, 2])


def test_causal_attention_by_hand() -> None:
    """Equal scores: each query averages the values that it may see."""
    q = k = torch.zeros(1, 3, 4)
    v = torch.tensor([[[6.0], [2.0], [1.0]]])
    mask = additive(causal_mask(torch.arange(3), num_keys=3), dtype=torch.float32)
    attended = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert attended.flatten().tolist() == pytest.approx([6, 4, 3])


def test_a_window_of_one_sees_itself_alone() -> None:
    v = torch.tensor([[[6.0], [2.0], [1.0]]])
    mask = causal_mask(torch.arange(3), num_keys=3)
    mask &= window_mask(torch.arange(3), num_keys=3, window=1)
    attended = scaled_dot_product_attention(
        torch.zeros(1, 3, 4), torch.zeros(1, 3, 4), v, attn_mask=additive(mask, dtype=torch.float32)
    )
    assert attended.flatten().tolist() == [6, 2, 1]

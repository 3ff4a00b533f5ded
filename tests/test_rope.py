import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from model.rope import Rotation, inverse_frequencies, rotate_, rotation_at
from model.scaling import Llama3Scaling
from tests.tiny_llama import CONFIG

LLAMA3 = Llama3Scaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_len=8192
)


def rotation(*positions: int) -> Rotation:
    frequency_F = inverse_frequencies(CONFIG)
    return rotation_at(torch.tensor(positions), frequency_F, dtype=torch.float64)


def test_frequencies_fall_from_one_radian_by_powers_of_theta() -> None:
    frequency_F = inverse_frequencies(replace(CONFIG, head_dim=4, rope_theta=100.0))
    assert frequency_F.tolist() == pytest.approx([1.0, 0.1])


def test_llama3_scaling_is_that_of_transformers() -> None:
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(
            head_dim=128,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500_000.0,
                "factor": LLAMA3.factor,
                "low_freq_factor": LLAMA3.low_freq_factor,
                "high_freq_factor": LLAMA3.high_freq_factor,
                "original_max_position_embeddings": LLAMA3.original_context_len,
            },
        )
    )
    config = replace(CONFIG, head_dim=128, rope_theta=500_000.0, rope_scaling=LLAMA3)
    torch.testing.assert_close(inverse_frequencies(config), theirs.inv_freq)


def test_llama3_scaling_spares_fast_turns_and_slows_slow_ones() -> None:
    plain = replace(CONFIG, head_dim=128, rope_theta=500_000.0)
    ratio_F = inverse_frequencies(replace(plain, rope_scaling=LLAMA3)) / inverse_frequencies(plain)
    assert ratio_F[0] == 1
    assert ratio_F[-1] == pytest.approx(1 / LLAMA3.factor)
    assert ((ratio_F >= 0.125 - 1e-6) & (ratio_F <= 1)).all()


def test_rotation_turns_a_pair_by_the_position_in_radians() -> None:
    x_THD = torch.zeros(1, 1, 8, dtype=torch.float64)
    x_THD[0, 0, 0] = 1  # with dimension 4, the fastest pair
    rotate_(x_THD, rotation(2))
    assert x_THD[0, 0, 0].item() == pytest.approx(math.cos(2))
    assert x_THD[0, 0, 4].item() == pytest.approx(math.sin(2))
    assert x_THD.norm().item() == pytest.approx(1)


def test_position_zero_changes_nothing() -> None:
    x_THD = torch.randn(1, 3, 8, dtype=torch.float64)
    assert torch.equal(rotate_(x_THD.clone(), rotation(0)), x_THD)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 1000))
def test_scores_depend_on_the_distance_alone(query: int, key: int, shift: int) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 8, dtype=torch.float64)

    def score(query_position: int, key_position: int) -> torch.Tensor:
        turned_q = rotate_(q.clone(), rotation(query_position))
        return (turned_q * rotate_(k.clone(), rotation(key_position))).sum()

    # The angles are float32, so that a position near 1000 is known to some 1e-4 radians.
    torch.testing.assert_close(
        score(query, key), score(query + shift, key + shift), atol=1e-3, rtol=0
    )

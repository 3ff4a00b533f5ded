"""Bias, penalties and bans, each against its definition in plain arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from model.batch import Context, SamplingParams
from model.logits import adjusted
from model.sampling import Sampler
from tests.distributions import chi_square_p, exact_probs

LOGITS = [2.0, -1.0, 0.5, 0.0, 3.0, -2.0, 1.0, 0.25, -0.5]
KNOWN = Context(known_ids=[0, 1, 1, 4, 5, 4, 4], prompt_len=3)  # the output is 4 5 4 4
PENALTIES = [
    SamplingParams(),
    SamplingParams(repetition_penalty=1.5),
    SamplingParams(repetition_penalty=0.5),
    SamplingParams(frequency_penalty=0.3),
    SamplingParams(frequency_penalty=-2.0),
    SamplingParams(presence_penalty=0.7),
    SamplingParams(presence_penalty=-1.0, frequency_penalty=0.1, repetition_penalty=2.0),
    SamplingParams(logit_bias={0: -100.0, 3: 5.0}),
    SamplingParams(logit_bias={4: -3.5}, repetition_penalty=1.3, presence_penalty=2.0),
]


def defined(logits: Sequence[float], params: SamplingParams, context: Context) -> list[float]:
    """What the parameters mean, one token at a time."""
    output = list(context.known_ids[context.prompt_len :])
    result = []
    for token_id, given in enumerate(logits):
        logit = given + params.logit_bias.get(token_id, 0.0)
        if token_id in context.known_ids:
            penalty = params.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
        logit -= params.frequency_penalty * output.count(token_id)
        logit -= params.presence_penalty * (token_id in output)
        bits = context.allowed() if context.allowed else b"\xff\xff"
        allowed = bits[token_id // 8] >> token_id % 8 & 1
        result.append(logit if allowed and token_id not in context.forbidden_ids else -math.inf)
    return result


@pytest.mark.parametrize("params", PENALTIES)
@pytest.mark.parametrize(
    "bans", [{}, {"forbidden_ids": {4, 7}}, {"allowed": lambda: bytes([0b10110011, 0b1])}]
)
def test_each_row_gets_what_its_parameters_mean(
    params: SamplingParams, bans: dict[str, Any]
) -> None:
    context = replace(KNOWN, **bans)
    logits_SV = torch.tensor([LOGITS, LOGITS[::-1], LOGITS])
    plain = SamplingParams()
    result_SV = adjusted(logits_SV, [plain, params, plain], [None, context, None])
    assert result_SV[0].tolist() == result_SV[2].tolist() == LOGITS
    assert result_SV[1].tolist() == pytest.approx(defined(LOGITS[::-1], params, context))
    assert logits_SV[1].tolist() == LOGITS[::-1], "logprobs are of the logits as they came"


def test_rows_of_all_kinds_go_together() -> None:
    logits_SV = torch.tensor([LOGITS] * len(PENALTIES))
    result_SV = adjusted(logits_SV, PENALTIES, [KNOWN] * len(PENALTIES))
    for row, params in enumerate(PENALTIES):
        assert result_SV[row].tolist() == pytest.approx(defined(LOGITS, params, KNOWN))


def test_without_any_wish_nothing_is_copied() -> None:
    logits_SV = torch.tensor([LOGITS])
    assert adjusted(logits_SV, [SamplingParams()], [None]) is logits_SV


def test_what_is_banned_is_not_drawn_greedily_nor_by_chance() -> None:
    sampler = Sampler(len(LOGITS))
    for params in (SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_k=3)):
        drawn = {
            sampler.sample(
                torch.tensor([LOGITS]),
                [0],
                [replace(params, seed=seed)],
                [Context(forbidden_ids={0, 4}, allowed=lambda: bytes([0b11111101, 0]))],
            )[0].token_id
            for seed in range(200)
        }
        assert drawn <= {2, 3, 5, 6, 7}
        assert 6 in drawn, "the likeliest of the rest"


def test_logprobs_are_of_the_logits_before_any_of_it() -> None:
    params = SamplingParams(temperature=0, logit_bias={8: 100.0}, num_logprobs=1)
    (token,) = Sampler(len(LOGITS)).sample(torch.tensor([LOGITS]), [0], [params])
    assert token.token_id == 8
    assert token.logprobs is not None
    expected = torch.tensor(LOGITS).log_softmax(0)
    assert token.logprobs.chosen == pytest.approx(expected[8].item())
    ((likeliest, logprob),) = token.logprobs.top
    assert likeliest == 4
    assert logprob == pytest.approx(expected[4].item())


@pytest.mark.parametrize("drawing", [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 4}], ids=str)
@pytest.mark.parametrize("params", PENALTIES, ids=range(len(PENALTIES)))
@pytest.mark.parametrize(
    "bans", [{}, {"forbidden_ids": {4, 7}, "allowed": lambda: bytes([0b11110111, 1])}]
)
def test_draws_follow_what_bias_penalties_and_bans_leave(
    params: SamplingParams, bans: dict[str, Any], drawing: dict[str, Any]
) -> None:
    num_draws = 3_000
    params, context = replace(params, **drawing), replace(KNOWN, **bans)
    tokens = Sampler(len(LOGITS)).sample(
        torch.tensor(LOGITS).expand(num_draws, -1),
        range(num_draws),
        [params] * num_draws,
        [context] * num_draws,
    )
    drawn = torch.tensor([token.token_id for token in tokens])
    observed = torch.bincount(drawn, minlength=len(LOGITS)).tolist()
    expected = exact_probs(defined(LOGITS, params, context), params)
    assert chi_square_p(observed, expected) > 1e-3


@pytest.mark.parametrize("penalty", [5e-324, 1e-40, 1e-5, 1e5, 1e40, 1e308])
def test_no_penalty_makes_a_logit_infinite(penalty: float) -> None:
    params = SamplingParams(repetition_penalty=penalty)
    context = replace(KNOWN, known_ids=range(len(LOGITS)))
    (result,) = adjusted(torch.tensor([[*LOGITS[:-1], 0.0]]), [params], [context]).tolist()
    for before, after in zip([*LOGITS[:-1], 0.0], result, strict=True):
        assert math.isfinite(after / 0.01)
        assert before * after >= 0

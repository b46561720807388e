# SPDX-License-Identifier: Apache-2.0
"""Designed routing fixtures: boundaries, groups, ties, epsilon, bias near 28."""

import pytest
import torch

from gates.oracle.beam import steps
from vllm_gaudi.models.beam.router import route

GROUPS, KEPT, TOP = 8, 4, 8  # of 256 experts, as published
EXPERTS = 256


def logit(p: torch.Tensor | list[float]) -> torch.Tensor:
    p = torch.as_tensor(p, dtype=torch.float64)
    return (p / (1 - p)).log().float()


def random_logits(tokens: int = 512, seed: int = 5) -> torch.Tensor:
    return 1.5 * torch.randn(tokens, EXPERTS, generator=torch.Generator().manual_seed(seed))


def near_28(seed: int = 6) -> torch.Tensor:
    return 28 + 0.02 * torch.randn(EXPERTS, generator=torch.Generator().manual_seed(seed))


def chosen(ids: torch.Tensor) -> list[set[int]]:
    return [set(row.tolist()) for row in ids]


def test_choice_near_28_is_that_of_fp64_but_for_differences_below_an_ulp():
    logits, bias = random_logits(), near_28()
    _, ids = route(logits, bias, GROUPS, KEPT, TOP)
    _, wide = steps.route(logits.double(), bias.double(), GROUPS, KEPT, TOP)  # the bias is added in fp32 there too
    same = sum(a == b for a, b in zip(chosen(ids), chosen(wide), strict=True))
    assert same >= 509, "fp32 must not lose more than the odd tie"


@pytest.mark.parametrize("fault", ["stored bias", "corrected scores"])
def test_choice_near_28_is_lost_in_bf16(fault):
    """The control of the fixture above: either quantity in bf16 changes most choices."""
    logits, bias = random_logits(), near_28()
    _, right = route(logits, bias, GROUPS, KEPT, TOP)
    if fault == "stored bias":
        _, wrong = route(logits, bias.to(torch.bfloat16).float(), GROUPS, KEPT, TOP)
    else:
        rough = (logits.sigmoid() + bias).to(torch.bfloat16).float()
        # The same choice on rounded corrected scores: a bias that turns each score into the rounded one.
        wrong = torch.stack(
            [route(l[None], r - l.sigmoid(), GROUPS, KEPT, TOP)[1][0] for l, r in zip(logits, rough, strict=True)]
        )
    changed = sum(a != b for a, b in zip(chosen(right), chosen(wrong), strict=True))
    assert changed > 400


def test_bias_chooses_but_never_weighs():
    logits = random_logits(4)
    bias = torch.zeros(EXPERTS)
    bias[7] = 5.0
    weights, ids = route(logits, bias, GROUPS, KEPT, TOP)
    assert (ids == 7).any(-1).all()
    scores = logits.sigmoid().gather(-1, ids)
    assert torch.allclose(weights, scores / scores.sum(-1, keepdim=True))


def test_a_constant_on_every_bias_changes_nothing():
    logits, bias = random_logits(64), torch.zeros(EXPERTS)
    for constant in (0.25, 0.5):
        a, b = route(logits, bias, GROUPS, KEPT, TOP), route(logits, bias + constant, GROUPS, KEPT, TOP)
        assert chosen(a[1]) == chosen(b[1])


def test_a_group_is_scored_by_its_two_best_not_its_best():
    """Group 0 holds the single best expert; groups 1 to 4 have better pairs and are kept instead."""
    scores = torch.full((1, EXPERTS), 0.1)
    scores[0, 0] = 0.9
    for group in range(1, 5):
        scores[0, group * 32 : group * 32 + 2] = 0.8
    _, ids = route(logit(scores), torch.zeros(EXPERTS), GROUPS, KEPT, TOP)
    assert set((ids[0] // 32).tolist()) == {1, 2, 3, 4}
    assert 0 not in ids


def test_an_expert_outside_the_kept_groups_is_never_chosen():
    """Although globally the second best; its group loses by 2e-5."""
    scores = torch.full((1, EXPERTS), 0.01)
    for group in range(4):
        scores[0, group * 32 : group * 32 + 2] = 0.6
    scores[0, 4 * 32] = 1.2 - 0.01 - 2e-5
    bias = torch.zeros(EXPERTS)
    scores = scores.clamp(max=0.99)
    bias[4 * 32] = float(1.2 - 0.01 - 2e-5 - 0.99)
    _, ids = route(logit(scores), bias, GROUPS, KEPT, TOP)
    assert 4 * 32 not in ids
    bias[4 * 32] += 4e-5
    _, ids = route(logit(scores), bias, GROUPS, KEPT, TOP)
    assert 4 * 32 in ids, "and is, once its group wins by 2e-5"


def test_the_eighth_and_ninth_expert_are_told_apart():
    scores = torch.full((1, EXPERTS), 0.01)
    scores[0, :7] = 0.7
    scores[0, 40], scores[0, 41] = 0.5, 0.5 + 2e-5
    _, ids = route(logit(scores), torch.zeros(EXPERTS), GROUPS, KEPT, TOP)
    assert set(ids[0].tolist()) == {*range(7), 41}


def test_ties_give_eight_distinct_experts_of_kept_groups_with_equal_weights():
    weights, ids = route(torch.zeros(3, EXPERTS), torch.full((EXPERTS,), 28.0), GROUPS, KEPT, TOP)
    for row in ids:
        assert len(set(row.tolist())) == TOP
        assert len(set((row // 32).tolist())) <= KEPT
    assert weights.equal(torch.full((3, TOP), 0.125))


@pytest.mark.parametrize(("value", "expected"), [(-200.0, 0.0), (-48.354287, 0.0555556)])
def test_epsilon_keeps_underflowed_weights_finite(value, expected):
    """All scores zero give zero weights; eight scores of 1e-21 give 1/18, not 1/8."""
    weights, _ = route(torch.full((2, EXPERTS), value), torch.zeros(EXPERTS), GROUPS, KEPT, TOP)
    assert torch.isfinite(weights).all()
    assert torch.allclose(weights, torch.tensor(expected), atol=1e-4)


def test_ids_and_weights_follow_a_permutation_of_tokens():
    logits, bias = random_logits(33), near_28()
    order = torch.randperm(33, generator=torch.Generator().manual_seed(8))
    weights, ids = route(logits, bias, GROUPS, KEPT, TOP)
    moved = route(logits[order], bias, GROUPS, KEPT, TOP)
    assert moved[0].equal(weights[order])
    assert moved[1].equal(ids[order])


def test_weights_are_fp32_even_for_bf16_logits_and_sum_to_one():
    weights, ids = route(random_logits(9).to(torch.bfloat16), near_28(), GROUPS, KEPT, TOP)
    assert weights.dtype == torch.float32
    assert ids.dtype == torch.int64
    assert torch.allclose(weights.sum(-1), torch.ones(9))

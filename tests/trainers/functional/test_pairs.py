"""Pairs of episodes, and the losses on them."""

import math
from functools import partial

import pytest
import torch

from llm_envs.trainers.functional.pairs import (
    all_pairs,
    best_worst_pairs,
    create_margin_pairs,
    dpo_loss,
    hinge_loss,
    ipo_loss,
    pair_log_ratios,
    random_pairs,
    sequence_log_ratios,
    similar_length_pairs,
)

NAN = float("nan")
# Group 4: rows 0 (1.0), 2 (0.0), 3 (NaN), 5 (0.4), 6 (1.0). Group 1: rows 1 and 4, equal. Group 9: row 7 alone.
IDS_B = torch.tensor([4, 1, 4, 4, 1, 4, 4, 9])
REWARDS_B = torch.tensor([1.0, 0.5, 0.0, NAN, 0.5, 0.4, 1.0, 2.0])


def test_best_against_worst():
    assert best_worst_pairs(REWARDS_B, IDS_B).tolist() == [[0, 2]]


def test_all_pairs_without_ties():
    assert all_pairs(REWARDS_B, IDS_B).tolist() == [[0, 2], [0, 5], [5, 2], [6, 2], [6, 5]]


def test_pairs_with_a_margin():
    """The rewards differ by more than the margin, as with `EnvDPOConfig.pair_margin`."""
    assert create_margin_pairs(0.5)(REWARDS_B, IDS_B).tolist() == [[0, 2], [0, 5], [6, 2], [6, 5]]
    assert create_margin_pairs(0.7)(REWARDS_B, IDS_B).tolist() == [[0, 2], [6, 2]]
    assert create_margin_pairs(1.0)(REWARDS_B, IDS_B).tolist() == []
    assert torch.equal(create_margin_pairs(0.0)(REWARDS_B, IDS_B), all_pairs(REWARDS_B, IDS_B))
    with pytest.raises(ValueError, match=r"margin is -0\.1"):
        create_margin_pairs(-0.1)


def test_random_pairs_are_of_all_pairs_and_follow_the_seed():
    every = {tuple(pair) for pair in all_pairs(REWARDS_B, IDS_B).tolist()}
    drawn = [tuple(random_pairs(REWARDS_B, IDS_B, seed=seed).tolist()[0]) for seed in range(60)]
    assert set(drawn) == every
    assert drawn == [tuple(random_pairs(REWARDS_B, IDS_B, seed=seed)[0].tolist()) for seed in range(60)]
    three = random_pairs(REWARDS_B, IDS_B, seed=1, n_per_group=3)
    assert len({tuple(pair) for pair in three.tolist()}) == 3
    assert len(random_pairs(REWARDS_B, IDS_B, seed=1, n_per_group=99)) == 5
    assert len(random_pairs(REWARDS_B, IDS_B, seed=1, n_per_group=99, margin=0.5)) == 4


def test_pairs_of_similar_length():
    """Row 6 is as good as row 0, but only row 0 is close in length to the worst."""
    lengths_B = torch.tensor([12, 5, 10, 10, 50, 20, 30, 7])
    pairs = partial(similar_length_pairs, REWARDS_B, IDS_B, lengths_B)
    assert pairs().tolist() == [[0, 2]]
    assert pairs(max_ratio=1.1).tolist() == []
    assert pairs(max_ratio=1.5).tolist() == [[0, 2]]
    assert similar_length_pairs(REWARDS_B, IDS_B, lengths_B.flip(0), max_ratio=1.5).tolist() == [[0, 5]]
    assert pairs(max_ratio=3.0).tolist() == [[0, 2]]  # as great a difference as row 6, and closer in length
    assert pairs(max_ratio=3.0, margin=1.0).tolist() == []


@pytest.mark.parametrize(
    "selector", [best_worst_pairs, all_pairs, create_margin_pairs(0.1), partial(random_pairs, seed=0)]
)
def test_no_pair_is_an_empty_answer(selector):
    nothing = selector(torch.tensor([1.0, 1.0, NAN]), torch.tensor([0, 0, 0]))
    assert (nothing.shape, nothing.dtype) == ((0, 2), torch.int64)
    assert selector(torch.zeros(0), torch.zeros(0, dtype=torch.long)).shape == (0, 2)


LOGPS_BT = torch.tensor([[-1.0, -2.0, NAN], [-4.0, NAN, NAN]])
REF_BT = torch.tensor([[-2.0, -2.0, NAN], [-2.0, NAN, NAN]])
MASK_BT = torch.tensor([[1, 1, 0], [1, 0, 0]])


def test_log_ratios_of_sequences_and_pairs():
    assert sequence_log_ratios(LOGPS_BT, REF_BT, MASK_BT).tolist() == [1.0, -2.0]
    assert sequence_log_ratios(LOGPS_BT, REF_BT, MASK_BT, average=True).tolist() == [0.5, -2.0]
    chosen_P, rejected_P = pair_log_ratios(LOGPS_BT, REF_BT, MASK_BT, torch.tensor([[0, 1], [1, 0]]))
    assert (chosen_P.tolist(), rejected_P.tolist()) == ([1.0, -2.0], [-2.0, 1.0])


def test_losses_by_hand():
    chosen_P, rejected_P = torch.tensor([1.0, -2.0]), torch.tensor([-2.0, 1.0])
    expected = [math.log(1 + math.exp(-1.5)), math.log(1 + math.exp(1.5))]
    assert dpo_loss(chosen_P, rejected_P, beta=0.5).tolist() == pytest.approx(expected)
    smoothed = dpo_loss(chosen_P, rejected_P, beta=0.5, label_smoothing=0.25)[0].item()
    assert smoothed == pytest.approx(0.75 * expected[0] + 0.25 * expected[1])
    assert ipo_loss(chosen_P, rejected_P, beta=0.25).tolist() == [1.0, 25.0]  # (3 - 2)^2, (-3 - 2)^2
    assert hinge_loss(chosen_P, rejected_P, beta=0.25).tolist() == [0.25, 1.75]


def test_the_gradient_of_dpo_is_its_closed_form_and_leaves_the_reference_alone():
    logps_BT, ref_BT = LOGPS_BT.clone().requires_grad_(), REF_BT.clone().requires_grad_()
    dpo_loss(*pair_log_ratios(logps_BT, ref_BT, MASK_BT, torch.tensor([[0, 1]])), beta=0.5).sum().backward()
    weight = 0.5 / (1 + math.exp(1.5))  # beta sigmoid(-beta d), d = 3
    expected = torch.tensor([[-weight, -weight, 0.0], [weight, 0.0, 0.0]])
    torch.testing.assert_close(logps_BT.grad, expected)
    assert ref_BT.grad is None

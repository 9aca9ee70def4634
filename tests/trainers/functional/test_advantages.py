"""Advantages of episodes: hand-worked numbers, and unbiased gradients by exact enumeration of groups."""

import itertools
import math
from functools import partial

import pytest
import torch

from llm_envs.trainers.functional.advantages import (
    batch_leave_one_out_baseline,
    batch_mean_baseline,
    batch_whitened,
    group_centred,
    group_normalised,
    group_ranked,
    leave_one_out,
    max_at_k,
    reinforce,
)
from llm_envs.trainers.functional.turn_advantages import per_turn

NAN = float("nan")
# Group 5 has the rewards 1, 2, 6 and an episode without a score; group 2 has 4, 4; group 8 one episode alone.
IDS_B = torch.tensor([5, 2, 5, 5, 2, 8, 5])
REWARDS_B = torch.tensor([1.0, 4.0, 2.0, NAN, 4.0, 3.0, 6.0])
STD_5 = math.sqrt(7.0)  # (4 + 1 + 9) / 2


def test_group_centred():
    assert group_centred(REWARDS_B, IDS_B).tolist() == [-2.0, 0.0, -1.0, 0.0, 0.0, 0.0, 3.0]


def test_group_normalised():
    expected = [-2 / (STD_5 + 1e-4), 0, -1 / (STD_5 + 1e-4), 0, 0, 0, 3 / (STD_5 + 1e-4)]
    assert group_normalised(REWARDS_B, IDS_B).tolist() == pytest.approx(expected)
    assert group_normalised(REWARDS_B, IDS_B, None, eps=1.0)[0].item() == pytest.approx(-2 / (STD_5 + 1))


def test_group_centred_with_the_standard_deviation_of_the_batch():
    # 1, 4, 2, 4, 3, 6: mean 10/3, squares (49 + 4 + 16 + 4 + 1 + 64) / 9 = 138 / 9, over 5
    std = math.sqrt(138 / 45)
    got = group_normalised(REWARDS_B, IDS_B, scale="batch").tolist()
    assert got == pytest.approx([-2 / (std + 1e-4), 0, -1 / (std + 1e-4), 0, 0, 0, 3 / (std + 1e-4)])
    with pytest.raises(ValueError, match="scale is 'none'"):
        group_normalised(REWARDS_B, IDS_B, scale="none")


def test_leave_one_out():
    assert leave_one_out(REWARDS_B, IDS_B).tolist() == [-3.0, 0.0, -1.5, 0.0, 0.0, 0.0, 4.5]


def test_batch_whitened():
    std = math.sqrt(138 / 45 + 1e-8)
    expected = [(r - 10 / 3) / std if not math.isnan(r) else 0.0 for r in REWARDS_B.tolist()]
    assert batch_whitened(REWARDS_B, IDS_B).tolist() == pytest.approx(expected, abs=1e-6)


def test_ranks_and_their_ties():
    assert group_ranked(REWARDS_B, IDS_B).tolist() == [-0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5]
    tied = group_ranked(torch.tensor([1.0, 7.0, 7.0, 9.0, 100.0]), torch.zeros(5, dtype=torch.long))
    assert tied.tolist() == [-0.5, -0.125, -0.125, 0.25, 0.5]  # ranks 0, 1.5, 1.5, 3, 4 of 4


def test_max_at_k():
    # k = 2 of 1, 2, 6: A_i = 2 / C(2, 1) * sum of what i adds to each other one
    assert max_at_k(REWARDS_B, IDS_B, k=2).tolist() == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 9.0]
    # k = 3: the best adds 6 - 2 to the set of the two others, times 3 / C(2, 2)
    assert max_at_k(REWARDS_B, IDS_B, k=3).tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 12.0]
    assert max_at_k(REWARDS_B, IDS_B, None, k=9).tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 12.0]
    assert max_at_k(REWARDS_B, IDS_B, k=1).tolist() == leave_one_out(REWARDS_B, IDS_B).tolist()
    with pytest.raises(ValueError, match="at least 1"):
        max_at_k(REWARDS_B, IDS_B, k=0)


def test_max_at_k_of_a_large_group_equals_a_count_over_subsets():
    rewards_B = torch.tensor([0.1, 0.9, 0.9, -0.4, 0.3, 0.0], dtype=torch.float64)
    for k in (2, 3, 4, 5, 6):
        expected = []
        for i in range(6):
            others = [rewards_B[j].item() for j in range(6) if j != i]
            gains = [max(0.0, rewards_B[i].item() - max(s)) for s in itertools.combinations(others, k - 1)]
            expected.append(k / math.comb(5, k - 1) * sum(gains))
        assert max_at_k(rewards_B, torch.zeros(6, dtype=torch.long), k=k).tolist() == pytest.approx(expected)
    huge = max_at_k(torch.arange(600.0, dtype=torch.float64), torch.zeros(600, dtype=torch.long), k=300)
    assert torch.isfinite(huge).all()


def test_reinforce_with_and_without_a_baseline():
    assert reinforce(REWARDS_B, IDS_B).tolist() == [1.0, 4.0, 2.0, 0.0, 4.0, 3.0, 6.0]
    centred = reinforce(REWARDS_B, IDS_B, None, baseline_fn=batch_mean_baseline).tolist()
    assert centred == pytest.approx([r - 20 / 6 if not math.isnan(r) else 0.0 for r in REWARDS_B.tolist()])
    others = reinforce(REWARDS_B, IDS_B, None, baseline_fn=batch_leave_one_out_baseline).tolist()
    expected = [r - (20 - r) / 5 if not math.isnan(r) else 0.0 for r in REWARDS_B.tolist()]
    assert others == pytest.approx(expected, abs=1e-6)
    constant = reinforce(REWARDS_B, IDS_B, baseline_fn=lambda rewards_B, group_ids_B: torch.tensor(2.0))
    assert constant.tolist() == [-1.0, 2.0, 0.0, 0.0, 2.0, 1.0, 4.0]
    with pytest.raises(ValueError, match="baseline_fn"):
        reinforce(REWARDS_B, IDS_B, baseline_fn=lambda rewards_B, group_ids_B: rewards_B.mean())


EVERY = [
    group_centred,
    group_normalised,
    partial(group_normalised, scale="batch"),
    leave_one_out,
    batch_whitened,
    group_ranked,
    partial(max_at_k, k=2),
    partial(reinforce, baseline_fn=batch_mean_baseline),
    partial(reinforce, baseline_fn=batch_leave_one_out_baseline),
    per_turn,
    partial(per_turn, scale=True),
]


@pytest.mark.parametrize("advantage_fn", EVERY, ids=lambda f: getattr(f, "func", f).__name__)
def test_an_episode_without_a_score_changes_nothing_for_the_others(advantage_fn):
    """NaN rewards are left out of every baseline, deviation and rank, and their advantage is 0."""
    turns_BK = torch.stack([REWARDS_B, 2 * REWARDS_B], 1)
    scored_B = ~torch.isnan(REWARDS_B)
    whole = advantage_fn(REWARDS_B, IDS_B, turns_BK)
    without = advantage_fn(REWARDS_B[scored_B], IDS_B[scored_B], turns_BK[scored_B])
    torch.testing.assert_close(whole[scored_B], without)
    assert (whole[~scored_B] == 0).all()
    nothing = advantage_fn(torch.full((3,), NAN), torch.tensor([0, 0, 1]), torch.zeros(3, 2))
    assert (nothing == 0).all()


@pytest.mark.parametrize("advantage_fn", EVERY, ids=lambda f: getattr(f, "func", f).__name__)
def test_the_order_of_rows_does_not_matter(advantage_fn):
    order = torch.tensor([3, 6, 0, 5, 1, 2, 4])
    turns_BK = torch.stack([REWARDS_B, 2 * REWARDS_B], 1)
    shuffled = advantage_fn(REWARDS_B[order], IDS_B[order], turns_BK[order])
    torch.testing.assert_close(shuffled, advantage_fn(REWARDS_B, IDS_B, turns_BK)[order])


@pytest.mark.parametrize("advantage_fn", EVERY[:7], ids=lambda f: getattr(f, "func", f).__name__)
def test_equal_rewards_give_exact_zeros_even_where_their_mean_is_rounded(advantage_fn):
    rewards_B = torch.full((7,), 0.1)  # their float32 sum over 7 is not 0.1
    assert (advantage_fn(rewards_B, torch.zeros(7, dtype=torch.long), None) == 0).all()


def test_advantages_are_constants():
    rewards_B = torch.tensor([1.0, 2.0], requires_grad=True)
    ids_B = torch.zeros(2, dtype=torch.long)
    turns_BK = rewards_B[:, None].expand(2, 2)
    assert not any(f(rewards_B, ids_B, turns_BK).requires_grad for f in EVERY)


THETA = torch.tensor([0.2, -0.5, 0.9], dtype=torch.float64)
PAID = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)


def expected_gradient(advantage_fn, group_size):
    """Return E[1/n sum_i A_i grad log pi(a_i)] over all groups of a policy with three actions."""
    theta = THETA.clone().requires_grad_()
    logps = torch.log_softmax(theta, 0)
    total = torch.zeros((), dtype=torch.float64)
    for actions in itertools.product(range(3), repeat=group_size):
        chosen = torch.tensor(actions)
        weight = logps[chosen].sum().exp().detach()
        advantages = advantage_fn(PAID[chosen], torch.zeros(group_size, dtype=torch.long), None)
        total = total + weight * (advantages * logps[chosen]).mean()
    return torch.autograd.grad(total, theta)[0]


def exact_gradient(function):
    theta = THETA.clone().requires_grad_()
    return torch.autograd.grad(function(torch.softmax(theta, 0)), theta)[0]


def test_leave_one_out_is_unbiased_and_centring_is_shorter_by_one_over_n():
    gradient = exact_gradient(lambda pi: (pi * PAID).sum())
    torch.testing.assert_close(expected_gradient(leave_one_out, 3), gradient)
    torch.testing.assert_close(expected_gradient(group_centred, 3), gradient * 2 / 3)
    torch.testing.assert_close(
        expected_gradient(partial(reinforce, baseline_fn=batch_leave_one_out_baseline), 3), gradient
    )
    torch.testing.assert_close(expected_gradient(reinforce, 2), gradient)


def test_max_at_k_has_the_gradient_of_the_expected_best_of_k():
    def best_of_2(pi):
        return (pi[:, None] * pi * torch.maximum(PAID[:, None], PAID)).sum()

    torch.testing.assert_close(expected_gradient(partial(max_at_k, k=2), 3), exact_gradient(best_of_2))
    torch.testing.assert_close(expected_gradient(partial(max_at_k, k=2), 4), exact_gradient(best_of_2))

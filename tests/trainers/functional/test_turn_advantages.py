"""Per-turn credit: hand-worked numbers, and its gradient on a task of one or two turns, by exact enumeration."""

import itertools

import pytest
import torch

from llm_envs.trainers.functional.turn_advantages import per_turn, turn_returns
from llm_envs.trainers.functional.turns import spread_turns

NAN = float("nan")


def test_returns_to_go():
    rewards_BK = torch.tensor([[1.0, 2.0, 4.0], [3.0, NAN, NAN]])
    assert turn_returns(rewards_BK)[0].tolist() == [7.0, 6.0, 4.0]
    discounted_BK = turn_returns(rewards_BK, gamma=0.5)
    assert discounted_BK[0].tolist() == [3.0, 4.0, 4.0]
    assert discounted_BK[1, 0].item() == 3.0
    assert torch.isnan(discounted_BK[1, 1:]).all()


IDS_B = torch.tensor([1, 0, 1, 1, 0, 1])
TURNS_BK = torch.tensor(
    [
        [1.0, 0.0, 2.0],  # group 1: returns 3, 2, 2
        [5.0, NAN, NAN],  # group 0: 5
        [0.0, 1.0, NAN],  # group 1: 1, 1
        [9.0, 9.0, 9.0],  # group 1, without a score
        [1.0, 1.0, NAN],  # group 0: 2, 1
        [2.0, NAN, NAN],  # group 1: 2
    ]
)
REWARDS_B = torch.tensor([3.0, 5.0, 1.0, NAN, 2.0, 2.0])


def test_each_turn_is_compared_with_the_others_at_that_turn():
    advantages_BK = per_turn(REWARDS_B, IDS_B, TURNS_BK)
    assert advantages_BK.tolist() == [
        # others: 1 and 2; then 1; nobody else has a third turn: those of the second, 1
        [1.5, 1.0, 1.0],
        [3.0, 0.0, 0.0],
        [-1.5, -1.0, 0.0],
        [0.0, 0.0, 0.0],
        # nobody else has a second turn: 5, as in the first
        [-3.0, -4.0, 0.0],
        [0.0, 0.0, 0.0],
    ]


def test_one_scale_for_a_whole_group():
    scaled_BK = per_turn(REWARDS_B, IDS_B, TURNS_BK, scale=True, eps=0.0)
    assert scaled_BK[1, 0].item() == pytest.approx(3.0 / (34 / 3) ** 0.5)  # (9 + 9 + 16) / 3 turns
    assert scaled_BK[4].tolist() == pytest.approx([-3.0 / (34 / 3) ** 0.5, -4.0 / (34 / 3) ** 0.5, 0.0])


def test_from_turns_to_tokens():
    starts_BK, stops_BK = torch.tensor([[0, 2, 5]]), torch.tensor([[2, 3, 7]])
    advantages_BT = spread_turns(per_turn(REWARDS_B, IDS_B, TURNS_BK)[:1], starts_BK, stops_BK, 8)
    assert advantages_BT.tolist() == [[1.5, 1.5, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]]


def test_an_episode_alone_and_one_without_turns_have_nothing():
    alone = per_turn(torch.tensor([1.0, 2.0]), torch.tensor([0, 1]), torch.ones(2, 2))
    assert alone.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert per_turn(torch.tensor([1.0]), torch.tensor([0]), torch.ones(1, 0)).shape == (1, 0)
    with pytest.raises(ValueError, match=r"turn rewards are None.*\(2, K\)"):
        per_turn(torch.tensor([1.0, 2.0]), torch.tensor([0, 1]))


# First turn: stop (pays 0), or go on (pays 0.3); second turn: right (pays 1) or wrong (pays 0).
EPISODES = [((0, None), [0.0, NAN]), ((1, 0), [0.3, 1.0]), ((1, 1), [0.3, 0.0])]


def expected_gradient(advantages_of, group_size):
    """Return E[1/n sum_ik A_ik grad log pi(a_ik)] over all groups, for the logits of the first and second turn."""
    theta = torch.tensor([[0.4, -0.6], [0.3, 0.1]], dtype=torch.float64, requires_grad=True)
    logps = torch.log_softmax(theta, 1)
    total = torch.zeros((), dtype=torch.float64)
    for group in itertools.product(EPISODES, repeat=group_size):
        chosen = [
            torch.stack([logps[0, first], logps[1, second] if second is not None else theta.new_zeros(())])
            for (first, second), _ in group
        ]
        turns_BK = torch.tensor([rewards for _, rewards in group], dtype=torch.float64)
        logps_BK = torch.stack(chosen)
        total = total + logps_BK.sum().exp().detach() * (advantages_of(turns_BK) * logps_BK).sum() / group_size
    return torch.autograd.grad(total, theta)[0]


def exact_gradient():
    theta = torch.tensor([[0.4, -0.6], [0.3, 0.1]], dtype=torch.float64, requires_grad=True)
    pi = torch.softmax(theta, 1)
    return torch.autograd.grad(pi[0, 1] * (0.3 + pi[1, 0]), theta)[0]


def ours(turns_BK):
    ids_B = torch.zeros(len(turns_BK), dtype=torch.long)
    return per_turn(turns_BK.nansum(1), ids_B, turns_BK)


def centred_by_turn_index(turns_BK):
    returns_BK = turn_returns(turns_BK)
    return (returns_BK - returns_BK.nanmean(0)).nan_to_num(nan=0.0)


@pytest.mark.parametrize("group_size", [2, 3])
def test_the_gradient_is_unbiased_though_episodes_differ_in_length(group_size):
    torch.testing.assert_close(expected_gradient(ours, group_size), exact_gradient())


def test_centring_by_turn_index_is_biased():
    """A mean over those who have the turn, the member itself included, shrinks rare turns: another direction."""
    gradient, exact = expected_gradient(centred_by_turn_index, 2), exact_gradient()
    shrinkage = gradient[:, 0] / exact[:, 0]
    assert shrinkage[0].item() == pytest.approx(0.5)  # all have a first turn: (n - 1) / n
    assert shrinkage[1].item() < 0.2  # P(the other goes on) / 2

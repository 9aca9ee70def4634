"""Returns and GAE over the policy's tokens only: hand-worked numbers, and the definition as a double sum."""

import pytest
import torch

from llm_envs.trainers.functional.returns import discounted_returns, gae, length_adaptive_lambda

NAN = float("nan")
# A token of the environment, two of the first turn, one of the environment, one of the second turn, padding.
MASK_BT = torch.tensor([[0, 1, 1, 0, 1, 0]])
TURN_IDS_BT = torch.tensor([[-1, 0, 0, -1, 1, -1]])
VALUES_BT = torch.tensor([[NAN, 1.0, 2.0, 77.0, 3.0, NAN]])
REWARDS_BT = torch.tensor([[NAN, 0.0, 1.0, 99.0, 2.0, NAN]])


def test_gae_of_a_truncated_episode_bootstraps():
    advantages_BT, returns_BT = gae(VALUES_BT, REWARDS_BT, MASK_BT, gamma=0.5, lam=0.5, bootstrap_B=torch.tensor([4.0]))
    # t=4: 2 + 0.5 * 4 - 3 = 1; t=2: 1 + 0.5 * 3 - 2 + 0.25 * 1; t=1: 0 + 0.5 * 2 - 1 + 0.25 * 0.75
    assert advantages_BT[0].tolist() == [0.0, 0.1875, 0.75, 0.0, 1.0, 0.0]
    assert returns_BT[0].tolist() == [0.0, 1.1875, 2.75, 0.0, 4.0, 0.0]


def test_gae_of_a_terminated_episode_does_not():
    advantages_BT, _ = gae(VALUES_BT, REWARDS_BT, MASK_BT, gamma=0.5, lam=0.5)
    assert advantages_BT[0].tolist() == [0.0, 0.0625, 0.25, 0.0, -1.0, 0.0]


def test_time_that_passes_between_turns_only():
    advantages_BT, _ = gae(
        VALUES_BT, REWARDS_BT, MASK_BT, gamma=0.5, lam=0.5, bootstrap_B=torch.tensor([4.0]), turn_ids_BT=TURN_IDS_BT
    )
    # as above at both ends of turns; inside the first: 0 + 2 - 1 + 0.75
    assert advantages_BT[0].tolist() == [0.0, 1.75, 0.75, 0.0, 1.0, 0.0]


def test_discounted_returns():
    bootstrap_B = torch.tensor([4.0])
    by_token = discounted_returns(REWARDS_BT, MASK_BT, gamma=0.5, bootstrap_B=bootstrap_B)
    assert by_token[0].tolist() == [0.0, 1.5, 3.0, 0.0, 4.0, 0.0]
    by_turn = discounted_returns(REWARDS_BT, MASK_BT, gamma=0.5, bootstrap_B=bootstrap_B, turn_ids_BT=TURN_IDS_BT)
    assert by_turn[0].tolist() == [0.0, 3.0, 3.0, 0.0, 4.0, 0.0]
    assert discounted_returns(REWARDS_BT, MASK_BT, gamma=1.0)[0].tolist() == [0.0, 3.0, 3.0, 0.0, 2.0, 0.0]


def test_gae_equals_its_definition():
    torch.manual_seed(0)
    values_BT, rewards_BT = torch.randn(3, 12, dtype=torch.float64), torch.randn(3, 12, dtype=torch.float64)
    mask_BT, bootstrap_B = torch.rand(3, 12) > 0.4, torch.randn(3, dtype=torch.float64)
    got_BT, _ = gae(values_BT, rewards_BT, mask_BT, gamma=0.9, lam=0.8, bootstrap_B=bootstrap_B)
    for row in range(3):
        places = mask_BT[row].nonzero().flatten().tolist()
        values = [values_BT[row, t].item() for t in places] + [bootstrap_B[row].item()]
        deltas = [rewards_BT[row, t].item() + 0.9 * values[i + 1] - values[i] for i, t in enumerate(places)]
        for i, t in enumerate(places):
            expected = sum(0.72 ** (j - i) * deltas[j] for j in range(i, len(places)))
            assert got_BT[row, t].item() == pytest.approx(expected)
        assert (got_BT[row][~mask_BT[row]] == 0).all()


def test_rows_without_a_score_have_no_advantage():
    rewards_BT = torch.tensor([[0.0, NAN], [0.0, 1.0]])
    values_BT = torch.tensor([[1.0, 2.0], [1.0, 2.0]], requires_grad=True)
    advantages_BT, returns_BT = gae(
        values_BT, rewards_BT, torch.ones(2, 2), gamma=1.0, lam=1.0, bootstrap_B=torch.tensor([NAN, 0.0])
    )
    assert advantages_BT.tolist() == [[0.0, 0.0], [0.0, -1.0]]
    assert returns_BT.tolist() == [[1.0, 2.0], [1.0, 1.0]]
    assert not (advantages_BT.requires_grad or returns_BT.requires_grad)
    assert discounted_returns(rewards_BT, torch.ones(2, 2), gamma=1.0).tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_rows_masked_whole_and_other_shapes():
    advantages_BT, returns_BT = gae(VALUES_BT, REWARDS_BT, torch.zeros(1, 6))
    assert (advantages_BT == 0).all()
    assert (returns_BT == 0).all()
    with pytest.raises(ValueError, match=r"\(B, T\)"):
        gae(VALUES_BT, REWARDS_BT[:, :2], MASK_BT)


def test_lambda_grows_with_the_length():
    """VAPO's alpha: 1 - 1 / (0.05 * 200) = 0.9, 1 - 1 / (0.05 * 40) = 0.5; below 20 tokens it would be negative."""
    lengths_B = torch.tensor([200, 40, 20, 5, 0])
    assert length_adaptive_lambda(lengths_B, alpha=0.05).tolist() == pytest.approx([0.9, 0.5, 0.0, 0.0, 0.0])
    assert length_adaptive_lambda(torch.tensor([2, 4]), alpha=1.0).tolist() == [0.5, 0.75]
    with pytest.raises(ValueError, match="alpha=0"):
        length_adaptive_lambda(lengths_B, alpha=0.0)


def test_each_row_may_have_its_own_lambda():
    rewards_BT, ones_BT = torch.tensor([[0.0, 0.0, 1.0]] * 2), torch.ones(2, 3)
    advantages_BT, _ = gae(torch.zeros(2, 3), rewards_BT, ones_BT, gamma=1.0, lam=torch.tensor([0.5, 0.1]))
    assert advantages_BT.flatten().tolist() == pytest.approx([0.25, 0.5, 1.0, 0.01, 0.1, 1.0])

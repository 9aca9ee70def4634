"""Credit by states: hand-worked numbers."""

from types import SimpleNamespace

import pytest
import torch

from llm_envs.trainers.functional.state_advantages import state_graph, state_groups, tree_nodes

NAN = float("nan")
# Group 0: three episodes begin in state 7, two of them go on to 4, and one wins from there. Group 1 begins in 7 too.
REWARDS_B = torch.tensor([1.0, 0.0, 0.0, 1.0, NAN])
IDS_B = torch.tensor([0, 0, 0, 1, 0])
TURNS_BK = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, NAN], [1.0, NAN], [0.0, 5.0]])
STATES_BK = torch.tensor([[7, 4], [7, 4], [7, -1], [7, -1], [7, 4]])


def close(found, expected):
    return torch.allclose(found, torch.tensor(expected), atol=1e-4)


def test_turns_of_one_state_are_compared():
    """Returns with discount 1/2: 0.5, 1 | 0, 0 | 0; means 1/6 in state 7 and 1/2 in state 4; episodes 2/3, -1/3."""
    found = state_groups(REWARDS_B, IDS_B, TURNS_BK, STATES_BK, gamma=0.5)
    third = 1 / 3
    assert close(found, [[1.0, 2 / 3 + 0.5], [-0.5, -third - 0.5], [-0.5, 0.0], [0.0, 0.0], [0.0, 0.0]])
    halved = state_groups(REWARDS_B, IDS_B, TURNS_BK, STATES_BK, gamma=0.5, weight=0.5)
    assert close(halved[:2], [[2 / 3 + third / 2, 2 / 3 + 0.25], [-third - 1 / 12, -third - 0.25]])


def test_a_state_met_twice_by_one_episode_and_by_nobody_else():
    """Returns 1, 1 without a discount: equal, so only the episode's advantage is left; with 1/2 they are 0.5 and 1."""
    rewards_B, ids_B = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
    turns_BK, states_BK = torch.tensor([[0.0, 1.0], [0.0, NAN]]), torch.tensor([[3, 3], [5, -1]])
    assert close(state_groups(rewards_B, ids_B, turns_BK, states_BK, gamma=1.0), [[0.5, 0.5], [-0.5, 0.0]])
    assert close(state_groups(rewards_B, ids_B, turns_BK, states_BK, gamma=0.5), [[0.25, 0.75], [-0.5, 0.0]])


def test_standard_deviations():
    """State 7: 0.5, 0, 0 has deviation 0.2887; state 4: 1, 0 has 0.7071; episodes 1, 0, 0 have 0.5774."""
    found = state_groups(REWARDS_B, IDS_B, TURNS_BK, STATES_BK, gamma=0.5, scale=True, eps=0.0)
    assert close(found[0], [1.1547 + 1.1547, 1.1547 + 0.7071])
    assert close(found[1:3], [[-0.5774 - 0.5774, -0.5774 - 0.7071], [-0.5774 - 0.5774, 0.0]])


def test_longer_histories_count_more():
    """Two episodes come to state 4 from 7 and one from 8. By state: returns 1, 0, 0; by history: 1, 0 and one alone.

    With the weights 1 and 2, the first is (1 * 2/3 + 2 * 1/2) / 3 = 5/9; the lone one has only its state: -1/3.
    """
    rewards_B, ids_B = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0, 0, 0])
    turns_BK = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    states_BK = torch.tensor([[7, 4], [7, 4], [8, 4]])
    found = state_groups(rewards_B, ids_B, turns_BK, states_BK, gamma=1.0, depth=2)
    assert close(found[:, 1], [5 / 9, -(1 / 3 + 1) / 3, -1 / 3])
    assert close(found[:, 0], [0.5, -0.5, 0.0])
    # Histories of three: here no longer than two, so nothing is added but the same comparison again.
    deeper = state_groups(rewards_B, ids_B, turns_BK, states_BK, gamma=1.0, depth=3)
    assert close(deeper[:, 1], [(2 / 3 + 2 * 0.5 + 3 * 0.5) / 6, -(1 / 3 + 1 + 1.5) / 6, -1 / 3])


def test_a_good_step_of_a_lost_episode_is_paid_in_the_graph():
    """V(7) = (1 + 0 + 0) / 3 and V(4) = (1 + 0) / 2: both episodes that reach 4 gain 1/6 by it."""
    found = state_graph(REWARDS_B, IDS_B, TURNS_BK, STATES_BK)
    sixth = 1 / 6
    assert close(found, [[sixth, 0.5], [sixth, -0.5], [-1 / 3, 0.0], [0.0, 0.0], [0.0, 0.0]])
    squares = 2 * sixth**2 + 2 * 0.25 + 1 / 9
    scaled = state_graph(REWARDS_B, IDS_B, TURNS_BK, STATES_BK, scale=True, eps=0.0)
    assert close(scaled[:3], (found[:3] / (squares / 5) ** 0.5).tolist())


def test_turns_between_two_states_with_a_value_share_one_difference():
    """V(7) = (1 + 0 + 0) / 3 and V(4) = 0.75 / 2; state 5 was met once, so the turn there shares that from 7 to 4."""
    turns_BK = torch.tensor([[0.0, 0.25, 0.75], [0.0, 0.0, NAN], [0.0, NAN, NAN]])
    states_BK = torch.tensor([[7, 5, 4], [7, 4, -1], [7, -1, -1]])
    ids_B = torch.tensor([0, 0, 0])
    found = state_graph(turns_BK.nansum(1), ids_B, turns_BK, states_BK, min_visits=2)
    v4, v7 = 0.75 / 2, 1 / 3
    first = 0.25 + v4 - v7
    assert close(found, [[first, first, 0.75 - v4], [v4 - v7, 0.0 - v4, 0.0], [-v7, 0.0, 0.0]])
    discounted = state_graph(turns_BK.nansum(1), ids_B, turns_BK, states_BK, gamma=0.5, min_visits=2)
    v7 = (0.5 * 0.25 + 0.25 * 0.75) / 3
    assert close(discounted[0, :2], [0.5 * 0.25 + 0.25 * v4 - v7] * 2)
    alone = state_graph(turns_BK.nansum(1), ids_B, turns_BK, states_BK, min_visits=4)
    assert close(alone, [[0.0] * 3] * 3)
    with pytest.raises(ValueError, match="min_visits is 0"):
        state_graph(turns_BK.nansum(1), ids_B, turns_BK, states_BK, min_visits=0)


def test_a_group_without_common_states_has_the_advantages_of_grpo():
    rewards_B, ids_B = torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0, 0, 0])
    turns_BK = torch.tensor([[0.25, 0.75], [0.0, NAN], [0.0, 0.5]])
    found = state_graph(rewards_B, ids_B, turns_BK, torch.tensor([[0, 1], [0, -1], [0, 2]]), min_visits=2)
    assert close(found, [[0.5, 0.5], [-0.5, 0.0], [0.0, 0.0]])


def test_nodes_of_a_tree():
    """Members 0 and 1 begin anew; 2 goes on from turn 1 of member 1, and has three turns."""

    def episode(member, n_turns, **metadata):
        return SimpleNamespace(group_id="g", member=member, turns=[None] * n_turns, metadata=metadata)

    fork = {"group_id": "g", "member": 1, "turn": 1}
    assert tree_nodes(episode(0, 2)) == [("g", None, 0), ("g", 0, 1)]
    assert tree_nodes(episode(1, 2)) == [("g", None, 0), ("g", 1, 1)]
    assert tree_nodes(episode(2, 3, fork=fork)) == [("g", None, 0), ("g", 1, 1), ("g", 2, 2)]


def test_advantages_of_a_state_add_up_to_0():
    torch.manual_seed(0)
    turns_BK, states_BK = torch.rand(16, 6), torch.randint(0, 4, (16, 6))
    ids_B = torch.arange(16) // 8
    found = (
        state_groups(turns_BK.sum(1), ids_B, turns_BK, states_BK)
        - (turns_BK.sum(1) - torch.stack([turns_BK.sum(1)[ids_B == i].mean() for i in (0, 1)])[ids_B])[:, None]
    )
    for group in (0, 1):
        for state in range(4):
            assert found[(ids_B == group)[:, None] & (states_BK == state)].sum().item() == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("function", [state_groups, state_graph])
def test_wrong_inputs(function):
    with pytest.raises(ValueError, match=r"states are None.*\(5, K\)"):
        function(REWARDS_B, IDS_B, TURNS_BK)
    with pytest.raises(ValueError, match=r"turn rewards are \(4, 2\)"):
        function(REWARDS_B, IDS_B, TURNS_BK[:4], STATES_BK)
    with pytest.raises(ValueError, match=r"\(5, 2\).*\(5, 1\)"):
        function(REWARDS_B, IDS_B, TURNS_BK, STATES_BK[:, :1])
    with pytest.raises(ValueError, match="depth is 0"):
        state_groups(REWARDS_B, IDS_B, TURNS_BK, STATES_BK, depth=0)

"""Groups are rows that share an id, wherever they stand."""

import pytest
import torch

from llm_envs.trainers.functional.groups import (
    check_rewards,
    group_counts,
    group_maximum,
    group_mean,
    group_minimum,
    group_sum,
    regular_group_ids,
)

NAN = float("nan")
IDS_B = torch.tensor([7, 3, 7, 3, 7, 9])
REWARDS_B = torch.tensor([1.0, 10.0, 2.0, NAN, 6.0, NAN])


def test_ids_need_not_be_contiguous_nor_groups_equal_in_size():
    values_B, scored_B = check_rewards(REWARDS_B, IDS_B)
    assert scored_B.tolist() == [True, True, True, False, True, False]
    assert group_sum(values_B, scored_B, IDS_B).tolist() == [9.0, 10.0, 9.0, 10.0, 9.0, 0.0]
    assert group_counts(scored_B, IDS_B, dtype=torch.float32).tolist() == [3.0, 1.0, 3.0, 1.0, 3.0, 0.0]
    assert group_mean(values_B, scored_B, IDS_B).tolist() == [3.0, 10.0, 3.0, 10.0, 3.0, 0.0]
    assert group_maximum(values_B, scored_B, IDS_B).tolist() == [6.0, 10.0, 6.0, 10.0, 6.0, 0.0]
    assert group_minimum(values_B, scored_B, IDS_B).tolist() == [1.0, 10.0, 1.0, 10.0, 1.0, 0.0]


def test_sums_over_groups_of_matrices():
    values_BK = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    exists_BK = torch.tensor([[True, True], [True, True], [True, False]])
    assert group_sum(values_BK, exists_BK, torch.tensor([1, 0, 1])).tolist() == [[6.0, 2.0], [3.0, 4.0], [6.0, 2.0]]


def test_regular_groups():
    assert regular_group_ids(2, 3).tolist() == [0, 0, 0, 1, 1, 1]
    rewards_NG = torch.tensor([[1.0, 3.0], [5.0, 9.0]])
    values_B, scored_B = check_rewards(rewards_NG.flatten(), regular_group_ids(2, 2))
    assert group_mean(values_B, scored_B, regular_group_ids(2, 2)).tolist() == [2.0, 2.0, 7.0, 7.0]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"both must be \(B,\)"):
        check_rewards(torch.zeros(2), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"torch\.float32"):
        check_rewards(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="infinite"):
        check_rewards(torch.tensor([0.0, float("inf")]), torch.tensor([0, 0]))

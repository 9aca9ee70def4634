"""Turns and tokens: two rows of seven tokens, with three turns and with one; the second turn of row 0 is empty."""

import pytest
import torch

from llm_envs.trainers.functional.turns import place_turn_rewards, spread_turns, turn_ids, turns_of_mask

NAN = float("nan")
STARTS_BK = torch.tensor([[1, 3, 4], [2, 0, 0]])
STOPS_BK = torch.tensor([[3, 3, 7], [4, 0, 0]])


def test_each_token_knows_its_turn():
    assert turn_ids(STARTS_BK, STOPS_BK, 7).tolist() == [[-1, 0, 0, -1, 2, 2, 2], [-1, -1, 0, 0, -1, -1, -1]]
    none = torch.zeros(2, 0, dtype=torch.long)
    assert turn_ids(none, none, 2).tolist() == [[-1, -1], [-1, -1]]


def test_a_turns_value_is_that_of_its_tokens():
    values_BK = torch.tensor([[0.5, NAN, -1.0], [2.0, NAN, NAN]])
    spread_BT = spread_turns(values_BK, STARTS_BK, STOPS_BK, 7)
    assert spread_BT.tolist() == [[0, 0.5, 0.5, 0, -1, -1, -1], [0, 0, 2, 2, 0, 0, 0]]
    none = torch.zeros(1, 0, dtype=torch.long)
    assert spread_turns(torch.zeros(1, 0), none, none, 2).tolist() == [[0.0, 0.0]]


def test_rewards_stand_at_the_ends_of_turns_and_none_is_lost():
    rewards_BK = torch.tensor([[1.0, 0.25, 4.0], [-1.0, NAN, NAN]])
    placed_BT = place_turn_rewards(rewards_BK, STARTS_BK, STOPS_BK, 7)
    assert placed_BT.tolist() == [[0, 0, 1.25, 0, 0, 0, 4], [0, 0, 0, -1, 0, 0, 0]]  # the empty turn's: one earlier
    empty_first = place_turn_rewards(torch.tensor([[0.5, 1.0]]), torch.tensor([[0, 1]]), torch.tensor([[0, 3]]), 4)
    assert empty_first.tolist() == [[0.0, 0.0, 1.5, 0.0]]
    no_tokens = torch.zeros(1, 2, dtype=torch.long)
    assert place_turn_rewards(torch.tensor([[0.5, 1.0]]), no_tokens, no_tokens, 2).tolist() == [[0.0, 0.0]]


def test_spans_outside_the_row_are_refused():
    with pytest.raises(ValueError, match=" 6 tokens"):
        turn_ids(STARTS_BK, STOPS_BK, 6)
    with pytest.raises(ValueError, match=r"both must be \(B, K\)"):
        spread_turns(torch.zeros(2, 3), STARTS_BK, STOPS_BK[:, :2], 7)


def test_turns_by_the_mask():
    mask_BT = torch.tensor([[0, 1, 1, 0, 0, 1], [1, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]])
    expected = [[-1, 0, 0, -1, -1, 1], [0, -1, 1, 1, 1, -1], [-1] * 6]
    assert turns_of_mask(mask_BT).tolist() == expected

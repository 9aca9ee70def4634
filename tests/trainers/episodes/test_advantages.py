"""Rewards and advantages of turns on the tokens of rows, and functions of the user among the advantages."""

import dataclasses
import time

import numpy as np
import pytest
import torch

from llm_envs.errors import TimeLimitError
from llm_envs.trainers.episodes.advantages import token_advantages, turn_matrix, turn_penalties, with_advantages
from llm_envs.trainers.episodes.batches import make_batch
from llm_envs.trainers.episodes.rewards import RewardSettings, score_episodes
from llm_envs.trainers.functional.algorithm import GIGPO, GRPO
from llm_envs.types import Row, StopReason, Trajectory, Turn

ROW = Row(
    np.arange(9, dtype=np.int32), np.array([0, 0, 1, 1, 0, 1, 1, 1, 0], bool), np.zeros(9, np.float32), ((2, 4), (5, 8))
)


def episode(rewards, member=0, **changes) -> Trajectory:
    turns = tuple(Turn(reward, {"reward": reward}, row=0, span=k) for k, reward in enumerate(rewards))
    values = {"env_id": "x/Y-v0", "env_kwargs": {}, "seed": 0, "group_id": "g", "member": member, "messages": ()}
    values |= {"tools": (), "rows": (ROW,), "turns": turns, "terminated": True, "truncated": False}
    values |= {"stop_reason": StopReason.TERMINATED, "status": "ok", "is_success": True}
    return Trajectory(**values | changes)


def never_ends(*given):
    time.sleep(600.0)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"advantage_fn": never_ends, "by_state": False}, r"advantage_fn of 'gigpo'.*max_function_s=0\.2"),
        ({"by_state": never_ends}, r"by_state of 'gigpo'.*max_function_s=0\.2.*episode 0 of group 'g'"),
    ],
)
def test_a_function_that_never_ends_is_named(changes, what):
    episodes = score_episodes([episode([0.0, 1.0], member) for member in range(2)], RewardSettings(), {})
    batch = make_batch(episodes, pad_id=0)
    with pytest.raises(TimeLimitError, match=what):
        with_advantages(batch, dataclasses.replace(GIGPO, **changes), episodes, limit_s=0.2)
    assert with_advantages(batch, GRPO, episodes, limit_s=60.0)[0].advantages.tolist() == [0.0, 0.0]


def test_turns_have_places_and_absent_ones_are_nan():
    assert torch.equal(
        turn_matrix([[1.0, 2.0], [], [3.0]]).nan_to_num(nan=-9), torch.tensor([[1, 2], [-9, -9], [3, -9.0]])
    )


def test_advantages_of_turns_reach_their_tokens_in_every_row():
    other = Row(np.arange(6, dtype=np.int32), np.array([0, 0, 0, 1, 1, 0], bool), np.zeros(6, np.float32), ((3, 5),))
    turns = (Turn(0.0, {}, row=0, span=0), Turn(0.0, {}, row=0, span=1), Turn(0.0, {}, row=1, span=0))
    forked = episode([0.0], rows=(ROW, other), turns=turns)
    advantages = torch.tensor([[1.0, 2.0, 3.0], [-1.0, -2.0, 0.0]])
    spread = token_advantages(advantages, [forked, episode([0.0, 0.0], 1)], n_rows=4, n_tokens=7)
    # Columns count from behind the prompt: it ends at 2 in ROW and at 3 in the further row.
    assert spread.tolist() == [
        [1, 1, 0, 2, 2, 2, 0],
        [-1, -1, 0, -2, -2, -2, 0],
        [3, 3, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
    ]
    assert token_advantages(torch.tensor([5.0, 6.0]), [forked, episode([0.0])], n_rows=4, n_tokens=7).tolist() == [
        5,
        6,
        5,
        0,
    ]
    values = torch.arange(28.0).reshape(4, 7)
    mask = torch.ones(4, 7)
    mask[1, 0], values[1, 0] = 0, torch.nan  # masked places may hold anything
    assert turn_penalties(values, mask, [forked, episode([0.0, 0.0], 1)]) == [[1.0, 12.0, 29.0], [8.0, 33.0]]

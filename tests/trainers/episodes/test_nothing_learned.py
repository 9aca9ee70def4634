"""When a generation teaches nothing, and which reason is given."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from llm_envs.errors import RolloutFailedError
from llm_envs.rollout import EpisodeSpec
from llm_envs.rollout.episode import errored_trajectory
from llm_envs.trainers.episodes.nothing_learned import (
    DROPPED,
    FailureCount,
    LearningCount,
    generation_yield,
    has_signal,
    why_nothing,
)
from llm_envs.trainers.episodes.rewards import EpisodeRewards
from llm_envs.trainers.functional.batch import Batch


def episodes(*groups):
    """Groups of rewards; None: an episode that failed, "dropped": one in a place that stayed empty."""
    played, turn_rewards = [], []
    for number, rewards in enumerate(groups):
        for member, reward in enumerate(rewards):
            where = DROPPED if reward == "dropped" else "env.step"
            spec = EpisodeSpec("llm/Countdown-v0", group_id=f"g{number}", member=member, seed=number)
            trajectory = errored_trajectory(spec, RolloutFailedError("broken"), where)
            is_scored = isinstance(reward, float)
            played.append(replace(trajectory, status="ok", error=None) if is_scored else trajectory)
            turn_rewards.append(np.array([reward] if is_scored else []))
    return EpisodeRewards({}, {}, tuple(turn_rewards), tuple(played))


@pytest.mark.parametrize(
    "groups, words",
    [
        ([[1.0, 1.0], [0.0, 0.0]], ["in 2 of 2 groups all rewards were equal"]),
        ([["dropped", "dropped"], [0.5, 0.5]], ["in 1 of 2 groups", "group_filter dropped", "1 of 2 places"]),
        ([[None, None]], ["2 episodes without a score", "env.step: RolloutFailedError: broken"]),
        ([[1.0], [0.0]], ["no token of a scored episode is trained"]),
    ],
)
def test_the_reason_that_nothing_is_learned(groups, words):
    silent = generation_yield(episodes(*groups), False)
    reason = why_nothing([silent])
    assert all(word in reason for word in words) and "dropped" not in "".join(silent.failures)
    assert why_nothing([silent, replace(silent, has_signal=True)]) is None  # another process has something


def test_a_signal_is_an_advantage_on_a_trained_token_or_a_pair():
    mask = torch.tensor([[1, 1], [0, 0]])
    batch = Batch(mask.bool(), advantages=torch.tensor([0.0, 2.0]))
    assert not has_signal(batch, None, learns_without=False)  # the only advantage has no trained token
    assert has_signal(batch, None, learns_without=True) and has_signal(batch, 1, learns_without=False)
    assert not has_signal(batch, 0, learns_without=False)
    assert has_signal(replace(batch, advantages=torch.tensor([-1e-3, 0.0])), None, learns_without=False)
    assert has_signal(replace(batch, advantages=None), None, learns_without=False)
    assert not has_signal(replace(batch, mask_BT=mask.bool() & False), 1, learns_without=True)


def test_warnings_come_for_the_first_second_and_fourth_in_a_row_and_the_end_counts_all():
    count = LearningCount()
    told = [count.add("equal") is not None for _ in range(5)]
    assert told == [True, True, False, True, False] and count.learned_nothing
    assert count.add(None) is None and not count.learned_nothing
    assert "5 of 6 generations" in count.summary() and "equal" in count.summary()
    assert LearningCount().summary() is None and not LearningCount().learned_nothing


def test_the_third_generation_in_a_row_without_a_score_ends_the_training():
    count, failures = FailureCount(), {"env.step: KeyError: 'a'": 3, "no reward": 1}
    for n_episodes in (4, 4, 5, 4, 4, 0, 4, 4):  # one of five is scored; nothing played does not count
        count.add(failures if n_episodes else {}, n_episodes)
    with pytest.raises(RolloutFailedError, match=r"4 of 4 episodes.*3 x env.step: KeyError: 'a'; 1 x no reward.*3 gen"):
        count.add(failures, 4)

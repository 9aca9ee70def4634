"""Games of several seats in the trainers: the groups of a generation, their advantages, and steps of GRPO and PPO."""

from __future__ import annotations

import gymnasium as gym
import pytest
import torch
from device import spy_on_batches
from trainings import PLAYED, TRAINERS

from llm_envs.policies import ConstantPolicy
from llm_envs.rollout import MultiplayerEnv, PastVersions
from llm_envs.spaces import TextSpace
from llm_envs.trainers.functional.algorithm import DR_GRPO

pytestmark = pytest.mark.trainings


class LongerEnv(gym.Env):
    """Both seats speak once; the longer reply wins 1, the shorter loses 1. It is not a `SeatedEnv`."""

    observation_space = action_space = TextSpace()
    n_seats, system_prompt, tools = 2, None, ()
    n_games = 0

    def __init__(self, split="train"):
        self.split = split

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        type(self).n_games += 1
        self.said = []
        return "Speak", {"seat": 0}

    def step(self, action):
        self.said.append(action)
        if len(self.said) == 1:
            return "Speak", 0.0, False, False, {"seat": 1, "rewards": [0.0, 0.0]}
        gain = float(len(self.said[0]) > len(self.said[1])) - float(len(self.said[0]) < len(self.said[1]))
        info = {"seat": 0, "rewards": [gain, -gain], "observations": ["over", "over"]}
        return "over", 0.0, True, False, info | {"is_success": [gain > 0, gain < 0]}


@pytest.fixture
def make(tiny_folder, configure, keep):
    LongerEnv.n_games = 0

    def build(kind, opponent=None, **changes):
        settings = {**PLAYED, "max_completion_length": 16, "lr_scheduler_type": "linear", "save_trajectories": False}
        algorithm = changes.pop("algorithm", None)
        trainer_class, config = TRAINERS[kind]
        settings |= {"num_generations": 4} if kind == "grpo" else {}
        env = MultiplayerEnv(LongerEnv, opponent)
        trainer = keep(trainer_class(tiny_folder, env, configure(config, **settings | changes), algorithm=algorithm))
        trainer.outputs = spy_on_batches(trainer)
        return trainer

    return build


def weights(trainer):
    return torch.cat([parameter.detach().flatten().clone() for parameter in trainer.model.parameters()])


@pytest.mark.parametrize("algorithm", [None, DR_GRPO])
def test_grpo_has_a_group_for_each_seat(make, algorithm):
    """16 rows in groups of 4 are two games' worth of seats: groups 0 and 1 share games, and so do 2 and 3."""
    trainer = make("grpo", algorithm=algorithm, scale_rewards="none" if algorithm is None else "group")
    before = weights(trainer)
    trainer.train()
    played = trainer.last_trajectories
    assert [t.metadata["seat"] for t in played] == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    assert LongerEnv.n_games == 8
    assert [t.seed for t in played[:4]] == [t.seed for t in played[4:8]]
    assert played[0].seed != played[8].seed
    assert len({t.group_id for t in played}) == 4
    rewards = torch.tensor([t.reward for t in played]).view(2, 2, 4)
    assert torch.equal(rewards[:, 0], -rewards[:, 1])
    assert rewards.abs().sum() > 0
    expected = (rewards - rewards.mean(2, keepdim=True)).flatten()
    assert torch.allclose(trainer.outputs[0]["advantages"].flatten(), expected, atol=1e-6)
    assert not torch.equal(weights(trainer), before)


def test_ppo_takes_each_seat_as_an_episode(make):
    """Groups of one: rows 2k and 2k + 1 are the seats of one game, so 16 rows are 8 games."""
    trainer = make("ppo")
    before = weights(trainer)
    trainer.train()
    played = trainer.last_trajectories
    assert [t.metadata["seat"] for t in played] == [0, 1] * 8
    assert LongerEnv.n_games == 8
    assert [a.reward + b.reward for a, b in zip(played[::2], played[1::2], strict=True)] == [0.0] * 8
    assert not torch.equal(weights(trainer), before)


@pytest.mark.smoke
def test_a_fixed_opponent_is_not_trained(make):
    """The opponent says nothing, so every reply with a character wins; only the policy's rows are there."""
    trainer = make("grpo", ConstantPolicy(""), max_steps=1)
    trainer.train()
    played = trainer.last_trajectories
    assert LongerEnv.n_games == 16
    assert [t.metadata["seat"] for t in played] == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    assert {t.reward for t in played} <= {0.0, 1.0}
    assert all(row.logps[row.mask].max() < 0 for t in played for row in t.rows)


def test_a_pool_of_past_versions(make):
    """With a copy each step, the third generation plays against the first two."""
    pool = PastVersions(1)
    trainer = make("grpo", pool, max_steps=3)
    trainer.train()
    assert sorted(pool.versions) == [0, 1, 2]
    first, last = (pool.versions[version].model for version in (0, 2))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), last.parameters(), strict=True))
    assert not any(parameter.requires_grad and parameter.grad is not None for parameter in first.parameters())

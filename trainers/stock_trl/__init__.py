"""Environments in TRL's own `GRPOTrainer`, through its `rollout_func` or its `environment_factory`."""

from __future__ import annotations

from llm_envs.trainers.stock_trl.rollout import (
    EnvRollout,
    algorithm_advantages,
    component_reward,
    env_reward,
    episode_dataset,
    rollout_func,
)
from llm_envs.trainers.stock_trl.tool_loop import environment_factory, prompt_dataset

__all__ = [
    "EnvRollout",
    "algorithm_advantages",
    "component_reward",
    "env_reward",
    "environment_factory",
    "episode_dataset",
    "prompt_dataset",
    "rollout_func",
]

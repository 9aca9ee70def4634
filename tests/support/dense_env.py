"""Two turns in which every reply has a reward of its own, so that an untrained model's replies differ in it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from llm_envs.spaces import TextSpace


class DenseEnv(gym.Env[str, str]):
    """Say something, twice. The reward of a reply is a hash of its characters."""

    observation_space = action_space = TextSpace()

    def __init__(self, split: str = "train") -> None:
        self.split, self.n_turns = split, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.n_turns = 0
        return self.question(), {}

    def question(self) -> str:
        return f"Say something about {self.np_random.integers(1000)}"

    def state_key(self) -> str:
        return str(self.n_turns)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.n_turns += 1
        reward = sum(map(ord, action)) % 17 / 17
        return "Go on.", reward, self.n_turns == 2, False, {"is_success": reward > 0.5}

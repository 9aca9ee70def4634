"""A two-turn environment that a tiny model can learn, and the tiny model."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from functools import partial

import gymnasium as gym
import pytest
from device import exact_kernels
from tiny_folders import save_tiny
from trainings import PLAYED, QUIET

from llm_envs.spaces import TextSpace


class SayEnv(gym.Env):
    """Say as many b as you can, twice. The second observation is a tool's, and full of b: only the agent's own count.

    With `fail_every`, that share of the episodes raises in its second step (which ones, the seeds decide).
    """

    observation_space = action_space = TextSpace()
    reset_seeds: dict[str, list[int]] = defaultdict(list)  # by split, for the tests

    def __init__(self, split: str = "train", fail_every: int = 0, fail_always: bool = False) -> None:
        self.split, self.fail_every, self.fail_always = split, fail_every, fail_always
        self.system_prompt = None
        self.tools: list[dict] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.reset_seeds[self.split].append(seed)
        self.n_turns = 0
        return "Say b", {}

    def step(self, action):
        self.n_turns += 1
        # Half a failure: the same seed fails for one member and works for another, by what they said.
        if self.fail_always or (self.fail_every and self.n_turns == 2 and len(action) % self.fail_every == 0):
            raise ConnectionError("the tool's server is gone")
        reward = action.count("b") / 8 / 2
        info = {"messages": [{"role": "tool", "content": "bbbbbbbb"}]}
        ended = self.n_turns == 2
        if ended:
            info["is_success"] = "bbbb" in action
        return "bbbbbbbb", reward, ended, False, info


gym.register("test/Say-v0", SayEnv)


@pytest.fixture(scope="module", autouse=True)
def exact():
    """Trainings are compared bit by bit, or nearly so."""
    with exact_kernels():
        yield


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A saved tiny model whose every byte is a token."""
    return str(save_tiny(tmp_path_factory.mktemp("tiny"), hidden_size=64, n_heads=2, max_length=256, seed=3))


@pytest.fixture(scope="session")
def teacher_folder(tmp_path_factory):
    """A saved model half as deep as the tiny one, with its tokenizer and other weights."""
    return str(
        save_tiny(tmp_path_factory.mktemp("teacher"), hidden_size=64, n_heads=2, n_layers=1, max_length=256, seed=4)
    )


@pytest.fixture
def keep():
    """Return a function that closes the trainers given to it after the test, and returns each."""
    with contextlib.ExitStack() as kept:

        def add(trainer):
            kept.callback(getattr(trainer, "close", lambda: None))
            return trainer

        yield add


@pytest.fixture
def configure(tmp_path):
    """Return a factory of small settings of a class, of float32: TRL's default is bfloat16 wherever there is a card."""

    def make(cls, **changes):
        settings = {
            "output_dir": str(tmp_path / "out"),
            "max_steps": 1,
            "per_device_train_batch_size": 16,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            **QUIET,
        }
        return cls(**{**settings, **changes})

    return make


@pytest.fixture
def config(configure):
    """Return a factory of small settings of GRPO."""
    from llm_envs.trainers import EnvGRPOConfig

    return partial(configure, EnvGRPOConfig, num_generations=4, **PLAYED)

"""The task that `check_task` looks at, and the episodes that several clauses share."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, SupportsFloat

import gymnasium as gym

from llm_envs.env import SPLITS, TextEnv, canonical_json
from llm_envs.hostile import HostileAction, hostile_actions, mutate

__all__ = ["QUICK", "THOROUGH", "BrokenClause", "Effort", "Player", "Step", "Subject", "play"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of a task is looked at."""

    n_seeds: int
    """Episodes of the oracle."""
    n_draws: int
    """Problems that are drawn, half of them in each split."""
    n_hostile_episodes: int
    """Of each kind of hostile action."""
    n_fuzzed: int
    """Mutated and hostile actions in the middle of good play."""
    n_pairs: int
    """Neighbouring seeds whose problems are compared."""


QUICK = Effort(n_seeds=20, n_draws=300, n_hostile_episodes=30, n_fuzzed=100, n_pairs=60)
"""Seconds: while a task is written."""
THOROUGH = Effort(n_seeds=200, n_draws=2_000, n_hostile_episodes=30, n_fuzzed=1_000, n_pairs=10_000)
"""A minute, perhaps: before it is published."""


class BrokenClause(Exception):
    """A clause does not hold."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an episode, as the environment returned it."""

    action: str
    observation: str
    reward: SupportsFloat
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def is_win(self) -> bool:
        """Whether the episode ended here with success."""
        return (self.terminated or self.truncated) and self.info.get("is_success") is True


@dataclass(frozen=True, slots=True)
class FailedEpisode:
    """An episode that an exception ended."""

    action: str
    """The last one."""
    error: Exception


Player = Callable[[TextEnv, str], str]
"""(task, last observation) to action."""


@dataclass
class Subject:
    """The task under test, and the episodes that several clauses look at."""

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    effort: Effort = QUICK

    def make(self, **more: Any) -> gym.Env[str, str]:
        """Make the environment, with some keyword arguments replaced."""
        return gym.make(self.env_id, **{**self.kwargs, **more})

    @cached_property
    def env(self) -> gym.Env[str, str]:
        """One environment for all clauses that leave it as it is."""
        return self.make()

    @property
    def task(self) -> TextEnv:
        """The same without Gymnasium's wrappers."""
        return unwrap(self.env)

    @cached_property
    def oracle_episodes(self) -> list[list[Step]]:
        """The oracle's episodes, by seed."""
        return [play(self.env, seed, ask_oracle) for seed in range(self.effort.n_seeds)]

    @cached_property
    def hostile_episodes(self) -> dict[str, list[list[Step] | Exception]]:
        """Episodes by the name of the hostile action; an exception stands for the episode that it ended."""
        self.env.reset(seed=0)
        rng = random.Random(0)
        episodes: dict[str, list[list[Step] | Exception]] = {}
        for name, act in hostile_actions(self.task.tools).items():
            player = partial(_act_hostile, act, rng)
            played = episodes[name] = []
            for seed in range(3 if "long" in name else self.effort.n_hostile_episodes):
                try:
                    played.append(play(self.env, seed, player))
                except Exception as error:
                    played.append(error)
        return episodes

    @cached_property
    def borrowed_episodes(self) -> dict[int, list[Step]]:
        """Episodes, by seed, of a player that says what the oracle said to another problem: the right form, a guess."""
        problems = []
        for seed in range(self.effort.n_seeds):
            self.env.reset(seed=seed)
            problems.append(problem_of(self.env))
        episodes = {}
        for seed, problem in enumerate(problems):
            others = [
                other for other in range(seed + 1, seed + len(problems)) if problems[other % len(problems)] != problem
            ]
            if others:
                actions = [step.action for step in self.oracle_episodes[others[0] % len(problems)]]
                episodes[seed] = play(self.env, seed, repeat(actions))
        return episodes

    @cached_property
    def fuzzed_episodes(self) -> list[list[Step] | FailedEpisode]:
        """Episodes, by seed, of an oracle half of whose actions are spoilt: `effort.n_fuzzed` spoilt ones."""
        rng = random.Random(0)
        self.env.reset(seed=0)
        hostile = [act for name, act in hostile_actions(self.task.tools).items() if "long" not in name]
        episodes: list[list[Step] | FailedEpisode] = []
        n_spoilt, latest = 0, ""

        def act(task: TextEnv, observation: str) -> str:
            nonlocal n_spoilt, latest
            latest = task.oracle()
            if rng.random() < 0.5:
                n_spoilt += 1
                latest = mutate(latest, rng) if rng.random() < 0.8 else rng.choice(hostile)(task, observation, rng)
            return latest

        while n_spoilt < self.effort.n_fuzzed:
            latest = ""
            try:
                episodes.append(play(self.env, len(episodes), act))
            except Exception as error:
                episodes.append(FailedEpisode(latest, error))
                break
        return episodes

    @cached_property
    def all_steps(self) -> list[Step]:
        """The steps of all these episodes."""
        hostile = [steps for played in self.hostile_episodes.values() for steps in played if isinstance(steps, list)]
        fuzzed = [steps for steps in self.fuzzed_episodes if isinstance(steps, list)]
        played = [*self.oracle_episodes, *hostile, *fuzzed, *self.borrowed_episodes.values()]
        return [step for steps in played for step in steps]

    @cached_property
    def drawn_problems(self) -> list[str]:
        """Canonical JSON of the problems of many resets, half of them in each split."""
        problems = []
        for split in SPLITS:
            env = self.make(split=split)
            env.reset(seed=0)
            for _ in range(self.effort.n_draws // 2):
                env.reset()
                problems.append(problem_of(env))
        return problems


def play(env: gym.Env[str, str], seed: int | None, player: Player) -> list[Step]:
    """Play one episode, but at most two steps beyond the task's own limit."""
    task = unwrap(env)
    observation, _ = env.reset(seed=seed)
    steps: list[Step] = []
    while len(steps) < task.max_turns + 2 and not (steps and (steps[-1].terminated or steps[-1].truncated)):
        action = player(task, observation)
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append(Step(action, observation, reward, terminated, truncated, info))
    return steps


def require(condition: object, message: str) -> None:
    """Raise `BrokenClause` with the message unless the condition is true."""
    if not condition:
        raise BrokenClause(message)


def unwrap(env: gym.Env[str, str]) -> TextEnv:
    """Return the task below the wrappers."""
    task = env.unwrapped
    if not isinstance(task, TextEnv):
        raise BrokenClause(f"{type(task).__name__} is no llm_envs.TextEnv: subclass it, or one of its shapes")
    return task


def ask_oracle(task: TextEnv, observation: str) -> str:
    """Play as the oracle: a `Player`."""
    return task.oracle()


def _act_hostile(act: HostileAction, rng: random.Random, task: TextEnv, observation: str) -> str:
    return act(task, observation, rng)


def repeat(actions: Sequence[str], then: str = "I am done.") -> Player:
    """Return a player of the given actions in order, and then of one more again and again."""
    left = list(actions)
    return lambda task, observation: left.pop(0) if left else then


def split_key_of(task: TextEnv, problem: str) -> str:
    """Return the canonical JSON of the split key of a problem in canonical JSON."""
    return canonical_json(task.split_key(json.loads(problem)))


def problem_of(env: gym.Env[str, str]) -> str:
    """Return the canonical JSON of the problem in play."""
    problem = env.get_wrapper_attr("problem")
    require(
        isinstance(problem, dict),
        f"the problem is a {type(problem).__name__}: generate() must return a dict of JSON types",
    )
    return canonical_json(problem)

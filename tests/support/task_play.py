"""Tasks as tests play them: a given problem, drawn problems, and how often a player wins."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer

LEVELS = ["easy", "medium", "hard"]


def make(id: str, level: str | None = None, **kwargs: Any) -> Any:
    """Return a task without its wrappers."""
    return gym.make(id, difficulty=level, **kwargs).unwrapped


def play(id: str, problem: dict, *answers: object, **kwargs: Any) -> list[tuple]:
    """Answer a problem; return (observation, reward, terminated, truncated) of each step."""
    env = gym.make(id, **kwargs)
    env.reset(seed=0, options={"problem": problem})
    return [env.step(format_answer(answer))[:4] for answer in answers]


def reward(id: str, problem: dict, answer: object, **kwargs: Any) -> float:
    """Return what an answer to a problem earns."""
    return play(id, problem, answer, **kwargs)[0][1]


def require_refused(id: str, problem: dict, complaint: str) -> None:
    """Require that a problem cannot be played, and that the error gives the reason."""
    with pytest.raises(InvalidConfigError, match=complaint):
        gym.make(id).reset(options={"problem": problem})


def drawn(id: str, level: str, n: int) -> Iterator[Any]:
    """Yield the task of n drawn problems."""
    task = make(id, level)
    task.reset(seed=0)
    for _ in range(n):
        task.reset()
        yield task


def finish(env: Any, reply: Callable[[], str]) -> list[tuple]:
    """Reply `reply()` until the episode is over; return the steps."""
    steps = [env.step(reply())]
    while not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(reply()))
    return steps


def results(env: Any, choose: Callable[[Any, random.Random], str], n: int) -> tuple[float, float]:
    """Return the means of what a player earns that replies `choose(env, rng)`, and of its successes."""
    rng, earned, wins = random.Random(0), 0.0, 0
    for seed in range(n):
        env.reset(seed=seed)
        steps = finish(env, lambda: choose(env, rng))
        earned += sum(reward for _, reward, *_ in steps)
        wins += steps[-1][4]["is_success"]
    return earned / n, wins / n


def share_of_wins(env: Any, choose: Callable[[Any, random.Random], object], n: int) -> float:
    """Return how often a player wins that answers `choose(env, rng)`."""
    return results(env, lambda env, rng: format_answer(choose(env, rng)), n)[1]


def oracle(env: Any, rng: random.Random) -> str:
    """Reply as the task's oracle."""
    return env.oracle()


def is_at_most(rate: float, declared: float, n: int) -> bool:
    """Return whether a rate of n games is explained by a declared one, within three standard deviations."""
    return rate <= declared + 3 * (declared * (1 - declared) / n) ** 0.5

"""The environment that `certify` examines: how to make it, what is declared about it, and episodes that checks share.

It is any Gymnasium environment whose observations and actions are texts. If it is one of our tasks with an oracle, it
has a `Subject` too, and the clauses of `check_task` examine that.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from llm_envs.checker.subject import (
    FALSE_ALARM,
    QUICK,
    BrokenClause,
    Step,
    Subject,
    binomial_tail,
    repeat,
)
from llm_envs.env import TextEnv
from llm_envs.errors import EnvContractError, InvalidConfigError
from llm_envs.parsers import format_answer

__all__ = ["Candidate", "Learner", "Settings", "TextPolicy", "Trace", "difference", "global_random_state", "probe"]

TextPolicy = Callable[[Any, str], str]
"""(environment without wrappers, last observation) to action."""
Learner = Callable[[Callable[..., gym.Env[str, str]]], tuple[float, float]]
"""(maker of environments) to the mean return before and after a training within the learner's budget."""

_UNDECLARED_CHANCE = 0.05
"""Chance rate of an environment that declares none: rarely exceeded by open questions, and far below a leak's rate."""
_N_REFERENCES = 5
"""Episodes that are played again in other environments."""
_PROBES = (
    *("hello", "yes", "no", "0", "1", "2", "a", "look", "left", "right", "up", "down", "help", "stop"),
    *map(format_answer, (0, 1, "yes", "a", "left")),
)
_WORDS_PER_PROBE = 0.4
"""Share of probes that are words of the observation, which are often legal actions."""
_STAGES = (6, 20, 60)
"""Episodes of a player, by stage. A next stage is played only while chance does not clearly explain its wins."""
_SUSPECT = 0.1


@dataclass(frozen=True, slots=True)
class Settings:
    """A user's declarations about an environment, and the bounds to hold it to."""

    n_episodes: int = 20
    """Episodes of the oracle, and resets that are timed."""
    oracle: TextPolicy | None = None
    """A policy that always wins; None takes the environment's method `oracle`, if it has one."""
    chance_rate: float | None = None
    """Highest success rate of a player without skill; None takes the environment's attribute, or else 0.05."""
    success_at: float = 1.0
    """Lowest return of a success, if `info` has no `is_success` at an episode's end."""
    return_range: tuple[float, float] | None = None
    """Lowest and highest return; None takes the environment's `return_range` or `reward_range`, if it has one."""
    n_problems: int | None = None
    """Number of problems; None: many, or the environment's attribute."""
    max_turns: int = 200
    """Most turns of an episode; an environment's attribute `max_turns` replaces it."""
    max_step_s: float = 0.1
    """Seconds that a step may take; 10 times as much if the environment has `blocking = True`."""
    max_reset_s: float = 1.0
    """Seconds that a reset may take."""
    max_growth_bytes: int = 2_000
    """Memory that an episode may keep after the next one has begun."""
    learner: Learner | None = None
    """Trains a model on the environment; None leaves learnability unexamined."""

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("n_episodes", "max_turns", "max_step_s", "max_reset_s", "max_growth_bytes"):
            if not getattr(self, name) > 0:
                raise InvalidConfigError(f"Settings: {name} is {getattr(self, name)!r}; it must be above 0.")
        if self.chance_rate is not None and not 0 <= self.chance_rate <= 1:
            raise InvalidConfigError(f"Settings: chance_rate is {self.chance_rate!r}; it must be between 0 and 1.")
        if self.n_problems is not None and self.n_problems < 1:
            raise InvalidConfigError(f"Settings: n_problems is {self.n_problems!r}; it must be at least 1.")
        if self.return_range is not None and not self.return_range[0] < self.return_range[1]:
            raise InvalidConfigError(f"Settings: return_range is {self.return_range!r}; give the lower end first.")


@dataclass(frozen=True, slots=True)
class Trace:
    """One episode: the first observation, the steps, and the exception that ended it, if one did."""

    opening: str
    steps: list[Step] = field(default_factory=list)
    error: Exception | None = None
    raised_by: str | None = None
    """The action that made the environment raise; None also if the policy raised."""

    @property
    def actions(self) -> list[str]:
        """The actions of the steps."""
        return [step.action for step in self.steps]

    @property
    def tried(self) -> list[str]:
        """The same, and the action that made the environment raise."""
        return self.actions + ([] if self.raised_by is None else [self.raised_by])

    @property
    def total(self) -> float:
        """The return."""
        return sum(float(step.reward) for step in self.steps)

    @property
    def is_over(self) -> bool:
        """Whether the environment ended the episode."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)


@dataclass
class Candidate:
    """The environment under examination."""

    name: str
    make: Callable[..., gym.Env[str, str]]
    """Makes a fresh environment, with some keyword arguments replaced."""
    settings: Settings = field(default_factory=Settings)
    env_id: str | None = None
    """The registered id, if it has one."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The keyword arguments that `make` passes."""

    @cached_property
    def env(self) -> gym.Env[str, str]:
        """One environment for checks that only play."""
        return self.make()

    @cached_property
    def subject(self) -> Subject | None:
        """The same for the clauses of `check_task`; None for environments that are not tasks with an oracle."""
        if not isinstance(self.env.unwrapped, TextEnv) or self._own_oracle is None:
            return None
        effort = replace(QUICK, n_seeds=self.settings.n_episodes)
        return _MadeSubject(self.env_id or self.name, self.env_kwargs, effort, self.make)

    @cached_property
    def oracle(self) -> TextPolicy | None:
        """The given oracle, or that of the environment."""
        return self.settings.oracle or self._own_oracle

    @cached_property
    def _own_oracle(self) -> TextPolicy | None:
        if not callable(getattr(self.env.unwrapped, "oracle", None)):
            return None
        try:
            self.env.reset(seed=0)
            self.env.unwrapped.oracle()  # type: ignore[attr-defined]
        except (EnvContractError, NotImplementedError):  # how a task without an oracle answers
            return None
        except Exception:  # a broken oracle: its check reports it
            pass
        return lambda env, observation: str(env.oracle())

    @property
    def chance_rate(self) -> float:
        """The declared success rate of players without skill."""
        declared = self.settings.chance_rate
        found = getattr(self.env.unwrapped, "chance_rate", _UNDECLARED_CHANCE) if declared is None else declared
        return float(found)

    @property
    def n_problems(self) -> int | None:
        """The declared number of problems."""
        found = self.settings.n_problems
        return getattr(self.env.unwrapped, "n_problems", None) if found is None else found

    @property
    def max_turns(self) -> int:
        """The most turns of an episode."""
        return int(getattr(self.env.unwrapped, "max_turns", self.settings.max_turns))

    @property
    def return_range(self) -> tuple[float, float] | None:
        """The declared range of returns."""
        env = self.env.unwrapped
        found = self.settings.return_range or getattr(env, "return_range", None) or getattr(env, "reward_range", None)
        if found is None or not all(map(math.isfinite, found)):
            return None
        return float(found[0]), float(found[1])

    def play(self, env: gym.Env[str, str], seed: int | None, policy: TextPolicy, *, most: int | None = None) -> Trace:
        """Play one episode, with at most `most` steps; by default two more than the limit of turns."""
        try:
            observation, _ = env.reset(seed=seed)
        except Exception as error:
            return Trace("", [], error)
        trace, most = Trace(observation), self.max_turns + 2 if most is None else most
        while len(trace.steps) < most and not trace.is_over:
            action = None
            try:
                action = policy(env.unwrapped, observation)
                observation, reward, terminated, truncated, info = env.step(action)
            except Exception as error:
                return replace(trace, error=error, raised_by=action)
            trace.steps.append(Step(action, observation, reward, terminated, truncated, info))
        return trace

    def play_fresh(self, seed: int, policy: TextPolicy, *, most: int | None = None) -> Trace:
        """Play the first episode of a fresh environment, and close it."""
        with contextlib.closing(self.make()) as env:
            return self.play(env, seed, policy, most=most)

    def is_win(self, trace: Trace) -> bool:
        """Whether an episode ended with success."""
        if not trace.is_over:
            return False
        return bool(trace.steps[-1].info.get("is_success", trace.total >= self.settings.success_at))

    def player(self, seed: int) -> TextPolicy:
        """Return a policy that gives the oracle's action or a probe, by chance from the seed."""
        rng = random.Random(seed)

        def act(env: Any, observation: str) -> str:
            return self.oracle(env, observation) if self.oracle and rng.random() < 0.5 else probe(observation, rng)

        return act

    @cached_property
    def references(self) -> list[Trace]:
        """Episodes by seed, each the first one of a fresh environment."""
        return [self.play_fresh(seed, self.player(seed)) for seed in range(_N_REFERENCES)]

    @cached_property
    def repeats(self) -> str:
        """How an episode differs in a second fresh environment; "" if none does."""
        with global_random_state(123):
            references = self.references
        for seed, trace in enumerate(references):
            with global_random_state(456):
                again = self.play_fresh(seed, repeat(trace.tried), most=len(trace.tried))
            if found := difference(trace, again):
                return f"seed {seed}: {found}"
        return ""

    @cached_property
    def oracle_traces(self) -> list[Trace]:
        """Episodes of the oracle, by seed."""
        assert self.oracle is not None
        return [self.play(self.env, seed, self.oracle) for seed in range(self.settings.n_episodes)]

    def require_no_skill(self, name: str, policy_of: Callable[[int], TextPolicy | None]) -> float:
        """Require that chance explains the wins of a player; return its share of wins.

        Args:
            name: Of the player, for the message.
            policy_of: Seed to the policy of that episode; None leaves the episode out.
        """
        won: list[int] = []
        played = 0
        for start, stop in zip((0, *_STAGES), _STAGES, strict=False):
            for seed in range(start, stop):
                policy = policy_of(seed)
                played += policy is not None
                won += [seed] if policy is not None and self.is_win(self.play(self.env, seed, policy)) else []
            if not FALSE_ALARM <= binomial_tail(len(won), played, self.chance_rate) < _SUSPECT:
                break
        if binomial_tail(len(won), played, self.chance_rate) < FALSE_ALARM:
            raise BrokenClause(
                f"{name} won {len(won)} of {played} episodes (seeds {won[:3]}); the chance rate is "
                f"{self.chance_rate:g}: judge more strictly, or declare the chance rate"
            )
        return len(won) / max(1, played)


@dataclass
class _MadeSubject(Subject):
    """A task that is made by a function, so it need not be registered."""

    maker: Callable[..., gym.Env[str, str]] = gym.make

    def make(self, **more: Any) -> gym.Env[str, str]:
        """Make the environment, with some keyword arguments replaced."""
        return self.maker(**more)


def probe(observation: str, rng: random.Random) -> str:
    """Return a word of the observation, or a common reply."""
    words = observation.split()
    if words and rng.random() < _WORDS_PER_PROBE:
        return rng.choice(words).strip(".,:;!?\"'()[]")
    return rng.choice(_PROBES)


def difference(first: Trace, second: Trace) -> str:
    """Return the first difference between two episodes in what an agent reads and is paid; "" if they are equal."""
    if first.opening != second.opening:
        return f"it begins {first.opening[:60]!r}, and again {second.opening[:60]!r}"
    for turn, (one, other) in enumerate(zip(first.steps, second.steps, strict=False), 1):
        seen, again = _seen(one), _seen(other)
        if seen != again:
            return f"after {one.action[:60]!r} in turn {turn} it gives {seen!r:.120}, and again {again!r:.120}"
    if (len(first.steps), first.raised_by) != (len(second.steps), second.raised_by):
        return f"it has {len(first.steps)} turns ({first.error!r}), and again {len(second.steps)} ({second.error!r})"
    return ""


def _seen(step: Step) -> Sequence[object]:
    return step.observation, repr(step.reward), step.terminated, step.truncated, step.info.get("is_success")


@contextlib.contextmanager
def global_random_state(seed: int) -> Iterator[None]:
    """Seed `random` and `numpy.random` inside the block, and restore them after it."""
    kept = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])

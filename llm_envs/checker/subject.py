"""The environment that clauses examine: how to make it, what is declared about it, and episodes that clauses share.

It is any Gymnasium environment whose observations and actions are texts. For one of our tasks (`TextEnv`) more is
declared, so clauses ask more of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gymnasium as gym

from llm_envs.checker.blind import Lesson
from llm_envs.checker.episodes import (
    Step,
    TextPolicy,
    Trace,
    ask_oracle,
    difference,
    global_random_state,
    hostile_policy,
    play,
    probe,
    problem_of,
    remembering,
    repeat,
    traced,
    unwrap,
)
from llm_envs.checker.hostile import hostile_actions, mutate
from llm_envs.checker.verdicts import FALSE_ALARM, binomial_tail, require
from llm_envs.env import TextEnv
from llm_envs.errors import EnvContractError, InvalidConfigError, NoOracleError

__all__ = ["QUICK", "THOROUGH", "Draw", "Effort", "Learner", "Settings", "Subject", "may_wait"]

Learner = Callable[[Callable[..., gym.Env[str, str]]], tuple[float, float]]
"""(maker of environments) to the mean return before and after a training within the learner's budget."""

_UNDECLARED_CHANCE = 0.05
"""Chance rate of an environment that declares none: rarely exceeded by open questions, and far below a leak's rate."""
_N_REFERENCES = 5
"""Episodes that are played again in other environments."""
_SUSPECT = 0.1
"""A player continues while the probability of its number of wins by chance is below this."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of an environment the checker examines."""

    n_seeds: int
    """Episodes of the oracle."""
    n_draws: int
    """Number of problems to draw, half of them in each split."""
    n_hostile_episodes: int
    """Episodes of each kind of hostile action."""
    n_fuzzed: int
    """Damaged and hostile actions in the middle of good play."""
    n_pairs: int
    """Neighbouring seeds whose problems are compared."""
    n_tries: tuple[int, ...] = (40, 160, 640)
    """Episodes of a blind policy, by stage. A next stage is played only if chance does not explain the wins so far."""


QUICK = Effort(n_seeds=20, n_draws=300, n_hostile_episodes=30, n_fuzzed=100, n_pairs=60)
"""Takes seconds: for use while writing a task."""
THOROUGH = Effort(
    n_seeds=200, n_draws=2_000, n_hostile_episodes=30, n_fuzzed=1_000, n_pairs=10_000, n_tries=(40, 160, 640, 2_000)
)
"""May take a minute: for use before publishing a task."""


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
    """Seconds that a step may take; 10 times as much if the environment has `blocking = True` or tools that wait."""
    max_reset_s: float = 1.0
    """Seconds that a reset may take."""
    max_growth_bytes: int = 2_000
    """Memory that an episode may keep after the next one has begun."""
    learner: Learner | None = None
    """Trains a model on the environment; None leaves learnability unexamined."""

    def __post_init__(self) -> None:
        for name in ("n_episodes", "max_turns", "max_step_s", "max_reset_s", "max_growth_bytes"):
            if not getattr(self, name) > 0:
                raise InvalidConfigError(f"Settings: {name} is {getattr(self, name)!r}; it must be above 0.")
        if self.chance_rate is not None and not 0 <= self.chance_rate <= 1:
            raise InvalidConfigError(f"Settings: chance_rate is {self.chance_rate!r}; it must be between 0 and 1.")
        if self.n_problems is not None and self.n_problems < 1:
            raise InvalidConfigError(f"Settings: n_problems is {self.n_problems!r}; it must be at least 1.")
        if self.return_range is not None and not self.return_range[0] < self.return_range[1]:
            raise InvalidConfigError(f"Settings: return_range is {self.return_range!r}; give the lower end first.")


def may_wait(env: gym.Env[str, str]) -> bool:
    """Return whether an environment declares that its steps wait, or has tools that wait."""
    task: Any = env.unwrapped
    tools = getattr(task, "toolbox", None)
    return bool(getattr(task, "blocking", False)) or (tools is not None and tools.waits(task.tool_timeout_s))


@dataclass(frozen=True, slots=True)
class Draw:
    """A drawn problem."""

    problem: str
    """In canonical JSON."""
    shown: str
    """The first observation."""
    reply: str
    """The oracle's first reply; "" for tasks of several turns, where it may take long."""


@dataclass
class Subject:
    """The environment under examination, and the episodes that several clauses share."""

    env_id: str
    """The registered id; if there is a `maker`, only a name."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    effort: Effort = QUICK
    settings: Settings = field(default_factory=Settings)
    maker: Callable[..., gym.Env[str, str]] | None = None
    """Makes the environment in the place of `gymnasium.make`, so it need not be registered."""

    def make(self, **more: Any) -> gym.Env[str, str]:
        """Make the environment, with some keyword arguments replaced."""
        kwargs = {**self.kwargs, **more}
        if self.maker is not None:
            return self.maker(**kwargs)
        return gym.make(self.env_id, disable_env_checker=True, **kwargs)

    @cached_property
    def env(self) -> gym.Env[str, str]:
        """One environment for all clauses that do not change it."""
        return self.make()

    @cached_property
    def replayed(self) -> gym.Env[str, str]:
        """An environment for clauses that play the same seeds many times."""
        env = self.make()
        return remembering(env) if self.is_task else env

    @property
    def is_task(self) -> bool:
        """Whether it is a `TextEnv`."""
        return isinstance(self.env.unwrapped, TextEnv)

    @property
    def task(self) -> TextEnv:
        """The task without Gymnasium's wrappers; raises `NotATask` for other environments."""
        return unwrap(self.env)

    # Declarations.

    @cached_property
    def splits(self) -> Sequence[str]:
        """The task's splits, in their order."""
        return type(self.task).splits

    @cached_property
    def n_problems(self) -> int | None:
        """The declared number of problems, in all splits together."""
        if self.settings.n_problems is not None or not self.is_task or type(self.task).divides_by_hash:
            return self.settings.n_problems or getattr(self.env.unwrapped, "n_problems", None)
        counts = [unwrap(self.make(split=split)).n_problems for split in self.splits]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def chance_rate(self) -> float:
        """The declared success rate of players without skill."""
        declared = self.settings.chance_rate
        return float(getattr(self.env.unwrapped, "chance_rate", _UNDECLARED_CHANCE) if declared is None else declared)

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

    @cached_property
    def oracle(self) -> TextPolicy | None:
        """The given oracle, or that of the environment."""
        if self.settings.oracle is not None:
            return self.settings.oracle
        if not callable(getattr(self.env.unwrapped, "oracle", None)):
            return None
        try:
            self.env.reset(seed=0)
            ask_oracle(self.env.unwrapped, "")
        except Exception as error:  # an oracle that is there and broken: its clause reports it
            lacks = NoOracleError if self.is_task else (EnvContractError, NotImplementedError)
            return None if isinstance(error, lacks) else ask_oracle
        return ask_oracle

    # Episodes.

    def traced(self, env: gym.Env[str, str], seed: int | None, policy: TextPolicy, *, most: int | None = None) -> Trace:
        """Play one episode, with at most `most` steps; by default two more than the limit of turns."""
        return traced(env, seed, policy, most=self.max_turns + 2 if most is None else most)

    def traced_fresh(self, seed: int, policy: TextPolicy, *, most: int | None = None) -> Trace:
        """Play the first episode of a fresh environment, and close it."""
        with closing(self.make()) as env:
            return self.traced(env, seed, policy, most=most)

    def is_win(self, trace: Trace) -> bool:
        """Whether an episode ended with success."""
        if not trace.is_over:
            return False
        return bool(trace.steps[-1].info.get("is_success", trace.total >= self.settings.success_at))

    def wins(self, env: gym.Env[str, str], seed: int, policy: TextPolicy) -> bool:
        """Play one episode; return whether it ended with success, and not with an exception."""
        return self.is_win(self.traced(env, seed, policy))

    def player(self, seed: int) -> TextPolicy:
        """Return a policy that mixes the oracle's actions with probes; for even seeds, it plays as the oracle."""
        rng, share = random.Random(seed), 0.5 if seed % 2 else 1.0

        def act(env: Any, observation: str) -> str:
            return self.oracle(env, observation) if self.oracle and rng.random() < share else probe(observation, rng)

        return act

    @cached_property
    def references(self) -> list[Trace]:
        """Episodes of mixed play by seed, each the first one of a fresh environment."""
        n = min(_N_REFERENCES, self.effort.n_seeds)
        return [self.traced_fresh(seed, self.player(seed)) for seed in range(n)]

    @cached_property
    def repeats(self) -> str:
        """How an episode differs in a second fresh environment; "" if none does."""
        with global_random_state(123):
            references = self.references
        for seed, trace in enumerate(references):
            with global_random_state(456):
                again = self.traced_fresh(seed, repeat(trace.tried), most=len(trace.tried))
            if found := difference(trace, again, with_info=self.is_task):
                return f"seed {seed}: {found}"
        return ""

    @cached_property
    def oracle_traces(self) -> list[Trace]:
        """The oracle's episodes, by seed; raises `NoOracleError` without an oracle."""
        if self.oracle is None:
            raise NoOracleError("the environment has no oracle")
        return [self.traced(self.env, seed, self.oracle) for seed in range(self.effort.n_seeds)]

    @property
    def oracle_episodes(self) -> list[list[Step]]:
        """The steps of the episodes of a task's oracle, by seed; raises what one of them raised, or `NotATask`."""
        errors = [trace.error for trace in self.oracle_traces if trace.error is not None] if self.task else []
        if errors:
            raise errors[0]
        return [trace.steps for trace in self.oracle_traces]

    @cached_property
    def hostile_policies(self) -> dict[str, TextPolicy]:
        """The hostile actions as policies, by name."""
        self.env.reset(seed=0)
        rng = random.Random(0)
        tools = getattr(self.env.unwrapped, "tools", None) or ()
        return {name: hostile_policy(act, rng) for name, act in hostile_actions(tools).items()}

    @cached_property
    def hostile_traces(self) -> dict[str, list[Trace]]:
        """Episodes by the name of the hostile action."""
        traces = {}
        for name, policy in self.hostile_policies.items():
            n = min(3, self.effort.n_hostile_episodes) if "long" in name else self.effort.n_hostile_episodes
            traces[name] = [self.traced(self.replayed, seed, policy) for seed in range(n)]
        return traces

    @cached_property
    def borrowed_traces(self) -> dict[int, Trace]:
        """Episodes, by seed, of a policy that gives the oracle's reply to another problem: well-formed guesses."""
        problems = [self.problem(self.replayed, seed) for seed in range(self.effort.n_seeds)]
        played = {}
        for seed, problem in enumerate(problems):
            others = [
                other for other in range(seed + 1, seed + len(problems)) if problems[other % len(problems)] != problem
            ]
            if others:
                actions = self.oracle_traces[others[0] % len(problems)].actions
                played[seed] = self.traced(self.replayed, seed, repeat(actions))
        return played

    def problem(self, env: gym.Env[str, str], seed: int) -> str:
        """Reset an environment; return its problem in canonical JSON, or else its first observation."""
        shown, _ = env.reset(seed=seed)
        return problem_of(env) if self.is_task else shown

    @cached_property
    def fuzzed_traces(self) -> list[Trace]:
        """Episodes, by seed, of good play with half of its actions damaged: `effort.n_fuzzed` damaged ones."""
        rng = random.Random(0)
        hostile = [policy for name, policy in self.hostile_policies.items() if "long" not in name]
        traces: list[Trace] = []
        n_spoilt = 0

        def act(env: Any, observation: str) -> str:
            nonlocal n_spoilt
            action = probe(observation, rng) if self.oracle is None else self.oracle(env, observation)
            if rng.random() < 0.5:
                n_spoilt += 1
                action = mutate(action, rng) if rng.random() < 0.8 else rng.choice(hostile)(env, observation)
            return action

        while n_spoilt < self.effort.n_fuzzed and not (traces and traces[-1].error):
            traces.append(self.traced(self.replayed, len(traces), act))
        return traces

    @cached_property
    def all_traces(self) -> list[Trace]:
        """All these episodes."""
        hostile = [trace for played in self.hostile_traces.values() for trace in played]
        by_oracle = [] if self.oracle is None else [*self.oracle_traces, *self.borrowed_traces.values()]
        return [*self.references, *by_oracle, *hostile, *self.fuzzed_traces]

    @cached_property
    def all_steps(self) -> list[Step]:
        """The steps of all these episodes."""
        return [step for trace in self.all_traces for step in trace.steps]

    @cached_property
    def draws(self) -> dict[str, list[Draw]]:
        """The problems of many resets, by split."""
        draws: dict[str, list[Draw]] = {}
        for split in self.splits:
            env = self.make(split=split)
            task = unwrap(env)
            env.reset(seed=0)
            drawn = draws[split] = []
            for _ in range(self.effort.n_draws // 2):
                shown, _ = env.reset()
                drawn.append(Draw(problem_of(env), shown, task.oracle() if task.max_turns == 1 else ""))
        return draws

    @cached_property
    def drawn_problems(self) -> list[str]:
        """Canonical JSON of the same problems, half of them in each split."""
        return [draw.problem for split in self.splits for draw in self.draws[split]]

    @cached_property
    def lessons(self) -> list[Lesson]:
        """The material to learn from: the oracle's play on the train split. Empty without that split."""
        if "train" not in self.splits:
            return []
        if self.task.max_turns == 1:
            return [Lesson(draw.shown, (draw.reply,)) for draw in self.draws["train"]]
        is_train = self.kwargs.get("split", "train") == "train"
        env = self.env if is_train else self.make(split="train")
        lessons = []
        for seed in range(self.effort.n_seeds):
            steps = self.oracle_episodes[seed] if is_train else play(env, seed, ask_oracle)
            prompt = env.reset(seed=seed)[0]
            shown = (prompt, *(step.observation for step in steps[:-1]))
            lessons.append(Lesson(prompt, tuple(step.action for step in steps), shown))
        return lessons

    # Players without skill.

    def require_chance(self, what: str, won: Sequence[int], n: int, example: str = "") -> None:
        """Require that the chance rate explains this many wins of `n` episodes."""
        require(
            binomial_tail(len(won), n, self.chance_rate) >= FALSE_ALARM,
            f"{what} won {len(won)} of {n} episodes (seeds {list(won[:3])}); chance_rate is {self.chance_rate:g}: "
            f"judge more strictly, or declare the chance rate{example and '; '}{example}",
        )

    def measured(self, what: str, wins: Callable[[int], bool], stages: Sequence[int], *, first_seed: int = 0) -> float:
        """Require that the chance rate explains the wins of a player; return its share of wins.

        Args:
            what: The player, for the message.
            wins: Whether it wins the episode of a seed.
            stages: Numbers of episodes. A next stage is played only while chance does not clearly explain the wins.
            first_seed: The seeds are this one and those after it.
        """
        won: list[int] = []
        n = 0
        for n_episodes in stages:
            won += [seed for seed in range(first_seed + n, first_seed + n_episodes) if wins(seed)]
            n = n_episodes
            if not FALSE_ALARM <= binomial_tail(len(won), n, self.chance_rate) < _SUSPECT:
                break
        self.require_chance(what, won, n)
        return len(won) / n

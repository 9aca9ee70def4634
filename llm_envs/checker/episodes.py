"""Episodes as the checker plays them: traces, policies, their differences, and environments that remember."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from llm_envs.checker.hostile import HostileAction
from llm_envs.checker.verdicts import NotATask, require
from llm_envs.env import TextEnv, canonical_json
from llm_envs.parsers import ParsedReply, format_answer
from llm_envs.types import ToolCall

__all__ = [
    "Step",
    "TextPolicy",
    "Trace",
    "ask_oracle",
    "difference",
    "global_random_state",
    "hostile_policy",
    "play",
    "probe",
    "problem_of",
    "remembering",
    "repeat",
    "split_key_of",
    "traced",
    "unwrap",
    "without_luck",
]

TextPolicy = Callable[[Any, str], str]
"""(environment without wrappers, last observation) to action."""

_PROBES = (
    *("hello", "yes", "no", "0", "1", "2", "a", "look", "left", "right", "up", "down", "help", "stop"),
    *map(format_answer, (0, 1, "yes", "a", "left")),
)
_WORDS_PER_PROBE = 0.4
"""Share of probes that are words of the observation, which are often legal actions."""


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
        return bool(self.steps) and bool(self.steps[-1].terminated or self.steps[-1].truncated)


def traced(env: gym.Env[str, str], seed: int | None, policy: TextPolicy, *, most: int) -> Trace:
    """Play one episode of at most `most` steps. If a step or the policy raises, the trace ends with the exception."""
    observation, _ = env.reset(seed=seed)
    trace = Trace(observation)
    while len(trace.steps) < most and not trace.is_over:
        action = None
        try:
            action = policy(env.unwrapped, observation)
            observation, reward, terminated, truncated, info = env.step(action)
        except Exception as error:
            return replace(trace, error=error, raised_by=action)
        trace.steps.append(Step(action, observation, reward, terminated, truncated, info))
    return trace


def play(env: gym.Env[str, str], seed: int | None, policy: TextPolicy) -> list[Step]:
    """Play one episode of a task, with at most two steps more than its limit, and raise what the episode raises."""
    trace = traced(env, seed, policy, most=unwrap(env).max_turns + 2)
    if trace.error is not None:
        raise trace.error
    return trace.steps


# Policies.


def ask_oracle(task: Any, observation: str) -> str:
    """Play as the environment's method `oracle`: a `TextPolicy`."""
    return str(task.oracle())


def repeat(actions: Sequence[str], then: str = "I am done.") -> TextPolicy:
    """Return a policy that gives the actions in order, and then repeats `then`."""
    left = list(actions)
    return lambda task, observation: left.pop(0) if left else then


def probe(observation: str, rng: random.Random) -> str:
    """Return a word of the observation, or a common reply."""
    words = observation.split()
    if words and rng.random() < _WORDS_PER_PROBE:
        return rng.choice(words).strip(".,:;!?\"'()[]")
    return rng.choice(_PROBES)


def hostile_policy(act: HostileAction, rng: random.Random) -> TextPolicy:
    """Return a policy of one hostile action, for environments of any kind."""
    return lambda env, observation: act(env, observation, rng)


# Comparisons.


def difference(first: Trace, second: Trace, *, with_info: bool = False) -> str:
    """Return the first difference between two episodes in what an agent reads and is paid; "" if they are equal.

    Args:
        first: An episode.
        second: Another one.
        with_info: Whether all of `info` must be equal too, not only `is_success`.
    """
    if first.opening != second.opening:
        return f"it begins {first.opening[:60]!r}, and again {second.opening[:60]!r}"
    for turn, (one, other) in enumerate(zip(first.steps, second.steps, strict=False), 1):
        seen, again = _seen(one), _seen(other)
        if seen == again and with_info and not data_equivalence(one.info, other.info, exact=True):
            seen, again = (one.info,), (other.info,)
        if seen != again:
            return f"after {one.action[:60]!r} in turn {turn} it gives {seen!r:.120}, and again {again!r:.120}"
    if (len(first.steps), first.raised_by) != (len(second.steps), second.raised_by):
        return f"it has {len(first.steps)} turns ({first.error!r}), and again {len(second.steps)} ({second.error!r})"
    return ""


def _seen(step: Step) -> tuple[object, ...]:
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


# Tasks.


def unwrap(env: gym.Env[str, str]) -> TextEnv:
    """Return the task below the wrappers.

    Raises:
        NotATask: If the environment does not subclass `TextEnv`.
    """
    task = env.unwrapped
    if not isinstance(task, TextEnv):
        raise NotATask(f"only for tasks that subclass llm_envs.TextEnv, and this is a {type(task).__name__}")
    return task


def remembering(env: gym.Env[str, str]) -> gym.Env[str, str]:
    """Make the environment cache its generated problems and parsed replies; return it.

    Problems are cached by the state of the random generator, so the cache also covers resets without a seed.
    """
    task = unwrap(env)
    generate, known = task.generate, dict[str, tuple[bytes, Any]]()

    def remembered() -> dict[str, Any]:
        generator = task.np_random.bit_generator
        before = repr(generator.state)
        if before not in known:
            problem = generate()
            if repr(generator.state) == before:  # drawn from another source: `depends_on_the_seed` reports it
                return problem
            known[before] = (pickle.dumps(problem), generator.state)
        pickled, generator.state = known[before]
        fresh: dict[str, Any] = pickle.loads(pickled)
        return fresh

    parse = task.parse_reply

    @lru_cache(maxsize=1_000)
    def parsed_once(text: str) -> tuple[ParsedReply, bytes, tuple[ToolCall, ...]]:
        reply, n_run = parse(text), getattr(task, "max_calls_per_turn", 0)
        return reply, pickle.dumps(reply.tool_calls[:n_run]), reply.tool_calls[n_run:]

    def parsed(text: str) -> ParsedReply:
        reply, run, never_run = parsed_once(text)
        if not reply.tool_calls:
            return reply
        return reply._replace(tool_calls=(*pickle.loads(run), *never_run))  # a tool may change its arguments

    task.generate = remembered  # type: ignore[method-assign]
    if type(task).parse_reply is TextEnv.parse_reply:  # a parser that the task defines may depend on its state
        task.parse_reply = parsed  # type: ignore[method-assign]
    return env


def split_key_of(task: TextEnv, problem: str) -> str:
    """Return the canonical JSON of the split key of a problem in canonical JSON."""
    return canonical_json(task.split_key(json.loads(problem)))


def without_luck(task: TextEnv, problem: str) -> str:
    """Return a problem without the task's `luck_fields`. Both are canonical JSON."""
    return canonical_json({key: value for key, value in json.loads(problem).items() if key not in task.luck_fields})


def problem_of(env: gym.Env[str, str]) -> str:
    """Return the canonical JSON of the problem in play."""
    problem = env.get_wrapper_attr("problem")
    require(
        isinstance(problem, dict),
        f"the problem is of type {type(problem).__name__}: generate() must return a dict of JSON types",
    )
    return canonical_json(problem)

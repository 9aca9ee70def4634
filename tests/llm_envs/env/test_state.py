"""Keys of states: what is equal, what is not, and what the checker finds."""

from __future__ import annotations

import random
import sqlite3
import threading
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from llm_envs.checker.play_clauses import has_true_state_keys
from llm_envs.checker.subject import Subject
from llm_envs.checker.verdicts import BrokenClause
from llm_envs.env import Outcome, TextEnv
from llm_envs.env.state import digest, generators
from llm_envs.errors import InvalidConfigError
from llm_envs.policies import ConstantPolicy, OraclePolicy
from llm_envs.problems import Difficulty
from llm_envs.rollout import Collector, state_keys
from llm_envs.spaces import TextSpace
from llm_envs.types import Trajectory


@dataclass
class Point:
    x: int
    y: list[int]


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a


class Cached:
    not_state = ("cache",)

    def __init__(self, value: int, cache: object) -> None:
        self.value, self.cache = value, cache


def database(*statements: str) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for statement in ("CREATE TABLE t (a)", *statements):
        connection.execute(statement)
    return connection


def drawn(seed: int, n: int) -> random.Random:
    source = random.Random(seed)
    for _ in range(n):
        source.random()
    return source


def closure(value: object) -> Any:
    return lambda: value


@pytest.mark.parametrize(
    ("one", "equal", "other"),
    [
        ({"a": 1, "b": {2, 3}}, {"b": {3, 2}, "a": 1}, {"a": 1, "b": {2, 4}}),
        (Point(1, [2]), Point(1, [2]), Point(1, [3])),
        (Slotted("x"), Slotted("x"), Slotted("y")),
        (np.array([1, 2]), np.array([1, 2]), np.array([2, 1])),
        (np.array([1, 2]), np.array([1, 2]), np.array([1.0, 2.0])),
        (database("INSERT INTO t VALUES (1)"), database("INSERT INTO t VALUES (1)"), database()),
        (drawn(0, 2), drawn(0, 2), drawn(0, 3)),
        (closure(1), closure(1), closure(2)),
        (Point(1, [2]).__eq__, Point(1, [2]).__eq__, Point(2, [2]).__eq__),
        (Cached(1, "a"), Cached(1, "b"), Cached(2, "a")),
        (np.random.default_rng(0), np.random.default_rng(1), None),
        (1, 1, True),
    ],
)
def test_digests(one: object, equal: object, other: object) -> None:
    assert digest(one) == digest(equal) != digest(other)


def test_an_object_that_holds_itself() -> None:
    one, other = Slotted(None), Slotted(None)
    one.a, other.a = [one], [other]
    assert digest(one) == digest(other)
    with pytest.raises(TypeError, match="lock"):
        digest({"lock": threading.Lock()})


def test_generators_are_found() -> None:
    first, second = np.random.default_rng(0), np.random.default_rng(0)
    assert generators({"a": [first, {"b": Slotted(second)}], "c": first}) == [first, second]


class Walk(TextEnv):
    """Walk from 0 to 2 by right and left."""

    default_difficulty = "easy"
    difficulties = {"easy": Difficulty("a walk", chance_rate=0.5)}
    default_max_turns = 6
    problem_fields = {"start": int}

    def generate(self) -> dict[str, Any]:
        return {"start": 0}

    def begin(self) -> None:
        self.at, self.n_asked = self.problem["start"], 0

    def prompt(self) -> str:
        return str(self.at)

    def play(self, action: str) -> Outcome:
        self.at += 1 if action == "right" else -1
        won = self.at == 2
        return Outcome(self.tell(), {"correct": float(won), "malformed": 0.0}, won, won)

    def tell(self) -> str:
        return str(self.at)

    def next_action(self) -> str:
        return "right"


class CountingOracle(Walk):
    def next_action(self) -> str:
        self.n_asked += 1
        return "right"


class HonestCountingOracle(CountingOracle):
    not_state = ("n_asked",)


class HoldsItself(Walk):
    """Has a bound method, as an environment has whose tools are its methods."""

    def begin(self) -> None:
        super().begin()
        self.tools_by_name = {"oracle": self.next_action}


class Forgetful(Walk):
    """Its state leaves out what its observations tell: the number of steps."""

    def begin(self) -> None:
        super().begin()
        self.n_steps = 0

    def tell(self) -> str:
        self.n_steps += 1
        return f"{self.at} after {self.n_steps} steps"

    def state(self) -> Any:
        return self.at


class Locked(Walk):
    """Holds what cannot be read."""

    def begin(self) -> None:
        super().begin()
        self.lock = threading.Lock()


class Plain(gym.Env[str, str]):
    """Not a `TextEnv`."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = TextSpace(), TextSpace()

    def reset(self, **kwargs: Any) -> Any:
        return "0", {}

    def step(self, action: str) -> Any:
        return "1", 0.0, True, False, {"is_success": False}


class WalkingSubject(Subject):
    """`check_task`'s subject for a class that is not registered."""

    def make(self, **more: Any) -> gym.Env[str, str]:
        return self.kwargs["env"]()  # type: ignore[no-any-return]


@pytest.mark.parametrize("env", [Walk, HonestCountingOracle, HoldsItself, Locked])
def test_true_keys(env: type[TextEnv]) -> None:
    n_pairs = int(has_true_state_keys(WalkingSubject("x/Walk-v0", {"env": env})).split()[0])
    assert n_pairs == 0 if env is Locked else n_pairs > 2


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (CountingOracle, "the state_key changes when the oracle is asked"),
        (Forgetful, r"lead to the state_key .* gives"),
    ],
)
def test_false_keys(env: type[TextEnv], message: str) -> None:
    with pytest.raises(BrokenClause, match=message):
        has_true_state_keys(WalkingSubject("x/Walk-v0", {"env": env}))


class Wanderer:
    """Goes back once."""

    def act(self, env: gym.Env[str, str], observation: str) -> str:
        return "left" if env.unwrapped.n_turns == 1 else "right"  # type: ignore[attr-defined]


def episode_of(env: Any, policy: Any) -> Trajectory:
    with Collector(env, policy, progress=False) as collector:
        (group,) = collector.collect(1)
    return group.trajectories[0]


def test_keys_of_stored_episodes() -> None:
    straight = state_keys(episode_of(Walk, OraclePolicy()), Walk)
    assert len(set(straight)) == 2
    assert state_keys(episode_of(Walk, Wanderer()), Walk) == straight * 2  # at 0, 1, 0, 1
    with pytest.raises(InvalidConfigError, match=r"state_key\(\)"):
        state_keys(episode_of(Plain, ConstantPolicy("x")), Plain)


def test_what_cannot_be_read_has_the_key_of_its_actions() -> None:
    keys = []
    for actions in ((), ("right", "left"), ("right", "left")):
        env = Locked()
        env.reset(seed=0)
        for action in actions:
            env.step(action)
        keys.append(env.state_key())
    assert keys[0] != keys[1] == keys[2]

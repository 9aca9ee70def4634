"""Gymnasium's environments in words: spaces, actions, the toy text and the classic control."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from llm_envs.bridges.gymnasium import WORDS, GymnasiumEnv, Words, action_form, describe, read_action
from llm_envs.bridges.ids import GYMNASIUM, suite_ids
from llm_envs.errors import EnvContractError, InvalidActionError, InvalidConfigError
from llm_envs.policies import ConstantPolicy


@pytest.mark.parametrize(
    ("space", "value", "names", "text"),
    [
        (spaces.Discrete(5), 3, (), "3"),
        (spaces.Box(-1, 1, (2,)), np.array([0.5, -0.25]), ("x", "y"), "x 0.5, y -0.25"),
        (spaces.MultiDiscrete([3, 4]), np.array([2, 1]), (), "0 2, 1 1"),
        (spaces.Tuple([spaces.Discrete(32), spaces.Discrete(2)]), (17, 1), ("sum", "ace"), "sum 17, ace 1"),
        (
            spaces.Dict({"at": spaces.Box(0, 9, (2,), np.int64), "on": spaces.MultiBinary(1)}),
            {"at": [1, 2], "on": [1]},
            (),
            "at.0 1, at.1 2, on 1",
        ),
    ],
)
def test_values_in_words(space: spaces.Space[Any], value: Any, names: tuple[str, ...], text: str) -> None:
    assert describe(space, value, names) == text


@pytest.mark.parametrize(
    ("space", "names", "text", "action"),
    [
        (spaces.Discrete(2), ("left", "right"), " Right ", 1),
        (spaces.Discrete(3, start=-1), (), "-1", -1),
        (spaces.Discrete(3, start=5), ("a", "b", "c"), "b", 6),
        (spaces.MultiDiscrete([3, 2]), (), "2, 0", [2, 0]),
        (spaces.MultiBinary(3), (), "[1 0 1]", [1, 0, 1]),
        (spaces.Box(-2, 2, (1,), np.float32), ("torque",), "-1.5", [-1.5]),
    ],
)
def test_actions_are_read(space: spaces.Space[Any], names: tuple[str, ...], text: str, action: Any) -> None:
    found = read_action(space, text, names)
    assert space.contains(found) and np.array_equal(found, action)


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Discrete(2), "2"),
        (spaces.Discrete(2), "left or right"),
        (spaces.Discrete(2), "9" * 5000),
        (spaces.MultiDiscrete([3, 2]), "2"),
        (spaces.MultiDiscrete([3, 2]), "2, 0.5"),
        (spaces.Box(-2, 2, (1,), np.float32), "nan"),
        (spaces.Box(-2, 2, (1,), np.float32), "1e999"),
        (spaces.Box(-2, 2, (1,), np.float32), "3"),
    ],
)
def test_what_is_no_action_is_refused(space: spaces.Space[Any], text: str) -> None:
    with pytest.raises(InvalidActionError, match=r"is not an action\. The action is"):
        read_action(space, text)


def test_the_form_of_an_action_is_told() -> None:
    assert action_form(spaces.Discrete(2), ("stick", "hit")) == "The actions are stick, hit."
    both = spaces.Box(np.array([0.0, -1.0], np.float32), np.array([1.0, 1.0], np.float32))
    assert action_form(both, ("gas", "wheel")) == (
        "The action is 2 numbers, with commas: gas from 0 to 1; wheel from -1 to 1."
    )


@pytest.mark.smoke
@pytest.mark.parametrize("env_id", GYMNASIUM)
def test_an_episode_in_words_is_the_episode_in_numbers(env_id: str) -> None:
    env, inner = gym.make(f"gymnasium/{env_id}", max_turns=30), gym.make(env_id)
    env.reset(seed=4)
    inner.reset(seed=env.unwrapped.problem["env_seed"])  # type: ignore[attr-defined]
    inner.action_space.seed(4)
    assert env_id in WORDS
    for _ in range(30):
        action = inner.action_space.sample()
        observation, reward, terminated, _, _ = inner.step(action)
        names = WORDS[env_id].actions
        text = names[action] if isinstance(inner.action_space, spaces.Discrete) else str(float(action[0]))
        shown, paid, is_over, truncated, info = env.step(f"<answer>{text}</answer>")
        assert paid == pytest.approx(float(reward)) and is_over == terminated
        assert np.array_equal(env.unwrapped._state, observation)  # type: ignore[attr-defined]
        assert shown.startswith(f"Reward: {float(reward):g}. State: ")
        if is_over or truncated:
            assert "is_success" in info
            break


def test_what_is_shown() -> None:
    lake = gym.make("gymnasium/FrozenLake-v1", env_kwargs={"is_slippery": False})
    shown, _ = lake.reset(seed=1)
    assert shown == (
        "The actions are left, down, right, up.\nState: row 0, column 0 of this map (S start, F ice, H hole, G goal):\n"
        "SFFF\nFHFH\nFFFH\nHFFG"
    )
    for way in ("down", "down", "right", "right", "down", "right"):
        *_, terminated, _, info = lake.step(f"<answer>{way}</answer>")
    assert terminated and info["is_success"] is True
    pole = gym.make("gymnasium/CartPole-v1", max_turns=3)
    assert "cart position" in pole.reset(seed=1)[0]
    text, reward, terminated, _, _ = pole.step("I push it")
    assert text == "Error: the reply has no answer in the form <answer>action</answer>."
    assert (reward, terminated) == (-0.1, False)


class Corridor(gym.Env[Any, Any]):
    """Go to the last cell."""

    observation_space: spaces.Space[Any] = spaces.Discrete(4)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, goal: int = 3) -> None:
        self.goal = goal

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        return 0, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += action
        return self.at, float(self.at == self.goal), self.at == self.goal, False, {}


class Pictures(Corridor):
    observation_space = spaces.Box(0, 255, (84, 84, 3), np.uint8)


class Told(Corridor):
    """Its observations are texts."""

    observation_space = spaces.Text(100)

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        return f"You are in cell {super().reset(**given)[0]}.", {}


class Texts(Told):
    action_space = spaces.Text(100)


WORDED = Words("Go to the end.", ["cell"], ["stay", "go"])


@pytest.fixture
def corridor() -> Iterator[str]:
    gym.register("test/Corridor-v0", Corridor, max_episode_steps=7, reward_threshold=0.5)
    yield "test/Corridor-v0"
    gym.registry.pop("test/Corridor-v0")


@pytest.mark.parametrize(
    ("make", "name", "limit"),
    [
        (lambda: "test/Corridor-v0", "test/Corridor-v0", 7),
        (lambda: Corridor, "Corridor", 200),
        (lambda: lambda **kwargs: Corridor(**kwargs), "<lambda>", 200),
        (lambda: gym.make("test/Corridor-v0"), "test/Corridor-v0", 7),
        (Corridor, "Corridor", 200),
    ],
    ids=["id", "class", "function", "made by Gymnasium", "made by hand"],
)
def test_an_id_a_class_a_function_or_an_environment(corridor: str, make: Any, name: str, limit: int) -> None:
    given = make()
    env = GymnasiumEnv(given, words=WORDED, difficulty="default")
    assert name in env.env_name and env.max_turns == limit
    assert env.reset(seed=1)[0] == "The actions are stay, go.\nState: cell 0"
    steps = [env.step("<answer>go</answer>") for _ in range(3)]
    assert [step[2] for step in steps] == [False, False, True] and steps[-1][4]["is_success"] is True
    env.reset(seed=1)
    with pytest.raises(EnvContractError, match="has no oracle"):
        env.oracle()
    if isinstance(given, gym.Env):
        with pytest.raises(InvalidConfigError, match=r"Corridor.*env_kwargs=\{'goal': 1\}"):
            GymnasiumEnv(given, env_kwargs={"goal": 1})
    else:
        near = GymnasiumEnv(given, words=WORDED, env_kwargs={"goal": 1})
        near.reset(seed=1)
        assert near.step("<answer>go</answer>")[2] is True
        with pytest.raises(InvalidConfigError, match=rf"{name}'? cannot be made: TypeError: .*'gaol'"):
            GymnasiumEnv(given, env_kwargs={"gaol": 1})


def test_texts_and_functions_describe_observations() -> None:
    assert GymnasiumEnv(Told).reset(seed=1)[0].endswith("State: You are in cell 0.")
    shown = Words(observation=lambda state, env: f"picture {state} of {type(env).__name__}")
    assert GymnasiumEnv(Pictures, words=shown).reset(seed=1)[0].endswith("State: picture 0 of Pictures")


@pytest.mark.parametrize(
    ("given", "words", "said"),
    [
        ("No-v0", None, "'No-v0' cannot be made"),
        (3, None, "3 is of type int"),
        (dict, None, "dict returned an object of type dict"),
        (Pictures, None, r"the observations of Pictures are Box\(0, 255.*Words"),
        (Corridor, Words(actions=["go"]), "1 names for the 2 actions"),
        (Texts, None, "Texts has texts already"),
        (type("Written", (Corridor,), {"action_space": spaces.Text(5)}), None, "the actions of Written are Text"),
        (type("Wide", (Corridor,), {"action_space": spaces.Discrete(1001)}), None, "Wide has 1001 actions"),
    ],
)
def test_what_is_refused(given: Any, words: Words | None, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        GymnasiumEnv(given, words=words)


def test_they_are_evaluated_as_any_task() -> None:
    import llm_envs

    assert suite_ids()["gymnasium"] == [f"gymnasium/{name}" for name in GYMNASIUM]
    result = llm_envs.evaluate("gymnasium/Blackjack-v1", ConstantPolicy("<answer>stick</answer>"), n=20, progress=False)
    assert 0.1 < result.success_rate < 0.7

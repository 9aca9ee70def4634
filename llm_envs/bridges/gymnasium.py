"""Any Gymnasium environment with small spaces, in words: `gym.make("gymnasium/CartPole-v1")`.

    env = gym.make("gymnasium/CartPole-v1", max_turns=50)
    env = GymnasiumEnv(MyEnv, words=Words("Reach the exit.", ["row", "column"], ["stay", "go"]))

Actions may be of `Discrete`, `MultiDiscrete`, `MultiBinary` and `Box` spaces, and observations also
of `Text`, `Tuple` and `Dict`, with at most 64 numbers; or anything that a function of yours puts into words. `WORDS`
has the words for Gymnasium's toy text and classic control; others are shown with numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from llm_envs.env import Difficulty, Outcome, TextEnv
from llm_envs.errors import InvalidActionError, InvalidConfigError, NoOracleError
from llm_envs.parsers import ParsedReply
from llm_envs.problems import as_flag, as_number

__all__ = ["WORDS", "GymnasiumEnv", "Words", "action_form", "describe", "read_action"]

MAX_NUMBERS = 64
"""Most numbers of an observation or action."""
MAX_CHOICES = 1_000
"""Most values of a discrete action."""
_SEPARATOR = re.compile(r"[\s,;\[\]()]+")


@dataclass(frozen=True, slots=True)
class Words:
    """The words for an environment."""

    goal: str = ""
    """The first sentences of the first observation."""
    observation: Sequence[str] | Callable[[Any, gym.Env[Any, Any]], str] = ()
    """Names of the numbers of an observation; or a function of an observation and the environment."""
    actions: Sequence[str] = ()
    """Names of the values of a discrete action, from its first; or of the entries of another action."""


def describe(space: spaces.Space[Any], value: Any, names: Sequence[str] = ()) -> str:
    """Return a value of a space in words: "position 0.03, velocity -0.21".

    Args:
        space: The space.
        value: One of its values.
        names: Names of its numbers; without them, keys of a `Dict`, or counted from 0.
    """
    numbers = list(_numbers(space, value))
    if len(names) not in (0, len(numbers)):
        raise InvalidConfigError(f"there are {len(names)} names for the {len(numbers)} numbers of {space}.")
    if len(numbers) == 1 and not names:
        return numbers[0][1]
    return ", ".join(f"{names[i] if names else key or i} {number}" for i, (key, number) in enumerate(numbers))


def _numbers(space: spaces.Space[Any], value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key and the text of each number of a value."""
    if isinstance(space, spaces.Text):
        yield key, str(value)
    elif isinstance(space, spaces.Tuple):
        for i, (part, inner) in enumerate(zip(space.spaces, value, strict=True)):
            yield from _numbers(part, inner, f"{key}.{i}" if key else str(i))
    elif isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            yield from _numbers(part, value[name], f"{key}.{name}" if key else str(name))
    else:
        flat = np.asarray(value).reshape(-1)
        for i, number in enumerate(flat):
            text = f"{number:.4g}" if np.issubdtype(flat.dtype, np.floating) else str(int(number))
            yield (f"{key}.{i}" if key and flat.size > 1 else key), text


def _size(space: spaces.Space[Any]) -> int | None:
    """Return how many numbers and texts a value has; None if the space has other things."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        sizes = [_size(part) for part in parts]
        return None if None in sizes else sum(size for size in sizes if size is not None)
    if isinstance(space, spaces.Discrete | spaces.Text):
        return 1
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
        return int(np.prod(space.shape))
    return None


def action_form(space: spaces.Space[Any], names: Sequence[str] = ()) -> str:
    """Return how an action is written, as a sentence."""
    if isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n - 1)
        if names:
            return "The actions are " + ", ".join(names) + "."
        return f"The action is a whole number from {first} to {last}."
    entries = []
    for i, (low, high, whole) in enumerate(_limits(space)):
        label = names[i] if names else f"entry {i}"
        entries.append(f"{label} from {low:g} to {high:g}{', whole' if whole else ''}")
    lead = "The action is one number" if len(entries) == 1 else f"The action is {len(entries)} numbers, with commas"
    return f"{lead}: {'; '.join(entries)}."


def read_action(space: spaces.Space[Any], text: str, names: Sequence[str] = ()) -> Any:
    """Return the action that a text names.

    Raises:
        InvalidActionError: If it is not an action of the space. The message has the form of an action.
    """
    refusal = InvalidActionError(f"{text[:40]!r} is not an action. {action_form(space, names)}".rstrip("."))
    if isinstance(space, spaces.Discrete):
        lowered = [name.lower() for name in names]
        if " ".join(text.lower().split()) in lowered:
            return int(space.start) + lowered.index(" ".join(text.lower().split()))
        if re.fullmatch(r"-?[0-9]{1,9}", text.strip()) is None or not space.contains(int(text)):
            raise refusal
        return int(text)
    words = [word for word in _SEPARATOR.split(text) if word]
    limits = list(_limits(space))
    if len(words) != len(limits):
        raise refusal
    try:
        numbers = [float(word) if len(word) <= 32 else float("nan") for word in words]
    except ValueError:
        raise refusal from None
    for number, (low, high, whole) in zip(numbers, limits, strict=True):
        if not low <= number <= high or (whole and number != int(number)):  # false for nan
            raise refusal
    return np.asarray(numbers).reshape(space.shape).astype(space.dtype)


def _is_small(space: spaces.Space[Any]) -> bool:
    size = _size(space)
    return size is not None and size <= MAX_NUMBERS


def _limits(space: spaces.Space[Any]) -> Iterator[tuple[float, float, bool]]:
    """Yield the lowest and highest value of each entry of an action, and whether it is a whole number."""
    if isinstance(space, spaces.MultiDiscrete):
        for start, n in zip(space.start.reshape(-1), space.nvec.reshape(-1), strict=True):
            yield float(start), float(start + n - 1), True
    elif isinstance(space, spaces.MultiBinary):
        for _ in range(int(np.prod(space.shape))):
            yield 0.0, 1.0, True
    else:
        assert isinstance(space, spaces.Box)
        is_whole = bool(np.issubdtype(space.dtype, np.integer))
        for low, high in zip(space.low.reshape(-1), space.high.reshape(-1), strict=True):
            yield float(low), float(high), is_whole


def _grid_cell(state: Any, env: gym.Env[Any, Any]) -> str:
    n_columns = env.unwrapped.ncol if hasattr(env.unwrapped, "ncol") else env.unwrapped.shape[1]  # type: ignore[attr-defined]
    return f"row {int(state) // n_columns}, column {int(state) % n_columns}"


def _frozen_lake(state: Any, env: gym.Env[Any, Any]) -> str:
    rows = env.unwrapped.desc  # type: ignore[attr-defined]
    lines = "\n".join(b"".join(row).decode() for row in rows)
    return f"{_grid_cell(state, env)} of this map (S start, F ice, H hole, G goal):\n{lines}"


def _taxi(state: Any, env: gym.Env[Any, Any]) -> str:
    row, column, passenger, goal = env.unwrapped.decode(int(state))  # type: ignore[attr-defined]
    corners = ("red (row 0, column 0)", "green (row 0, column 4)", "yellow (row 4, column 0)", "blue (row 4, column 3)")
    waits = "in the taxi" if passenger == 4 else f"at {corners[passenger]}"
    return f"taxi in row {row}, column {column}; passenger {waits}; destination {corners[goal]}"


_CARDS = ("your sum", "the dealer's card", "usable ace")
_POLE = ("cart position", "cart velocity", "pole angle", "pole angular velocity")
_CAR = ("position", "velocity")
_LINKS = ("cos 1", "sin 1", "cos 2", "sin 2", "angular velocity 1", "angular velocity 2")
_WAYS = ("left", "down", "right", "up")
_HILL = "Drive the car from the valley to position 0.5 on the right. Swing, because the engine is weak."
_LAKE = Words("Walk over the ice to the goal, around the holes. You may slip to the side.", _frozen_lake, _WAYS)
_CLIFF = Words(
    "Walk from row 3, column 0 to row 3, column 11. The cells between them are a cliff: falling costs 100.",
    _grid_cell,
    ("up", "right", "down", "left"),
)
WORDS: Mapping[str, Words] = {
    "Acrobot-v1": Words(
        "Swing the two links until the tip is above the height of one link: -cos 1 - cos(1+2) > 1.",
        _LINKS,
        ("torque -1", "torque 0", "torque 1"),
    ),
    "Blackjack-v1": Words("Come closer to 21 than the dealer, not above.", _CARDS, ("stick", "hit")),
    "CartPole-v1": Words("Keep the pole upright and the cart within 2.4 of the middle.", _POLE, ("left", "right")),
    "CliffWalking-v1": _CLIFF,
    "CliffWalkingSlippery-v1": _CLIFF,
    "FrozenLake-v1": _LAKE,
    "FrozenLake8x8-v1": _LAKE,
    "MountainCar-v0": Words(_HILL, _CAR, ("left", "nothing", "right")),
    "MountainCarContinuous-v0": Words(_HILL, _CAR, ("force",)),
    "Pendulum-v1": Words(
        "Swing the pendulum up and keep it there, with little torque.",
        ("cos angle", "sin angle", "angular velocity"),
        ("torque",),
    ),
    "Taxi-v4": Words(
        "Pick the passenger up, drive to the destination, and drop them off.",
        _taxi,
        ("down", "up", "right", "left", "pick up", "drop off"),
    ),
}
"""Environment -> its words."""


class GymnasiumEnv(TextEnv):
    """Act in an environment of Gymnasium, whose observations and actions are put into words.

    ## Description
    Each turn is one step of the environment. Teaches what the environment asks for.

    ## Observation
    The goal, the actions and the state in words; then the reward of the step and the new state.

    ## Action
    `<answer>left</answer>`: a name or number of a discrete action, or numbers with commas. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `reward` (weight 1): the environment's. `malformed` (weight -0.1): 1 for a reply that is not an action; then no step
    is made. An episode is a success if its return reaches the environment's `reward_threshold`, or, without one, is
    above 0.

    ## Episode End
    Terminates with the environment. Truncated after `max_turns` replies.

    ## Arguments
    - `env`: an id that `gymnasium.make` makes (the ids above have theirs); or a class, a function that makes an
      environment, or an environment.
    - `split`: "train" or "test", by a hash of the seed.
    - `difficulty`: "default".
    - `max_turns`: by default the environment's `max_episode_steps`, or 200.
    - `words`: a `Words`; the one in `WORDS` by default.
    - `env_kwargs`: keyword arguments of the id, class or function.
    - `reset(options={"problem": {"env_seed": 5}})` plays the episode of a seed.

    ## Version History
    - v0: first version.
    """

    difficulties = {"default": Difficulty("the environment as registered", chance_rate=1.0)}
    default_difficulty = "default"
    problem_fields = {"env_seed": int}
    reward_weights = {"reward": 1.0, "malformed": -0.1}
    oracle_is_exact = False
    has_natural_form = False
    answer_example = "action"
    return_range = (-math.inf, math.inf)
    """Unknown: the rewards are the other environment's."""

    def __init__(
        self,
        env: str | gym.Env[Any, Any] | Callable[..., gym.Env[Any, Any]],
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        words: Words | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.inner, limit = _made(env, dict(env_kwargs or {}))
        super().__init__(split, difficulty, limit if max_turns is None else max_turns, render_mode)
        spec = self.inner.spec
        self.env_name = _name(env) if spec is None else spec.id
        self.words = WORDS.get(self.env_name, Words()) if words is None else words
        goal = self.words.goal or "Act so that the sum of the rewards is high."
        self.instructions = f"{goal} You have {self.max_turns} replies."  # type: ignore[misc]
        self._check_spaces()
        self._threshold = None if spec is None else spec.reward_threshold

    def generate(self) -> dict[str, Any]:
        """Draw a seed of the environment."""
        return {"env_seed": int(self.np_random.integers(2**31))}

    def begin(self) -> None:
        """Reset the environment."""
        self._state, _ = self.inner.reset(seed=self.problem["env_seed"])
        self._return = 0.0

    def prompt(self) -> str:
        """Return the actions and the state."""
        return f"{action_form(self.inner.action_space, self.words.actions)}\nState: {self._described()}"

    def next_action(self) -> str:
        """Raise: the environments have no oracle."""
        raise NoOracleError(f"{self.env_name} has no oracle.")

    def play(self, action: str) -> Outcome:
        """Make one step."""
        reply: ParsedReply = self.read(action)
        try:
            chosen = self.judge(reply, lambda text: read_action(self.inner.action_space, text, self.words.actions))
        except InvalidActionError as refusal:
            return Outcome(f"Error: {refusal}.", {"reward": 0.0, "malformed": 1.0})
        self._state, reward, terminated, truncated, _ = self.inner.step(chosen)
        reward = as_number(reward)
        self._return += reward
        components = {"reward": reward, "malformed": 0.0}
        is_success = self._return > 0 if self._threshold is None else self._return >= self._threshold
        text = f"Reward: {reward:g}. State: {self._described()}"
        return Outcome(text, components, as_flag(terminated) or as_flag(truncated), is_success)

    def close(self) -> None:
        """Close the environment."""
        self.inner.close()
        super().close()

    def _check_spaces(self) -> None:
        seen, acted, name = self.inner.observation_space, self.inner.action_space, self.env_name
        if isinstance(seen, spaces.Text) and isinstance(acted, spaces.Text):
            raise InvalidConfigError(f"GymnasiumEnv: {name} has texts already: play it without GymnasiumEnv.")
        if isinstance(acted, spaces.Discrete) and acted.n > MAX_CHOICES:
            raise InvalidConfigError(f"GymnasiumEnv: {name} has {acted.n} actions; at most {MAX_CHOICES} can be named.")
        known = "Discrete, MultiDiscrete, MultiBinary or Box"
        if isinstance(acted, spaces.Text | spaces.Tuple | spaces.Dict) or not _is_small(acted):
            raise InvalidConfigError(
                f"GymnasiumEnv: the actions of {name} are {str(acted)[:120]}; they must be {known}, with at most "
                f"{MAX_NUMBERS} numbers. Wrap the environment first."
            )
        if not callable(self.words.observation) and not _is_small(seen):
            raise InvalidConfigError(
                f"GymnasiumEnv: the observations of {name} are {str(seen)[:120]}; they must be {known}, Text, or Tuple "
                f"or Dict of these, with at most {MAX_NUMBERS} numbers. Give Words a function that describes them."
            )
        n_names, size = len(self.words.actions), int(acted.n) if isinstance(acted, spaces.Discrete) else _size(acted)
        if n_names not in (0, size):
            raise InvalidConfigError(f"GymnasiumEnv: there are {n_names} names for the {size} actions of {acted}.")

    def _described(self) -> str:
        words = self.words.observation
        if callable(words):
            return words(self._state, self.inner)
        return describe(self.inner.observation_space, self._state, words)


def _made(env: Any, kwargs: dict[str, Any]) -> tuple[gym.Env[Any, Any], int]:
    """Return the environment that was given or is made, and its limit of steps."""
    made, spec, name = env, None, _name(env)
    if isinstance(env, gym.Env):
        if kwargs:
            raise InvalidConfigError(f"GymnasiumEnv: {name} exists already; env_kwargs={kwargs} come too late.")
    elif isinstance(env, str) or callable(env):
        try:
            made = gym.make(env, max_episode_steps=-1, **kwargs) if isinstance(env, str) else env(**kwargs)
            spec = gym.spec(env.rpartition(":")[2]) if isinstance(env, str) else None
        except Exception as error:
            raise InvalidConfigError(f"GymnasiumEnv: {name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, gym.Env):
        raise InvalidConfigError(
            f"GymnasiumEnv: {name} {'is' if made is env else 'returned an object'} of type {type(made).__name__}; give "
            "an id that gymnasium.make knows, a gymnasium.Env, its class, or a function that makes one."
        )
    spec = spec or made.spec
    return made, (None if spec is None else spec.max_episode_steps) or 200


def _name(env: Any) -> str:
    """Return how errors name what was given."""
    return getattr(env, "__qualname__", None) or repr(env)[:80]

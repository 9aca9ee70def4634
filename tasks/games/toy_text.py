"""The base class of the games that show Gymnasium's grid worlds of `gymnasium.envs.toy_text` as text.

The rules are Gymnasium's: a game steps Gymnasium's environment, and the oracle plans with its table of transitions. The
problem's "seed" decides an episode's luck: Gymnasium's environment is reset with it.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from llm_envs.env import Outcome
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.tasks.games.game import GameEnv

__all__ = ["MAX_SEED", "Plan", "ToyTextEnv", "made", "plan"]

MAX_SEED = 2**31
_DISCOUNT = 0.9999
"""By so little that it decides only between ways that are as sure as each other: for the quicker one."""

_BEFORE_ACTION = re.compile(
    r"(?:i(?: will| would|'ll| choose to)? )?"
    r"(?:(?:move|go|walk|step|drive|head|turn)(?: to)?(?: the)? )?(?:one (?:cell|step) )?"
)
_SERVICES: Mapping[str, Sequence[str]] = {
    "pickup": ("pickup", "pick up", "pick-up", "pick"),
    "dropoff": ("dropoff", "drop off", "drop-off", "drop"),
}
_AFTER_MOVE = re.compile(r"(?:wards?)?(?: (?:by )?(?:one|1) (?:cell|step))?[.!]?")
_AFTER_SERVICE = re.compile(r"(?: (?:the |my )?passenger(?: (?:up|off|here|now))?)?[.!]?")

Transitions = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""Gymnasium's `P`: state, action, and then (probability, next state, reward, terminated)."""


class Plan:
    """The best action in each state of a grid world, by the number of turns left."""

    def __init__(self, actions: npt.NDArray[np.int8], values: npt.NDArray[np.float64]) -> None:
        self.actions = actions
        """Shape (turns, states): row t is for t + 1 turns left."""
        self.values = values
        """Shape (turns, states): the expected pay of the best play, discounted by next to nothing."""

    def action(self, state: int, turns_left: int) -> int:
        """Return the best action."""
        return int(self.actions[min(turns_left, len(self.actions)) - 1, state])


def plan(
    transitions: Transitions,
    turns: int,
    pay: Callable[[float, bool], float],
    *,
    at_random: Sequence[int] | None = None,
) -> Plan:
    """Plan by dynamic programming over the turns that are left.

    Args:
        transitions: The world's `P`.
        turns: The number of turns to plan.
        pay: Takes Gymnasium's reward and whether the step terminated; returns the pay of the step.
        at_random: If given, not the best play is valued but one that draws from these actions.

    Returns:
        The best actions and their values, exact but for a discount of 0.9999 a turn.
    """
    n_states, n_actions = len(transitions), len(transitions[0])
    width = max(len(outcomes) for row in transitions.values() for outcomes in row.values())
    shape = (n_states, n_actions, width)
    probability, paid, goes_on = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    following = np.zeros(shape, dtype=np.intp)
    for state, row in transitions.items():
        for action, outcomes in row.items():
            for place, (share, next_state, reward, terminated) in enumerate(outcomes):
                probability[state, action, place] = share
                following[state, action, place] = next_state
                paid[state, action, place] = pay(float(reward), bool(terminated))
                goes_on[state, action, place] = not terminated
    now = (probability * paid).sum(2)
    later = probability * goes_on * _DISCOUNT
    value = np.zeros(n_states)
    actions, values = [], []
    for _ in range(turns):
        worth = now + (later * value[following]).sum(2)
        value = worth.max(1) if at_random is None else worth[:, list(at_random)].mean(1)
        actions.append(worth.argmax(1).astype(np.int8))
        values.append(value)
    return Plan(np.stack(actions), np.stack(values))


def made(toy: Callable[..., Any], **arguments: Any) -> Any:
    """Make one of Gymnasium's environments; say which version is needed if this one lacks an argument."""
    try:
        return toy(**arguments)
    except TypeError as error:
        raise InvalidConfigError(
            f"{getattr(toy, '__name__', toy)} of this gymnasium does not take {', '.join(arguments)} ({error}): this "
            "level needs gymnasium 1.3 or later."
        ) from error


class ToyTextEnv(GameEnv):
    """One of Gymnasium's grid worlds as text: one action a reply, by its name.

    A world writes `make_toy`, `start_state`, `show`, `settle`, `pay` and the rest of a game.
    """

    oracle_is_exact: ClassVar[bool] = False
    action_names: ClassVar[Sequence[str]] = ()
    """In the order of Gymnasium's numbers."""

    _toy: Any = None

    @abstractmethod
    def make_toy(self) -> Any:
        """Return Gymnasium's environment of the problem."""

    @abstractmethod
    def start_state(self) -> int:
        """Return the number of the state in which the problem starts."""

    @abstractmethod
    def show(self, state: int) -> str:
        """Return a state as text."""

    @abstractmethod
    def settle(self, reward: float, terminated: bool) -> Outcome:
        """Return the outcome of a step that Gymnasium's environment, now in `self._state`, has made."""

    @abstractmethod
    def make_plan(self) -> Plan:
        """Return the best play for `max_turns` turns."""

    def check_seed(self, problem: Mapping[str, Any]) -> None:
        """Refuse a seed that Gymnasium does not take."""
        if not 0 <= problem["seed"] < MAX_SEED:
            raise InvalidActionError(f"its seed must be at least 0 and below {MAX_SEED}")

    def draw_seed(self) -> int:
        """Return the seed of the episode's luck."""
        return int(self.np_random.random() * MAX_SEED)

    def begin(self) -> None:
        """Start in the problem's state."""
        self._state, self._is_begun = self.start_state(), False

    def state(self) -> tuple[object, ...]:
        """Return Gymnasium's number of the state, its chance, and whether a passenger may still change their mind."""
        toy = self._made()
        return self._state, toy.np_random, getattr(toy, "fickle_step", None)

    def move(self, answer: str) -> Outcome:
        """Do the action named."""
        name = self._read_action(answer)
        state, reward, terminated, _, _ = self._made().step(self.action_names.index(self.turned(name)))
        self._state = int(state)
        return self.settle(float(reward), bool(terminated))

    def _made(self) -> Any:
        """Return Gymnasium's environment in this episode. It is made when it is first needed, and may be kept."""
        if not self._is_begun:
            self._toy = self.make_toy()
            self._toy.reset(seed=self.problem["seed"])
            self._toy.s, self._is_begun = self._state, True
        return self._toy

    def _read_action(self, answer: str) -> str:
        """Return the name of the action in "up", "Go up", "pick up the passenger" or a first letter such as "u"."""
        text = " ".join(answer.lower().split())
        start = _BEFORE_ACTION.match(text)
        rest = text if start is None else text[start.end() :]
        for name in self.action_names:
            is_service = name in _SERVICES
            written = _SERVICES[name] if is_service else (name, name[0])
            after = _AFTER_SERVICE if is_service else _AFTER_MOVE
            if any(rest.startswith(form) and after.fullmatch(rest, len(form)) for form in written):
                return name
        raise InvalidActionError(f"{text[:20]!r} is not an action; actions are {', '.join(self.action_names)}")

    def legal_answers(self) -> Sequence[str]:
        """Return the names of the actions."""
        return self.action_names

    def next_action(self) -> str:
        """Do the best with the turns that are left."""
        action = self.make_plan().action(self._state, self.max_turns - self.n_turns)
        return self.write_answer(self.shown_name(self.action_names[action]))

    def turned(self, name: str) -> str:
        """Return Gymnasium's name of an action: the same, unless the world is turned."""
        return name

    def shown_name(self, name: str) -> str:
        """Return the action of Gymnasium's name: the same, unless the world is turned."""
        return name

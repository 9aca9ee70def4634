"""Games of several seats: the rules as pure functions of a state, and a Gymnasium environment that plays them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium as gym

from llm_envs.errors import InvalidConfigError, ResetNeededError
from llm_envs.parsers import format_answer, parse_reply
from llm_envs.problems import check_choice
from llm_envs.spaces import TextSpace

__all__ = ["SeatedEnv"]

State = TypeVar("State")


class SeatedEnv(gym.Env[str, str], ABC, Generic[State]):
    """A game that several seats play in turn. Each step is the action of the seat whose turn it is.

    A game writes the six methods of its rules. All chance is in its initial states, and its states are hashable. A
    reply without a legal action ends the game: its seat loses `forfeit`, and the other seats share it.

    Any environment can be played by `llm_envs.rollout.MultiplayerEnv` if it has `n_seats` and these keys in its infos:

    - `seat`: who reads the observation and acts next;
    - `rewards`, of each step: one number for each seat;
    - `observations` and `is_success`, of the last step: one value for each seat.

    Args:
        split: "train" or "test". Both have all initial states.
    """

    n_seats: ClassVar[int] = 2
    instructions: ClassVar[str] = ""
    """The rules, for the system prompt."""
    forfeit: ClassVar[float] = 1.0
    """The most that a seat can lose by legal play, or more."""
    tools: Sequence[Mapping[str, Any]] = ()
    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(self, split: str = "train") -> None:
        check_choice(type(self).__name__, "split", split, ("train", "test"))
        self.split = split
        self.observation_space, self.action_space = TextSpace(), TextSpace()
        self.system_prompt = self.instructions
        self.state: State | None = None

    # The rules.

    @abstractmethod
    def initial_states(self) -> Sequence[tuple[float, State]]:
        """Return (probability, state) of each way to begin."""

    @abstractmethod
    def current_seat(self, state: State) -> int:
        """Return whose turn it is."""

    @abstractmethod
    def legal_actions(self, state: State) -> Sequence[str]:
        """Return the actions of the seat whose turn it is."""

    @abstractmethod
    def apply_action(self, state: State, action: str) -> State:
        """Return the state after a legal action."""

    @abstractmethod
    def returns(self, state: State) -> Sequence[float] | None:
        """Return what each seat gets if the game is over, else None."""

    @abstractmethod
    def information_state(self, state: State, seat: int) -> str:
        """Return what a seat knows of a state: the observation that it reads."""

    # The environment.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a game.

        Args:
            seed: Decides the initial state.
            options: `{"problem": {"start": 2}}` begins with initial state 2.

        Returns:
            The observation of the first seat to act, and its number as `info["seat"]`.

        Raises:
            InvalidConfigError: If the options name no initial state.
        """
        super().reset(seed=seed)
        states = self.initial_states()
        start: Any = self.np_random.choice(len(states), p=[probability for probability, _ in states])
        if options:
            problem = options.get("problem")
            start = problem.get("start") if isinstance(problem, Mapping) else None
            if not isinstance(start, int) or not 0 <= start < len(states):
                raise InvalidConfigError(
                    f"{type(self).__name__}: options is {options!r:.80}; it must be "
                    f'{{"problem": {{"start": n}}}} with n from 0 to {len(states) - 1}.'
                )
        self.state = states[int(start)][1]
        seat = self.current_seat(self.state)
        return self.information_state(self.state, seat), {"seat": seat}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play the reply of the seat whose turn it is; its own reward is returned.

        Raises:
            ResetNeededError: If no game is running.
        """
        state = self.state
        if state is None:
            raise ResetNeededError(f"{type(self).__name__}.step was called outside a game: call reset() first.")
        seat = self.current_seat(state)
        legal = {choice.casefold(): choice for choice in self.legal_actions(state)}
        chosen = legal.get((parse_reply(action).answer or "").strip().casefold())
        if chosen is None:
            share = self.forfeit / (self.n_seats - 1)
            returns: Sequence[float] | None = [-self.forfeit if each == seat else share for each in range(self.n_seats)]
            ends = ["The last reply was not a legal action, so the game is over."] * self.n_seats
        else:
            state = self.apply_action(state, chosen)
            returns = self.returns(state)
            ends = [] if returns is None else [self.information_state(state, each) for each in range(self.n_seats)]
        if returns is None:
            self.state, following = state, self.current_seat(state)
            info = {"seat": following, "rewards": [0.0] * self.n_seats}
            return self.information_state(state, following), 0.0, False, False, info
        self.state = None
        observations = [f"{end}\nYou get {paid:+g}." for end, paid in zip(ends, returns, strict=True)]
        info = {
            "seat": seat,
            "rewards": list(returns),
            "observations": observations,
            "is_success": [paid > 0 for paid in returns],
        }
        return observations[seat], float(returns[seat]), True, False, info

    def legal_answers(self) -> Sequence[str]:
        """Return the actions of the seat whose turn it is; empty: no game is running."""
        return () if self.state is None else self.legal_actions(self.state)

    def write_answer(self, action: str) -> str:
        """Write an action as a reply."""
        return format_answer(action)

"""`proof/Letters-v0`: sixteen questions, each paid for by itself. Only credit of single turns sees what paid."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym

from llm_envs.env import Difficulty, Outcome, TextEnv

__all__ = ["ENV", "LETTERS", "N_TURNS", "LettersEnv"]

ENV = "proof/Letters-v0"
LETTERS = "abcdefgh"
N_TURNS = 16


class LettersEnv(TextEnv):
    """Answer each of sixteen letters with the letter after it ("a" after "h"); nobody says that this is the rule.

    A right answer earns 1/16 in its own turn. What is asked does not depend on what was answered, so a turn's reward
    is the whole of its credit: the reward of the episode adds the luck of fifteen other turns to it.
    """

    difficulties: ClassVar = {"only": Difficulty("16 of 8 letters", chance_rate=1e-9)}
    default_difficulty = "only"
    default_max_turns = N_TURNS
    problem_fields: ClassVar = {"letters": str}
    reward_weights: ClassVar = {"right": 1 / N_TURNS}
    max_return = 1.0

    def generate(self) -> dict[str, Any]:
        """Draw the letters."""
        return {"letters": "".join(LETTERS[i] for i in self.np_random.integers(len(LETTERS), size=N_TURNS))}

    def begin(self) -> None:
        """Begin with the first letter."""
        self._n_right = 0
        self._asked: str = self.problem["letters"][0]

    def prompt(self) -> str:
        """Return the first letter."""
        return self._asked

    def play(self, action: str) -> Outcome:
        """Pay for the turn, and ask for the next letter."""
        right = action == self.next_action()
        self._n_right += right
        if self.n_turns == N_TURNS:
            return Outcome("That was all.", {"right": float(right)}, True, self._n_right == N_TURNS)
        self._asked = self.problem["letters"][self.n_turns]
        return Outcome(self._asked, {"right": float(right)})

    def next_action(self) -> str:
        """Return the letter after the one asked."""
        return LETTERS[(LETTERS.index(self._asked) + 1) % len(LETTERS)]


gym.register(ENV, LettersEnv)

"""`llm/GuessNumber-v0`: find a hidden number by halving the range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_envs.env import Difficulty, Outcome, TextEnv
from llm_envs.errors import InvalidActionError
from llm_envs.rewards import MAX_DIGITS, read_integer
from llm_envs.tasks.wording import in_words

__all__ = ["GuessNumberEnv"]

_HIGHEST_LOW = 9_000


class GuessNumberEnv(TextEnv):
    """Find a hidden whole number; each wrong guess is answered by "higher" or "lower".

    ## Description
    Teaches to halve what is possible with every question. The number lies in a range that the first observation names.
    There are a few more guesses than halving the range needs (exactly as many at the easy level), and too few to try
    every number.

    ## Observation
    First the range and the number of guesses. After a guess "Higher." or "Lower." (of the hidden number against the
    guess), and the guesses left. After a malformed reply a readable error; it costs a guess.

    ## Action
    `<answer>50</answer>`: a whole number. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the hidden number. `malformed` (weight -0.1): 1 for each reply without a readable whole
    number.

    ## Episode End
    Terminates when the number is found. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test": no range is in both. The hidden number does not decide the split, so that knowing the
      split tells nothing about it. The easy level has one range: there both splits draw from all 10 numbers.
    - `difficulty`: "easy" (default): 1 to 10, 4 guesses; "medium": a range of 100 that starts anywhere up to 9000, 8
      guesses; "hard": a range of 1000, 12 guesses. An expert level is missing: halving is all there is to the game, and
      a larger range needs nothing more.
    - `max_turns`: the number of guesses, if it is to be another than the level's. With fewer than halving needs, the
      oracle can lose.
    - `reset(options={"problem": {"low": 1, "high": 100, "secret": 42}})` hides a given number.

    ## Version History
    - v0: first version.
    """

    # Guessing without looking at the replies finds one of n numbers in k different guesses with probability k/n.
    difficulties = {
        "easy": Difficulty(
            "1 to 10, 4 guesses",
            chance_rate=4 / 10,
            n_problems=10,
            disjoint_splits=False,
            settings={"size": 10, "guesses": 4},
        ),
        "medium": Difficulty(
            "a range of 100, 8 guesses", chance_rate=8 / 100, n_problems=900_000, settings={"size": 100, "guesses": 8}
        ),
        "hard": Difficulty(
            "a range of 1000, 12 guesses",
            chance_rate=12 / 1000,
            n_problems=9_000_000,
            settings={"size": 1000, "guesses": 12},
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"low": int, "high": int, "secret": int}
    instructions = "Find the hidden number. Make one guess in each reply."
    answer_example = "5000"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        answer_form: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode, answer_form)
        if max_turns is None:
            self.max_turns = self.settings["guesses"]
        else:
            self.chance_rate = min(1.0, max_turns / self.settings["size"])

    def generate(self) -> dict[str, Any]:
        """Draw a range and a number in it."""
        random, size = self.np_random.random, self.settings["size"]
        low = 1 if self.difficulty == "easy" else 1 + int(random() * _HIGHEST_LOW)
        return {"low": low, "high": low + size - 1, "secret": low + int(random() * size)}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a number outside its range, and a range beyond what a guess can name."""
        if not problem["low"] <= problem["secret"] <= problem["high"]:
            raise InvalidActionError("it must have low <= secret <= high")
        if max(-problem["low"], problem["high"]) >= 10**MAX_DIGITS:
            raise InvalidActionError(f"its numbers may have {MAX_DIGITS} digits, as a guess")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the range, which is shown, and not the hidden number."""
        return [problem["low"], problem["high"]]

    def begin(self) -> None:
        """Remember what is still possible, for the oracle."""
        self._secret: int = self.problem["secret"]
        self._lowest: int = self.problem["low"]
        self._highest: int = self.problem["high"]

    def prompt(self) -> str:
        """Return the range and the number of guesses."""
        low, high = self.problem["low"], self.problem["high"]
        return f"I am thinking of a whole number from {low} to {high}. You have {in_words(self.max_turns, 'guess')}."

    def play(self, action: str) -> Outcome:
        """Compare the guess with the number."""
        left = in_words(self.max_turns - self.n_turns, "guess")
        try:
            guess = self.judge(self.read(action), read_integer)
        except InvalidActionError as refusal:
            return Outcome(f"Error: {refusal}. {left} left.", {"correct": 0.0, "malformed": 1.0})
        if guess == self._secret:
            return Outcome("Correct.", {"correct": 1.0, "malformed": 0.0}, True, True)
        if guess < self._secret:
            if guess >= self._lowest:
                self._lowest = guess + 1
            return Outcome(f"Higher. {left} left.", {"correct": 0.0, "malformed": 0.0})
        if guess <= self._highest:
            self._highest = guess - 1
        return Outcome(f"Lower. {left} left.", {"correct": 0.0, "malformed": 0.0})

    def next_action(self) -> str:
        """Halve what is still possible."""
        return self.write_answer((self._lowest + self._highest) // 2)

"""`my/Template-v0`: add up the digits of a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.rewards import read_integer

__all__ = ["TemplateEnv"]


class TemplateEnv(SingleTurnEnv):
    """Add up the digits of a number.

    ## Description
    Each episode shows one number. Teaches to take a word apart into its characters and to keep a running sum.

    ## Observation
    The question, such as "What is the sum of the digits of 4071?".

    ## Action
    `<answer>12</answer>`: a whole number. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the right sum. `malformed` (weight -0.1): 1 for a reply without a readable number.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): 6 digits; "hard": 16 digits.
    - `reset(options={"problem": {"number": "4071"}})` asks for a given number.

    ## Version History
    - v0: first version.
    """

    # The commonest sum of six random digits, the first not 0, is 28 or 27: 6% each. Of sixteen it is 3.5%.
    difficulties = {
        "easy": Difficulty("6 digits", chance_rate=0.06, n_problems=900_000, settings={"n_digits": 6}),
        "hard": Difficulty("16 digits", chance_rate=0.04, settings={"n_digits": 16}),
    }
    default_difficulty = "easy"
    problem_fields = {"number": str}
    instructions = "Add up the digits."
    answer_example = "75"  # not an answer that is often right

    def generate(self) -> dict[str, Any]:
        """Draw a number; only `self.np_random` is random here, so that one seed gives one episode."""
        random, n_digits = self.np_random.random, self.settings["n_digits"]
        digits = [1 + int(random() * 9), *(int(random() * 10) for _ in range(n_digits - 1))]
        return {"number": "".join(map(str, digits))}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem that somebody gives to `reset` and that cannot be played."""
        if not (problem["number"].isascii() and problem["number"].isdigit()):
            raise InvalidActionError("the number must consist of digits")

    def prompt(self) -> str:
        """Return the question. Everything that is needed for an answer must be in it."""
        return f"What is the sum of the digits of {self.problem['number']}?"

    def solution(self) -> str:
        """Return a right answer, for the oracle."""
        return str(sum(map(int, self.problem["number"])))

    def is_correct(self, answer: str) -> bool:
        """Compare as numbers. `read_integer` refuses any other answer, with an error that a model can learn from."""
        return read_integer(answer) == int(self.solution())

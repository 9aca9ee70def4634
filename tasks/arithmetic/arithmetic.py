"""`llm/Arithmetic-v0`: work out an expression in the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.mathematics.arithmetic import whole_value
from llm_envs.rewards import read_integer
from llm_envs.tasks.expressions import answerable_value, in_canonical_order

__all__ = ["ArithmeticEnv"]


class ArithmeticEnv(SingleTurnEnv):
    """Work out an arithmetic expression without tools.

    ## Description
    Each episode asks for the value of one expression of whole numbers; so is the value. Teaches to calculate in the
    head, carries and signs included.

    ## Observation
    The question, such as "What is 47+85?". After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    The final answer, `<answer>132</answer>`. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the right value. `malformed` (weight -0.1): 1 for a reply without an answer, with broken
    tags, or whose answer is not a whole number.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): a sum or difference of two two-digit numbers; "medium": three terms of up to three
      digits; "hard": two products of two-digit numbers, added or subtracted; "expert": a product of two numbers of 20
      digits.
    - `reset(options={"problem": {"expression": "47+85"}})` asks for a given expression with a whole value.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often the commonest value is right: 1.1%, 0.08% and 0.04%.
    difficulties = {
        "easy": Difficulty("47+85 or 92-38", chance_rate=0.012, n_problems=12_195),
        "medium": Difficulty("three terms: 123-45+678", chance_rate=0.002),
        "hard": Difficulty("two products: 34*27-18*65", chance_rate=0.002),
        "expert": Difficulty(
            "a product of two numbers of 20 digits",
            chance_rate=0.001,
            expected_hard="There are 400 products of digits to write, to place and to add with their carries; at one "
            "slip in 500 steps, 45% come out right.",
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"expression": str}
    instructions = "Work out the value, a whole number."
    answer_example = "-307"

    def generate(self) -> dict[str, Any]:
        """Draw an expression of the level."""
        return {"expression": _GENERATORS[self.difficulty](self.np_random.random)}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an expression that has no whole value, or one too long to answer."""
        answerable_value(problem["expression"])

    def split_key(self, problem: Mapping[str, Any]) -> str:
        """Return one key for expressions of the same terms and factors."""
        return in_canonical_order(problem["expression"])

    def begin(self) -> None:
        """Compute what is right."""
        self._target = whole_value(self.problem["expression"])

    def prompt(self) -> str:
        """Return the question."""
        return f"What is {self.problem['expression']}?"

    def solution(self) -> str:
        """Return the value."""
        return str(self._target)

    def is_correct(self, answer: str) -> bool:
        """Compare as whole numbers."""
        return read_integer(answer) == self._target


def _two_terms(random: Callable[[], float]) -> str:
    left, right = 10 + int(random() * 90), 10 + int(random() * 90)
    return f"{left}+{right}" if random() < 0.5 else f"{max(left, right)}-{min(left, right)}"


def _three_terms(random: Callable[[], float]) -> str:
    signs = "+-"[int(random() * 2)], "+-"[int(random() * 2)]
    terms = [10 + int(random() * 990) for _ in range(3)]
    return f"{terms[0]}{signs[0]}{terms[1]}{signs[1]}{terms[2]}"


def _two_products(random: Callable[[], float]) -> str:
    factors = [11 + int(random() * 89) for _ in range(4)]
    return f"{factors[0]}*{factors[1]}{'+-'[int(random() * 2)]}{factors[2]}*{factors[3]}"


def _long_product(random: Callable[[], float]) -> str:
    first, second = (str(1 + int(random() * 9)) + "".join(str(int(random() * 10)) for _ in range(19)) for _ in range(2))
    return f"{first}*{second}"


_GENERATORS = {"easy": _two_terms, "medium": _three_terms, "hard": _two_products, "expert": _long_product}

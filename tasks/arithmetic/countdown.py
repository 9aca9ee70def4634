"""`llm/Countdown-v0`: reach a target with given numbers; many answers are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from llm_envs.arithmetic import Number, evaluate_with_numbers
from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError

__all__ = ["CountdownEnv", "solve_countdown"]

_OPERATORS = frozenset({"+", "-", "*", "/"})
_MAX_NUMBERS = 5
"""More would take the solver, which answers a given problem, minutes."""
_LOWEST_TARGET, _HIGHEST_TARGET = 10, 999


class CountdownEnv(SingleTurnEnv):
    """Write an expression with given numbers that has a given value.

    ## Description
    Each episode gives a few numbers and a target. Each number may be used at most once, with + - * / and parentheses.
    Every problem has a solution; usually it has several, and each of them is right. Teaches to search: to try, to
    reject and to come back to what is left.

    ## Observation
    "Numbers: 25, 4, 7. Target: 93." After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    The expression as the final answer, `<answer>25*4-7</answer>`. Thinking in `<think>...</think>` is allowed before
    it.

    ## Reward
    `correct` (weight 1): 1 if the expression's exact value is the target and it uses only the given numbers, each at
    most as often as it is given. `malformed` (weight -0.1): 1 for a reply without an answer, with broken tags, or whose
    answer is not such an expression (an equation, a sign before a number, other operators).

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): three numbers from 1 to 25; "medium": four from 1 to 50; "hard": five from 1 to
      99. Targets are from 10 to 999, and neither among the numbers nor their sum.
    - `reset(options={"problem": {"numbers": [25, 4, 7], "target": 93}})` asks for a given target; at most five numbers.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often the best fixed pattern (largest plus second less smallest, ...) is right: 12%,
    # 5%, 4%.
    difficulties = {
        "easy": Difficulty("three numbers from 1 to 25", chance_rate=0.13, settings={"count": 3, "highest": 25}),
        "medium": Difficulty("four numbers from 1 to 50", chance_rate=0.06, settings={"count": 4, "highest": 50}),
        "hard": Difficulty("five numbers from 1 to 99", chance_rate=0.05, settings={"count": 5, "highest": 99}),
    }
    default_difficulty = "easy"
    problem_fields = {"numbers": list, "target": int}
    instructions = (
        "Reach the target with the numbers, each at most once, and + - * / ( ). "
        "Reply with the expression as <answer>...</answer>."
    )

    def generate(self) -> dict[str, Any]:
        """Draw numbers and combine them at random until the value can be a target."""
        random, count, highest = self.np_random.random, self.settings["count"], self.settings["highest"]
        while True:
            numbers = [1 + int(random() * highest) for _ in range(count)]
            value, expression = _combine(random, numbers)
            # The plain sum is left out: always answering it would win every fifth time.
            if _LOWEST_TARGET <= value <= _HIGHEST_TARGET and value not in numbers and value != sum(numbers):
                problem = {"numbers": numbers, "target": value}
                self._drawn = problem, expression
                return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse what has no solution."""
        numbers = problem["numbers"]
        if not 1 <= len(numbers) <= _MAX_NUMBERS or not all(type(n) is int and 1 <= n <= 10_000 for n in numbers):
            raise InvalidActionError(f"the numbers must be 1 to {_MAX_NUMBERS} whole numbers from 1 to 10000")
        if solve_countdown(numbers, problem["target"]) is None:
            raise InvalidActionError("no expression of these numbers has that value")

    def split_key(self, problem: Mapping[str, Any]) -> list[Any]:
        """Return one key for the same numbers in any order, with the same target."""
        return [sorted(problem["numbers"]), problem["target"]]

    def prompt(self) -> str:
        """Return the numbers and the target."""
        return f"Numbers: {', '.join(map(str, self.problem['numbers']))}. Target: {self.problem['target']}."

    def solution(self) -> str:
        """Return an expression that is right: the one the problem was made from, or one that is searched for."""
        problem, expression = getattr(self, "_drawn", (None, ""))
        if problem is self.problem:
            return expression
        return solve_countdown(self.problem["numbers"], self.problem["target"]) or ""

    def is_correct(self, answer: str) -> bool:
        """Compare the expression's exact value, and the numbers in it, with the problem."""
        value, used = evaluate_with_numbers(answer, _OPERATORS)
        if value != self.problem["target"]:
            return False
        left = self.problem["numbers"].copy()
        try:
            for number in used:
                left.remove(number)
        except ValueError:
            return False
        return True


def _combine(random: Callable[[], float], numbers: Sequence[int]) -> tuple[int, str]:
    """Join two parts at a time by a random operation until one is left; all values are positive and whole."""
    parts = [(number, str(number)) for number in numbers]
    while len(parts) > 1:
        left, left_text = parts.pop(int(random() * len(parts)))
        right, right_text = parts.pop(int(random() * len(parts)))
        kind = random()
        if kind < 0.4 and left * right <= _HIGHEST_TARGET * 10:
            parts.append((left * right, f"({left_text}*{right_text})"))
        elif kind < 0.5 and left % right == 0:
            parts.append((left // right, f"({left_text}/{right_text})"))
        elif kind < 0.8 and left > right:
            parts.append((left - right, f"({left_text}-{right_text})"))
        elif kind < 0.8 and left < right:
            parts.append((right - left, f"({right_text}-{left_text})"))
        else:
            parts.append((left + right, f"({left_text}+{right_text})"))
    value, text = parts[0]
    return value, text[1:-1] if text[0] == "(" else text


def solve_countdown(numbers: Sequence[int], target: int) -> str | None:
    """Return an expression of some of the numbers whose value is the target, or None if there is none.

    Tries positive whole numbers on the way first, then all fractions. Five numbers take up to about a second.
    """
    whole: list[tuple[Number, str]] = [(number, str(number)) for number in numbers]
    expression = _search(whole, target, _whole_results) or _search(whole, target, _all_results)
    return expression[1:-1] if expression is not None and expression[0] == "(" else expression


Results = Callable[[Number, Number], list[tuple[str, bool, Number]]]


def _search(parts: list[tuple[Number, str]], target: int, results: Results) -> str | None:
    for value, text in parts:
        if value == target:
            return text
    for i, (left, left_text) in enumerate(parts):
        for j in range(i + 1, len(parts)):
            right, right_text = parts[j]
            rest = parts[:i] + parts[i + 1 : j] + parts[j + 1 :]
            for sign, is_swapped, value in results(left, right):
                text = f"({right_text}{sign}{left_text})" if is_swapped else f"({left_text}{sign}{right_text})"
                found = _search([(value, text), *rest], target, results)
                if found is not None:
                    return found
    return None


def _whole_results(left: Number, right: Number) -> list[tuple[str, bool, Number]]:
    """Return (sign, operands swapped, value) of each operation that gives a new positive whole number."""
    out: list[tuple[str, bool, Number]] = [("+", False, left + right)]
    if left != 1 and right != 1:
        out.append(("*", False, left * right))
    high, low = max(left, right), min(left, right)
    if high != low:
        out.append(("-", left < right, high - low))
    if low != 1 and high % low == 0:
        out.append(("/", left < right, high // low))
    return out


def _all_results(left: Number, right: Number) -> list[tuple[str, bool, Number]]:
    """Return the same of every operation, fractions and negative numbers included."""
    out: list[tuple[str, bool, Number]] = [
        ("+", False, left + right),
        ("*", False, left * right),
        ("-", False, left - right),
        ("-", True, right - left),
    ]
    if right:
        out.append(("/", False, Fraction(left) / right))
    if left:
        out.append(("/", True, Fraction(right) / left))
    return out

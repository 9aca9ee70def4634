"""`llm/Countdown-v0`: reach a target with given numbers; many answers are right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.mathematics.arithmetic import Number, evaluate_with_numbers
from llm_envs.tasks.algorithmic.lists import check_length

__all__ = ["CountdownEnv", "solve_countdown"]

_OPERATORS = frozenset({"+", "-", "*", "/"})
_MAX_NUMBERS = 6
"""More would take the solver, which answers a given problem, minutes."""
_BARE = re.compile(r"[0-9+\-*/() ]+")
_LEAD_IN = re.compile(
    r"^(?:so|thus|hence|therefore|then|one|a|an|the|is|possible|expression|solution|we|get|have)\b"
    r"(?:[ ,:]+(?:so|one|a|an|the|is|possible|expression|solution|we|get|have)\b)*[ ,:]*",
    re.IGNORECASE,
)
_SIGNS = tuple(
    (re.compile(pattern), sign)
    for pattern, sign in (
        (r"^\*\*|\*\*$|[`$]|\\(?:left|right)(?![A-Za-z])|\\[,;: ]", ""),
        (r"\u00d7|\u00b7|\u22c5|\u2217|\\times(?![A-Za-z])|\\cdot(?![A-Za-z])|(?<=[\d)\s])[xX](?=[\d(\s])", "*"),
        (r"\u00f7|\u2215|\\div(?![A-Za-z])", "/"),
        (r"[\u2212\u2013]", "-"),
        (r"[\[{]", "("),
        (r"[\]}]", ")"),
        (r"\b(?:equals|is equal to|is|gives)\b", "="),
    )
)
"""Other ways to write the operators and parentheses."""
_TARGETS = (10, 999)
_LARGE_TARGETS = (1_000_000, 9_999_999)


class CountdownEnv(SingleTurnEnv):
    """Write an expression with given numbers that has a given value.

    ## Description
    Each episode gives a few numbers and a target. Each number may be used at most once, with + - * / and parentheses.
    Every problem has a solution; usually it has several, and each of them is right. Teaches to search: to try, to
    reject and to come back to what is left.

    ## Observation
    "Numbers: 25, 4, 7. Target: 93." After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>25*4-7</answer>`: the expression. "×", "÷" and "= 93" after it are understood. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if the expression's exact value is the target and it uses only the given numbers, each at
    most as often as it is given. `malformed` (weight -0.1): 1 for a reply without an answer, with broken tags, or whose
    answer is not such an expression (words, a sign before a number, other operators).

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): three numbers from 1 to 25; "medium": four from 1 to 50; "hard": five from 1 to
      99; "expert": six from 1 to 99 that do not divide the target. Targets are
      from 10 to 999, at the expert level from 1000000 to 9999999, and neither among the numbers nor their sum.
    - `reset(options={"problem": {"numbers": [25, 4, 7], "target": 93}})` asks for a given target; at most six numbers.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often the best fixed pattern (largest plus second less smallest, ...) is right: 12%,
    # 5%, 4%, 0%.
    difficulties = {
        "easy": Difficulty(
            "three numbers from 1 to 25",
            chance_rate=0.13,
            n_problems=37_448,
            settings={"count": 3, "highest": 25, "targets": _TARGETS},
        ),
        "medium": Difficulty(
            "four numbers from 1 to 50", chance_rate=0.06, settings={"count": 4, "highest": 50, "targets": _TARGETS}
        ),
        "hard": Difficulty(
            "five numbers from 1 to 99", chance_rate=0.05, settings={"count": 5, "highest": 99, "targets": _TARGETS}
        ),
        "expert": Difficulty(
            "six numbers from 1 to 99, targets of seven digits",
            chance_rate=0.01,
            settings={"count": 6, "highest": 99, "targets": _LARGE_TARGETS, "is_indivisible": True},
            expected_hard="No number divides the target, so that no first step shows; of 400 other targets as large "
            "none can be reached, so that hardly more than one of some ten million values is right, and a search in "
            "the head tries some hundreds.",
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"numbers": list, "target": int}
    instructions = (
        "Write an expression whose value is the target. Use the given numbers, each at most once, with + - * / and "
        "parentheses."
    )
    answer_example = "(25+3)*4"

    def generate(self) -> dict[str, Any]:
        """Draw numbers and combine them at random until the value can be a target."""
        random, count, highest = self.np_random.random, self.settings["count"], self.settings["highest"]
        lowest, highest_target = self.settings["targets"]
        while True:
            numbers = [1 + int(random() * highest) for _ in range(count)]
            value, expression = _combine(random, numbers, 10 * highest_target)
            # The plain sum is left out: always answering it would win every fifth time.
            if lowest <= value <= highest_target and value not in numbers and value != sum(numbers):
                if self.settings.get("is_indivisible") and any(value % n == 0 for n in numbers):
                    continue
                problem = {"numbers": numbers, "target": value}
                self._drawn = problem, expression
                return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem without a solution."""
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
        expression, stated = _without_result(answer)
        value, used = evaluate_with_numbers(expression, _OPERATORS)
        if len(used) == 1 and used[0] not in self.problem["numbers"]:
            raise InvalidActionError("the answer is a number; it must be an expression of the given numbers")
        if value != self.problem["target"] or stated not in (None, value):
            return False
        left = self.problem["numbers"].copy()
        try:
            for number in used:
                left.remove(number)
        except ValueError:
            return False
        return True


def _without_result(answer: str) -> tuple[str, int | None]:
    """Return the expression of an answer, and its value if the answer states it: "93 = 25 × 4 - 7" or "... = 93"."""
    check_length(answer)
    if _BARE.fullmatch(answer) is not None:
        return answer, None
    text = _LEAD_IN.sub("", answer.strip().rstrip("."), count=1)
    for pattern, sign in _SIGNS:
        text = pattern.sub(sign, text)
    left, equals, right = (part.strip() for part in text.partition("="))
    if not equals:
        return text, None
    for expression, number in ((left, right), (right, left)):
        if re.fullmatch(r"[0-9]{1,12}", number):
            return expression, int(number)
    raise InvalidActionError("the answer must be one expression, or one expression = its value")


def _combine(random: Callable[[], float], numbers: Sequence[int], largest: int) -> tuple[int, str]:
    """Join two parts at a time by a random operation until one is left; all values are positive and whole."""
    parts = [(number, str(number)) for number in numbers]
    while len(parts) > 1:
        left, left_text = parts.pop(int(random() * len(parts)))
        right, right_text = parts.pop(int(random() * len(parts)))
        kind = random()
        if kind < 0.4 and left * right <= largest:
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
    """Return an expression of some of the numbers whose value is the target, or None if no such expression exists.

    Tries positive whole numbers on the way first, then all fractions. Six numbers take up to some seconds.
    """
    for results in (_whole_results, _all_results):
        found = _Search(numbers, results).find(target)
        if found is not None:
            return found[1:-1] if found[0] == "(" else found
    return None


Results = Callable[[Number, Number], list[tuple[str, bool, Number]]]


class _Search:
    """A search from both ends: forwards for the values of up to four numbers, backwards from the target for more."""

    def __init__(self, numbers: Sequence[int], results: Results) -> None:
        self._results = results
        self._is_whole = results is _whole_results
        self._values: dict[int, dict[Number, str]] = {1 << i: {n: str(n)} for i, n in enumerate(numbers)}
        """By a set of numbers, as bits: the values of expressions of all of them, each with one expression."""
        self._sets = sorted(range(1, 1 << len(numbers)), key=int.bit_count)

    def find(self, target: Number) -> str | None:
        """Return an expression of the value, of as few numbers as it takes."""
        for chosen in self._sets:
            found = self._find(chosen, target)
            if found is not None:
                return found
        return None

    def _find(self, chosen: int, target: Number) -> str | None:
        """Return an expression of all the chosen numbers."""
        if chosen.bit_count() <= 4:
            return self._values_of(chosen).get(target)
        for part in _parts(chosen):
            for value, text in self._values_of(part).items():
                for pattern, other in self._missing(value, target):
                    found = self._find(chosen ^ part, other)
                    if found is not None:
                        return pattern.format(text, found)
        return None

    def _missing(self, value: Number, target: Number) -> Iterator[tuple[str, Number]]:
        """Yield what would have to be joined to a value, and how, to give the target."""
        others: list[tuple[str, Number]] = [("({0}+{1})", target - value), ("({1}-{0})", target + value)]
        others += [("({0}-{1})", value - target), ("({1}/{0})", target * value)]
        if value:
            others.append(("({0}*{1})", _quotient(target, value)))
        if target:
            others.append(("({0}/{1})", _quotient(value, target)))
        for pattern, other in others:
            is_possible = other > 0 and other.denominator == 1 if self._is_whole else other or "/{1}" not in pattern
            if is_possible:
                yield pattern, other

    def _values_of(self, chosen: int) -> dict[Number, str]:
        """Return the values of all the chosen numbers together."""
        if chosen in self._values:
            return self._values[chosen]
        found: dict[Number, str] = {}
        for part in _parts(chosen):
            for left, left_text in self._values_of(part).items():
                for right, right_text in self._values_of(chosen ^ part).items():
                    for sign, is_swapped, value in self._results(left, right):
                        if value not in found:
                            first, second = (right_text, left_text) if is_swapped else (left_text, right_text)
                            found[value] = f"({first}{sign}{second})"
        self._values[chosen] = found
        return found


def _parts(chosen: int) -> Iterator[int]:
    """Yield the sets of at most half of the chosen numbers, one of each way to divide them in two."""
    part, size = (chosen - 1) & chosen, chosen.bit_count()
    while part:
        if 2 * part.bit_count() < size or (2 * part.bit_count() == size and part < chosen ^ part):
            yield part
        part = (part - 1) & chosen


def _quotient(above: Number, below: Number) -> Number:
    if isinstance(above, int) and isinstance(below, int) and above % below == 0:
        return above // below
    return Fraction(above) / below


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

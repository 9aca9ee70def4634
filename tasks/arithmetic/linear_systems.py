"""`llm/LinearSystems-v0`: solve two to eight linear equations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.rewards import parse_integer
from llm_envs.tasks.algorithmic.lists import check_length
from llm_envs.tasks.draws import Random, between, pick

__all__ = ["LinearSystemsEnv", "determinant"]

_NAMES = ("xyzwvuts", "abcdefgh", "pqrstuvw", "uvwxyzab", "klmnpqrs")
_MOST_UNKNOWNS = 8
_LARGEST = 10**6
_PART = re.compile(r"([A-Za-z])\s*(?:=|:|\bis\b|\bequals\b)\s*([-+]?\s?\S+)")
_TUPLES = re.compile(r"(?:\(([A-Za-z](?:\s*,\s*[A-Za-z])*)\)\s*=\s*)?\(([^()=:]*)\)")
_MARKER = re.compile(r"^[ \t]*(?:[-*\u2022][ \t]+|[0-9][.)][ \t]+)(?=[A-Za-z])", re.MULTILINE)
_LEAD_IN = re.compile(
    r"^(?:(?:so|thus|hence|therefore|and|we|get|have|the|values?|solutions?|unknowns?|are|is)\b[ ,:]*)+", re.IGNORECASE
)
_DECORATION = re.compile(
    r"\*\*|[`$&\"']|\\\\|\\(?:q?quad|left|right|[,;: ])|\\(?:begin|end)\{\w+\*?\}|\\text\{\s*and\s*\}"
)
_BETWEEN_PARTS = re.compile(r"\s*(?:[,;\n]|\band\b)\s*|\s+(?=[A-Za-z]\s*[=:])")


class LinearSystemsEnv(SingleTurnEnv):
    """Solve a system of linear equations with whole solutions.

    ## Description
    Two to eight equations with as many unknowns. There is exactly one solution, and it is whole. Teaches to eliminate
    unknowns without losing a sign.

    ## Observation
    The equations, one a line. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>x=3, y=-2</answer>`: the values of all unknowns, in any order. A pair such as (3, -2) is understood where
    the names are in alphabetical order. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if all values are right. `malformed` (weight -0.1): 1 for a reply without an answer, with
    broken tags, or whose answer does not give each unknown one whole number.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". Systems that differ only in names, order or signs are in the same split.
    - `difficulty`: "easy" (default): two unknowns, coefficients up to 5; "medium": three; "hard": four, up to 6, with
      unknowns on both sides; "expert": eight, up to 19, likewise.
    - `reset(options={"problem": {"names": "xy", "equations": [[[2, 3], 0, [0, 0], 13], [[1, -1], 0, [0, 0], -1]]}})`
      asks for a given system. An equation has the coefficients on the left, a number on the left, and the same of the
      right: here 2x + 3y = 13 and x - y = -1.

    ## Version History
    - v0: first version.
    """

    # Each value is drawn from -9 to 9, whatever the others are: a guess is right in 1 of 19**2, 19**3, 19**4, 19**8.
    difficulties = {
        "easy": Difficulty("two unknowns", chance_rate=0.003, settings={"unknowns": 2, "coefficients": 5, "sides": 1}),
        "medium": Difficulty("three unknowns", 0.0002, settings={"unknowns": 3, "coefficients": 5, "sides": 1}),
        "hard": Difficulty("four, on both sides", 0.00001, settings={"unknowns": 4, "coefficients": 6, "sides": 2}),
        "expert": Difficulty(
            "eight, on both sides",
            0.00001,
            settings={"unknowns": 8, "coefficients": 19, "sides": 2},
            expected_hard="Eliminating eight unknowns takes some 200 products of numbers that grow to ten digits, or "
            "of fractions as long; at one slip in 250 of them, 45% come out right.",
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"names": str, "equations": list}
    instructions = "Solve the equations. Give the value of every unknown, a whole number."
    answer_example = "x=31, y=-42"

    def generate(self) -> dict[str, Any]:
        """Draw coefficients until the solution is the only one."""
        random, n, highest = self.np_random.random, self.settings["unknowns"], self.settings["coefficients"]
        values = [between(random, -9, 9) for _ in range(n)]
        while True:
            rows = [[_coefficient(random, highest, n) for _ in range(n)] for _ in range(n)]
            if determinant(rows):
                break
        equations = []
        for row in rows:
            constant = sum(a * b for a, b in zip(row, values, strict=True))
            left, right, shift = row, [0] * n, 0
            if self.settings["sides"] == 2:
                right = [between(random, -3, 3) if random() < 0.4 else 0 for _ in range(n)]
                shift = between(random, -9, 9) if random() < 0.4 else 0
                left = [a + b for a, b in zip(row, right, strict=True)]
                if not any(left):
                    left, right, shift = row, [0] * n, 0
            equations.append([left, shift, right, constant + shift])
        problem = {"names": pick(random, _NAMES)[:n], "equations": equations}
        self._drawn = problem, values
        return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a system that does not have exactly one solution in whole numbers."""
        _solve(problem["names"], problem["equations"])

    def split_key(self, problem: Mapping[str, Any]) -> list[Any]:
        """Return one key for systems that differ only in names, in the order of anything, or in signs."""
        rows = [(_row(equation), abs(equation[3] - equation[1])) for equation in problem["equations"]]
        return sorted([*sorted(map(abs, row)), constant] for row, constant in rows)

    def begin(self) -> None:
        """Take the values that the system was drawn with, or solve a given one."""
        drawn, values = getattr(self, "_drawn", (None, []))
        names = self.problem["names"]
        solved = values if drawn is self.problem else _solve(names, self.problem["equations"])
        self._values: dict[str, int] = dict(zip(names, solved, strict=True))

    def prompt(self) -> str:
        """Return the equations."""
        names, equations = self.problem["names"], self.problem["equations"]
        return "\n".join(f"{_side(names, e[0], e[1])} = {_side(names, e[2], e[3])}" for e in equations)

    def solution(self) -> str:
        """Return the values."""
        return ", ".join(f"{name}={value}" for name, value in self._values.items())

    def is_correct(self, answer: str) -> bool:
        """Compare each unknown's value."""
        found: dict[str, int] = {}
        for part in _parts(answer, list(self._values)):
            match = _PART.fullmatch(part)
            value = parse_integer(match[2]) if match else None
            if match is None or value is None:
                raise InvalidActionError(f"{part[:40]!r} is not of the form x=3, with a whole number")
            if found.get(match[1].lower(), value) != value:
                raise InvalidActionError(f"{match[1]} has two values")
            found[match[1].lower()] = value
        if found.keys() != self._values.keys():
            raise InvalidActionError(f"the answer gives {', '.join(found)}; the unknowns are {', '.join(self._values)}")
        return found == self._values


def _parts(answer: str, names: Sequence[str]) -> list[str]:
    """Return the parts such as "x=3" of an answer; a tuple is read in the order of the names."""
    check_length(answer)
    text = _LEAD_IN.sub("", _MARKER.sub("", _DECORATION.sub(" ", answer)).strip().strip(".;,").strip(), count=1)
    named = _TUPLES.fullmatch(text)
    order = list(names) if named is None or not named[1] else re.split(r"\s*,\s*", named[1].strip().lower())
    if named is not None and (named[1] or order == sorted(order)):
        values = re.split(r"\s*,\s*", named[2].strip())
        if len(values) == len(order):
            return [f"{name}={value}" for name, value in zip(order, values, strict=True)]
    text = text[1:-1].strip() if text[:1] + text[-1:] in ("()", "[]", "{}") else text
    return [part for each in _BETWEEN_PARTS.split(text) if (part := each.strip().rstrip("."))]


def determinant(rows: Sequence[Sequence[int]]) -> int:
    """Return the determinant of a square matrix of whole numbers, by Bareiss' elimination without fractions."""
    matrix, sign, before = [list(row) for row in rows], 1, 1
    for k in range(len(matrix) - 1):
        pivot = next((i for i in range(k, len(matrix)) if matrix[i][k]), None)
        if pivot is None:
            return 0
        if pivot != k:
            matrix[k], matrix[pivot], sign = matrix[pivot], matrix[k], -sign
        for i in range(k + 1, len(matrix)):
            for j in range(k + 1, len(matrix)):
                matrix[i][j] = (matrix[i][j] * matrix[k][k] - matrix[i][k] * matrix[k][j]) // before
        before = matrix[k][k]
    return sign * matrix[-1][-1]


def _coefficient(random: Random, highest: int, n: int) -> int:
    """Draw a coefficient; of more than two unknowns every fifth is 0."""
    if n > 2 and random() < 0.2:
        return 0
    size = between(random, 1, highest)
    return size if random() < 0.6 else -size


def _row(equation: Sequence[Any]) -> list[int]:
    return [left - right for left, right in zip(equation[0], equation[2], strict=True)]


def _solve(names: str, equations: list[Any]) -> list[int]:
    """Return the values by Cramer's rule."""
    n = len(names)
    if not 2 <= n <= _MOST_UNKNOWNS or len(set(names)) < n or not (names.isascii() and names.isalpha()):
        raise InvalidActionError(f"names must be 2 to {_MOST_UNKNOWNS} different letters")
    if names != names.lower() or len(equations) != n or not all(_is_equation(equation, n) for equation in equations):
        raise InvalidActionError(
            f"there must be {n} equations [coefficients, number, coefficients, number], whole and up to {_LARGEST}"
        )
    rows = [_row(equation) for equation in equations]
    constants = [equation[3] - equation[1] for equation in equations]
    whole = determinant(rows)
    if whole == 0:
        raise InvalidActionError("the equations have no solution, or many")
    values = []
    for k in range(n):
        replaced = [[*row[:k], constant, *row[k + 1 :]] for row, constant in zip(rows, constants, strict=True)]
        value, rest = divmod(determinant(replaced), whole)
        if rest:
            raise InvalidActionError(f"the value of {names[k]} is not whole")
        values.append(value)
    return values


def _is_equation(equation: Any, n: int) -> bool:
    if not isinstance(equation, list) or len(equation) != 4:
        return False
    left, shift, right, constant = equation
    if not (isinstance(left, list) and isinstance(right, list) and len(left) == len(right) == n):
        return False
    return all(type(number) is int and abs(number) <= _LARGEST for number in [*left, shift, *right, constant])


def _side(names: str, coefficients: Sequence[int], constant: int) -> str:
    terms = [(abs(a), f"{'' if abs(a) == 1 else abs(a)}{x}", a < 0) for a, x in zip(coefficients, names, strict=True)]
    terms = [*(term for term in terms if term[0]), *([(1, str(abs(constant)), constant < 0)] if constant else [])]
    if not terms:
        return "0"
    text = "".join(f" {'-' if negative else '+'} {term}" for _, term, negative in terms)
    return f"-{text[3:]}" if text[1] == "-" else text[3:]

"""Conditions on a number and values made of one, as data: in words, as Python, and how each can be wrong.

A condition is `[kind, sign, number, ...]`, a value `[kind, ...]`. Two conditions of different kinds make another one:
`["both", "and", condition, condition]`, or with "or"; and `["neither", "or", condition, condition]`, which is the
contrary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llm_envs.checker.comparing import NUMBER_WORDS
from llm_envs.tasks.draws import Random, between, pick, sample

__all__ = [
    "NEGATED",
    "RELATIONS",
    "SHIFTED",
    "WORDS",
    "condition_code",
    "condition_words",
    "contrary",
    "draw_condition",
    "draw_value",
    "is_possible",
    "next_to",
    "normal_condition",
    "one_step_away",
    "turned",
    "value_code",
    "value_words",
    "words_for_digits",
]

RELATIONS = {">": "greater than", ">=": "at least", "<": "less than", "<=": "at most"}
_OTHERS = {
    first: (second,)
    for pair in (("==", "!="), ("+", "-"), ("min", "max"), ("and", "or"))
    for first, second in (pair, pair[::-1])
} | {sign: tuple(other for other in RELATIONS if other != sign) for sign in RELATIONS}
"""The signs for which a sign can be mistaken."""
_STEPS = (-3, -2, -1, 1, 2, 3)
"""By how much a number can be wrong."""
_OF_TWO = ("both", "neither")
"""Kinds of two conditions."""
NEGATED = {">": "<=", ">=": "<", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}
_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
SHIFTED = {">": (">=", 1), ">=": (">", -1), "<": ("<=", -1), "<=": ("<", 1)}
"""The other sign of a comparison with a whole number, and how much greater its number is."""
WORDS = {"+=": "add", "-=": "subtract", "+": "plus", "-": "minus", "min": "smaller", "max": "larger"}


def condition_code(condition: Sequence[Any], x: str) -> str:
    """Return a condition on x as Python."""
    kind, sign, a, *more = condition
    if kind in _OF_TWO:
        both = f"{condition_code(a, x)} {sign} {condition_code(more[0], x)}"
        return both if kind == "both" else f"not ({both})"
    if kind == "one":
        return f"{x} {sign} {a}"
    if kind == "rest":
        return f"{x} % {a} {sign} {more[0]}"
    if kind == "digit":
        return f"abs({x}) % 10 {sign} {a}"
    return f"{x} {sign} {a} {kind} {x} {more[0]} {more[1]}"


def condition_words(condition: Sequence[Any]) -> str:
    """Return a condition in words, to follow "a number that"."""
    kind, sign, a, *more = condition
    if kind == "neither":
        return condition_words(contrary(["both", *condition[1:]]))
    if kind == "both":
        return f"{condition_words(a)} {sign} {condition_words(more[0])}"
    if kind == "one":
        return f"is {RELATIONS[sign]} {a}"
    if kind == "rest":
        return f"{'leaves' if sign == '==' else 'does not leave'} the remainder {more[0]} on division by {a}"
    if kind == "digit":
        return f"{'has' if sign == '==' else 'does not have'} {a} as its last digit"
    return f"is {RELATIONS[sign]} {a} {kind} {RELATIONS[more[0]]} {more[1]}"


def value_code(value: Sequence[Any], x: str) -> str:
    """Return a value made of x as Python."""
    kind, *rest = value
    if kind == "same":
        return x
    if kind == "square":
        return f"{x} * {x}"
    if kind == "scaled":
        return f"{rest[0]} * {x} {rest[1]} {rest[2]}"
    if kind == "distance":
        return f"abs({x} - {rest[0]})"
    if kind == "bound":
        return f"{rest[0]}({x}, {rest[1]})"
    return f"{x} {'//' if kind == 'quotient' else '%'} {rest[0]}"


def value_words(value: Sequence[Any]) -> str:
    """Return a value in words."""
    kind, *rest = value
    if kind == "same":
        return "the number"
    if kind == "square":
        return "its square"
    if kind == "scaled":
        return f"{rest[0]} times the number {WORDS[rest[1]]} {rest[2]}"
    if kind == "distance":
        return f"its distance from {rest[0]}"
    if kind == "bound":
        return f"the {WORDS[rest[0]]} of the number and {rest[1]}"
    return f"its {'quotient (rounded down)' if kind == 'quotient' else 'remainder'} on division by {rest[0]}"


def draw_condition(random: Random, is_simple: bool) -> list[Any]:
    """Draw a condition."""
    kind = pick(random, ("one", "rest", "digit", "one") if is_simple else _KINDS)
    if kind == "both":
        first, second = sample(random, ("one", "rest", "digit"), 2)
        return ["both", pick(random, ("and", "or")), _draw_condition(random, first), _draw_condition(random, second)]
    return _draw_condition(random, kind)


_KINDS = ("one", "rest", "digit", "and", "or", "both", "both")


def _draw_condition(random: Random, kind: str) -> list[Any]:
    if kind == "one":
        return ["one", pick(random, tuple(RELATIONS)), between(random, -4, 14)]
    if kind == "rest":
        divisor = between(random, 2, 6)
        return ["rest", pick(random, ("==", "!=")), divisor, between(random, 0, divisor - 1)]
    if kind == "digit":
        return ["digit", pick(random, ("==", "!=")), between(random, 0, 9)]
    low = between(random, -5, 8)
    high = low + between(random, 3, 10)
    signs = ((">", ">="), ("<", "<=")) if kind == "and" else (("<", "<="), (">", ">="))
    return [kind, pick(random, signs[0]), low, pick(random, signs[1]), high]


def draw_value(random: Random, is_simple: bool) -> list[Any]:
    """Draw a value."""
    kinds = ("same", "square", "scaled", "bound", "distance", "quotient", "rest")
    kind = pick(random, kinds[:4] if is_simple else kinds)
    if kind == "scaled":
        return ["scaled", between(random, 2, 9), pick(random, ("+", "-")), between(random, 1, 9)]
    if kind == "bound":
        return ["bound", pick(random, ("min", "max")), between(random, 0, 12)]
    if kind == "distance":
        return ["distance", between(random, -3, 12)]
    return [kind, between(random, 2, 7)] if kind in ("quotient", "rest") else [kind]


def one_step_away(parts: list[Any]) -> Iterator[list[Any]]:
    """Yield a condition or a value with one of its signs and numbers changed, or with two of them exchanged."""
    for i, part in enumerate(parts[1:], 1):
        for other in next_to(part):
            changed = [*parts[:i], other, *parts[i + 1 :]]
            if is_possible(changed):
                yield changed
    for exchanged in _exchanged(*parts):
        if exchanged != parts and is_possible(exchanged):
            yield exchanged


def _exchanged(kind: str, *rest: Any) -> Iterator[list[Any]]:
    """Yield forms whose signs and numbers are the same, in other places, or which say the contrary."""
    if kind == "scaled":
        yield [kind, rest[2], rest[1], rest[0]]
    elif kind in ("quotient", "rest") and len(rest) == 1:
        yield ["rest" if kind == "quotient" else "quotient", *rest]
    elif kind in ("and", "or"):
        first, low, second, high = rest
        yield ["or" if kind == "and" else "and", NEGATED[first], low, NEGATED[second], high]
        yield [kind, _MIRRORED[second], low, _MIRRORED[first], high]


def is_possible(parts: Any) -> bool:
    """Whether a condition or a value can be drawn."""
    if not isinstance(parts, list) or not parts:
        return False
    if parts[0] in _OF_TWO:
        return (
            len(parts) == 4
            and parts[1] in ("and", "or")
            and all(is_possible(part) and part[0] in ("one", "rest", "digit") and len(part) > 2 for part in parts[2:])
            and parts[2][0] != parts[3][0]
        )
    signs, numbers = [part for part in parts if type(part) is str], [part for part in parts if type(part) is int]
    if len(signs) + len(numbers) < len(parts):
        return False
    kind, a, b = parts[0], *[*numbers, 0, 0][:2]
    form = (*signs[1:], *map(type, numbers))
    if kind in ("and", "or"):
        signs_of_both = ((">", ">="), ("<", "<=")) if kind == "and" else (("<", "<="), (">", ">="))
        return (
            list(map(type, parts)) == [str, str, int, str, int]
            and parts[1] in signs_of_both[0]
            and parts[3] in signs_of_both[1]
            and -5 <= a <= 8
            and 3 <= b - a <= 10
        )
    return kind in _POSSIBLE and _POSSIBLE[kind](form, a, b)


_TESTS = [("==", int), ("!=", int)]
_POSSIBLE: dict[str, Callable[[tuple[Any, ...], int, int], bool]] = {
    "same": lambda form, a, b: form == (),
    "square": lambda form, a, b: form == (),
    "one": lambda form, a, b: len(form) == 2 and form[0] in RELATIONS and form[1] is int and -4 <= a <= 14,
    "digit": lambda form, a, b: form in _TESTS and 0 <= a <= 9,
    "scaled": lambda form, a, b: form in [("+", int, int), ("-", int, int)] and 2 <= a <= 9 and 1 <= b <= 9,
    "distance": lambda form, a, b: form == (int,) and -3 <= a <= 12,
    "bound": lambda form, a, b: form in [("min", int), ("max", int)] and 0 <= a <= 12,
    "quotient": lambda form, a, b: form == (int,) and 2 <= a <= 7,
    "rest": lambda form, a, b: (
        (form == (int,) and 2 <= a <= 7) or (form[:2] in _TESTS and form[2:] == (int,) and 2 <= a <= 6 and 0 <= b < a)
    ),
}
"""Whether a kind has this form, the signs and then the types of its numbers; a and b are the first two."""


def next_to(what: Any) -> tuple[Any, ...]:
    """Return what a sign, a number or a condition can be mistaken for."""
    if isinstance(what, list):
        return tuple(one_step_away(what))
    return _OTHERS.get(what, ()) if isinstance(what, str) else tuple(what + step for step in _STEPS)


def turned(random: Random, condition: list[Any]) -> list[Any]:
    """Return a condition that means the same, perhaps with other comparisons: at least 4 for greater than 3.

    One of two conditions is perhaps written as the contrary of its contrary, which has "or" for "and".
    """
    if condition[0] == "both":
        is_turned = random() < 0.5
        kind, sign, *both = ["neither", *contrary(condition)[1:]] if is_turned else condition
        return [kind, sign, *(turned(random, one) for one in both)]
    parts = list(condition)
    for i, part in enumerate(parts):
        if part in SHIFTED and random() < 0.5:
            parts[i], parts[i + 1] = SHIFTED[part][0], parts[i + 1] + SHIFTED[part][1]
    return parts if is_possible(parts) else condition


def contrary(condition: Sequence[Any]) -> list[Any]:
    """Return the condition that holds where one of a single comparison, or one of two conditions, does not."""
    kind, sign, *more = condition
    if kind == "both":
        return ["both", _OTHERS[sign][0], *map(contrary, more)]
    return [kind, NEGATED[sign], *more]


def normal_condition(condition: list[Any]) -> list[Any]:
    """Write a condition without "at least", "at most" and "neither"."""
    if condition[0] in _OF_TWO:
        kind, sign, *more = condition if condition[0] == "both" else contrary(["both", *condition[1:]])
        return [kind, sign, *map(normal_condition, more)]
    parts = list(condition)
    for i, part in enumerate(parts):
        if part in (">=", "<="):
            parts[i], parts[i + 1] = part[0], parts[i + 1] + (-1 if part == ">=" else 1)
    return parts


_NUMBER_WORDS = {str(number): word for number, word in enumerate(NUMBER_WORDS, 2)}


def words_for_digits(text: str) -> str:
    """Write the numbers from 2 to 12 as words."""
    return re.sub(r"(?<![\w.-])\d+(?!\w)", lambda found: _NUMBER_WORDS.get(found[0], found[0]), text)

"""A safe evaluator of arithmetic: its own small parser, exact numbers, and limits that keep every input cheap.

No `eval`, no `ast`, no recursion. Integers and fractions are exact: 1/3*3 is 1.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import NoReturn

from llm_envs.errors import InvalidActionError

__all__ = ["MAX_BITS", "MAX_CHARACTERS", "Number", "evaluate", "evaluate_with_numbers", "format_number", "whole_value"]

Number = int | Fraction

MAX_CHARACTERS = 1_000
"""Longest expression. Bounds tokens, nesting and the size of literals together."""
MAX_BITS = 4_096
"""Size of the largest number on the way, about 1,200 digits: an operation on two such numbers takes microseconds."""
_LIMIT = 1 << MAX_BITS

_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+|\*\*|//|[-+*/%()]|\S")
# Higher binds tighter, as in Python: -2**2 is -4, 2**-1 is 1/2. "neg" and "pos" are signs.
_PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "neg": 3, "pos": 3, "**": 4}
_SIGNS = {"-": "neg", "+": "pos"}
ALL_OPERATORS = frozenset({"+", "-", "*", "/", "//", "%", "**", "neg", "pos"})
"""The operators of `evaluate`; `neg` and `pos` are a sign before a number or a parenthesis."""


def evaluate(expression: str) -> Number:
    """Return the exact value of an arithmetic expression.

    Args:
        expression: Numbers (decimals allowed), `+ - * / // % **`, signs and parentheses, with Python's precedence.

    Raises:
        InvalidActionError: If the text is not such an expression, divides by zero, or is or becomes too large.
    """
    return evaluate_with_numbers(expression)[0]


def evaluate_with_numbers(expression: str, operators: frozenset[str] = ALL_OPERATORS) -> tuple[Number, list[Number]]:
    """Return the value of an expression and the numbers written in it, in order.

    Args:
        expression: See `evaluate`.
        operators: The operators that are allowed, a subset of `ALL_OPERATORS`.

    Raises:
        InvalidActionError: As `evaluate`, and for an operator that is not allowed.
    """
    if len(expression) > MAX_CHARACTERS:
        raise InvalidActionError(f"the expression has {len(expression)} characters; at most {MAX_CHARACTERS} are read")
    values: list[Number] = []
    waiting: list[str] = []
    numbers: list[Number] = []
    operand_next = True
    for token in _TOKEN.findall(expression):
        if operand_next:
            if token[0] in "0123456789.":
                number: Number = int(token) if token.isdigit() else _decimal(token)
                numbers.append(number)
                values.append(number)
                operand_next = False
            elif token == "(":
                waiting.append(token)
            else:
                waiting.append(_sign(token, operators))
        elif token == ")":
            _close_parenthesis(values, waiting)
        else:
            if token not in operators:
                _refuse(token, operators)
            precedence = _PRECEDENCE[token]
            # A power waits for the one to its right; everything else of equal rank goes from left to right.
            while waiting and _PRECEDENCE[waiting[-1]] >= precedence and token != "**":
                _apply(waiting.pop(), values)
            waiting.append(token)
            operand_next = True
    if operand_next:
        raise InvalidActionError(
            "the expression ends where a number should be" if values else "the expression is empty"
        )
    while waiting:
        _apply(waiting.pop(), values)
    return values[0], numbers


def whole_value(expression: str) -> int:
    """Return the value of an expression that must be an integer.

    Raises:
        InvalidActionError: As `evaluate`, and if the value is not a whole number.
    """
    value = evaluate(expression)
    if not isinstance(value, int):
        raise InvalidActionError(f"the value of {expression[:60]!r} is {format_number(value)}, not a whole number")
    return value


def format_number(value: Number) -> str:
    """Write a whole number in full, anything else as a decimal of 12 significant digits."""
    if isinstance(value, int):
        return str(value)
    try:
        decimal = float(value)
    except OverflowError:
        decimal = 0.0
    # Too large or too small for a float: the fraction itself, not "inf" or "0".
    return f"{decimal:.12g}" if decimal else f"{value.numerator}/{value.denominator}"


def _decimal(token: str) -> Number:
    if token == ".":
        raise InvalidActionError("'.' is not a number")
    return _normal(Fraction(token))


def _sign(token: str, operators: frozenset[str]) -> str:
    sign = _SIGNS.get(token, token)
    if sign in ("neg", "pos") and sign in operators:
        return sign
    if token in _PRECEDENCE or token == ")":
        raise InvalidActionError(f"there should be a number before {token!r}")
    _refuse(token, operators)


def _refuse(token: str, operators: frozenset[str]) -> NoReturn:
    known = " ".join(name for name in ("+", "-", "*", "/", "//", "%", "**") if name in operators)
    hint = " (a power is written **)" if token == "^" and "**" in operators else ""
    what = "an operator should stand before" if token == "(" or token[0] in "0123456789." else "cannot read"
    raise InvalidActionError(f"{what} {token!r}{hint}; known are numbers, {known} and parentheses")


def _close_parenthesis(values: list[Number], waiting: list[str]) -> None:
    while waiting:
        name = waiting.pop()
        if name == "(":
            return
        _apply(name, values)
    raise InvalidActionError("a ')' has no '(' before it")


def _apply(name: str, values: list[Number]) -> None:
    """Replace the operands on top of the stack by the result."""
    right = values.pop()
    if name == "neg":
        values.append(-right)
    elif name == "pos":
        values.append(right)
    elif name == "(":
        raise InvalidActionError("a '(' is not closed")
    elif name in _DIVISIONS and not right:
        raise InvalidActionError("division by zero")
    else:
        value = _OPERATIONS[name](values.pop(), right)
        if value.__class__ is not int:
            value = _normal(value)
        elif not -_LIMIT < value < _LIMIT:
            _too_large()
        values.append(value)


def _normal(value: Number) -> Number:
    """Turn a fraction that is whole into an integer, and refuse one that has grown too large."""
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        _too_large()
    return value.numerator if value.denominator == 1 else value


def _too_large() -> NoReturn:
    raise InvalidActionError(f"the result is too large (over {MAX_BITS} bits)")


def _power(base: Number, exponent: Number) -> Number:
    if not isinstance(exponent, int):
        raise InvalidActionError("an exponent must be an integer")
    if not base and exponent < 0:
        raise InvalidActionError("division by zero")
    if base not in (-1, 0, 1):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if (bits - 1) * abs(exponent) > MAX_BITS:
            _too_large()
    else:
        exponent = exponent % 2 if base == -1 else min(abs(exponent), 1)
    return Fraction(base) ** exponent if exponent < 0 else base**exponent


_DIVISIONS = ("/", "//", "%")
_OPERATIONS: dict[str, Callable[[Number, Number], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": Fraction,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
}

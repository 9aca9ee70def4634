"""Ways to write one condition on a number, or one value made of it, in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_envs.tasks.code.forms import NEGATED, SHIFTED, condition_code, value_code

__all__ = ["N_SPELLINGS", "spell_condition", "spell_value"]

N_SPELLINGS = 4
_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


def spell_condition(condition: Sequence[Any], x: str, spelling: int) -> str:
    """Return a condition of `programs` as Python.

    Args:
        condition: Its kind, signs and numbers.
        x: The number, as Python.
        spelling: 0 is the plainest; others below `N_SPELLINGS` mean the same.
    """
    kind, sign, a, *more = condition
    if spelling == 0:
        return condition_code(condition, x)
    if kind in ("both", "neither"):
        both = f"{spell_condition(a, x, spelling)} {sign} {spell_condition(more[0], x, spelling)}"
        return both if kind == "both" else f"not ({both})"
    if kind == "one":
        if spelling == 1:
            return f"not {x} {NEGATED[sign]} {a}"
        if spelling == 2:
            return f"{a} {_TURNED[sign]} {x}"
        other, step = SHIFTED[sign]
        return f"{x} {other} {a + step}"
    if kind == "rest":
        return f"({x} - {more[0]}) % {a} {sign} 0" if spelling == 1 else f"not {x} % {a} {NEGATED[sign]} {more[0]}"
    if kind == "digit":
        return f'str({x})[-1] {sign} "{a}"' if spelling == 1 else f"not abs({x}) % 10 {NEGATED[sign]} {a}"
    opposite = "or" if kind == "and" else "and"
    second, b = more
    if spelling == 1:
        return f"not ({x} {NEGATED[sign]} {a} {opposite} {x} {NEGATED[second]} {b})"
    (first, step), (last, other_step) = SHIFTED[sign], SHIFTED[second]
    if spelling == 2:
        return f"{x} {last} {b + other_step} {kind} {x} {first} {a + step}"
    return f"not ({x} {NEGATED[second]} {b} {opposite} {x} {NEGATED[sign]} {a})"


def spell_value(value: Sequence[Any], x: str, spelling: int) -> str:
    """Return a value of `programs` as Python; see `spell_condition`."""
    kind, *rest = value
    if spelling < 2 or kind == "same":
        return value_code(value, x)
    if kind == "square":
        return f"{x} ** 2"
    if kind == "scaled":
        return f"{rest[2]} + {x} * {rest[0]}" if rest[1] == "+" else f"-{rest[2]} + {x} * {rest[0]}"
    if kind == "distance":
        return f"max({x} - {rest[0]}, {rest[0]} - {x})"
    if kind == "bound":
        return f"{x} if {x} {'<' if rest[0] == 'min' else '>'} {rest[1]} else {rest[1]}"
    if kind == "quotient":
        return f"({x} - {x} % {rest[0]}) // {rest[0]}"
    return f"{x} - {x} // {rest[0]} * {rest[0]}"

"""Writing numbers and polynomials as LaTeX, and drawing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from llm_envs.tasks.draws import Random, between

__all__ = ["Template", "determinant", "latex", "matrix", "polynomial", "some"]

Template = Callable[[Random], tuple[str, str]]
"""Draws a question and its answer."""


def latex(value: Fraction | int) -> str:
    """Write a number, in lowest terms."""
    value = Fraction(value)
    if value.denominator == 1:
        return str(value.numerator)
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def polynomial(*coefficients: int) -> str:
    """Write a polynomial in x, the highest power first."""
    text = ""
    for place, a in enumerate(coefficients):
        power = len(coefficients) - 1 - place
        if a:
            size = "" if abs(a) == 1 and power else str(abs(a))
            text += f" {'-' if a < 0 else '+'} {size}{('', 'x')[power > 0]}{f'^{power}' if power > 1 else ''}"
    return (f"-{text[3:]}" if text[:2] == " -" else text[3:]) or "0"


def some(random: Random, low: int, high: int) -> int:
    """Draw a whole number that is not 0."""
    return between(random, low, high) or high


def matrix(rows: Sequence[Sequence[int]]) -> str:
    """Write a matrix."""
    inside = r" \\ ".join(" & ".join(map(str, row)) for row in rows)
    return f"\\begin{{pmatrix}} {inside} \\end{{pmatrix}}"


def determinant(rows: Sequence[Sequence[int]]) -> int:
    """Return the determinant of a square matrix."""
    if not rows:
        return 1
    minors = ([[*row[:j], *row[j + 1 :]] for row in rows[1:]] for j in range(len(rows)))
    return sum((-1) ** j * rows[0][j] * determinant(minor) for j, minor in enumerate(minors))

"""Propositional formulas: a letter, ["not", f], or ["and" | "or" | "if" | "iff", f, g]; their meaning and text."""

from __future__ import annotations

from functools import lru_cache
from random import Random as Generator
from typing import Any

from llm_envs.tasks.draws import Random, between, pick

__all__ = ["Formula", "draw_formula", "formula_pool", "is_formula", "letters_in", "meaning", "write"]

Formula = Any
"""A str or a list, so that it is JSON."""

_SIGNS = {"and": "&", "or": "|", "if": "->", "iff": "<->"}
_MAX_DEPTH = 8
_POOL_DRAWS = 4_000


@lru_cache(maxsize=16)
def _columns(n: int) -> list[int]:
    """Return, for each of n letters, the valuations in which it is true: valuation m makes letter i true by bit i."""
    return [sum(1 << m for m in range(2**n) if m >> i & 1) for i in range(n)]


def meaning(formula: Formula, letters: str) -> int:
    """Return the valuations of the letters in which a formula is true, as a set of bits."""
    columns, every = _columns(len(letters)), (1 << 2 ** len(letters)) - 1

    def of(part: Formula) -> int:
        if isinstance(part, str):
            return columns[letters.index(part)]
        if part[0] == "not":
            return every ^ of(part[1])
        left, right = of(part[1]), of(part[2])
        if part[0] == "and":
            return left & right
        if part[0] == "or":
            return left | right
        return (every ^ left) | right if part[0] == "if" else every ^ left ^ right

    return of(formula)


def write(formula: Formula) -> str:
    """Return a formula with ~ & | -> <->, in parentheses wherever two of them meet."""
    if isinstance(formula, str):
        return formula
    if formula[0] == "not":
        return f"~{_within(formula[1])}"
    return f"{_within(formula[1])} {_SIGNS[formula[0]]} {_within(formula[2])}"


def _within(formula: Formula) -> str:
    text = write(formula)
    return text if isinstance(formula, str) or formula[0] == "not" else f"({text})"


def draw_formula(random: Random, letters: str, size: int) -> Formula:
    """Draw a formula of `size` connectives between letters, each perhaps negated."""
    if size == 0:
        letter = pick(random, letters)
        return ["not", letter] if random() < 0.3 else letter
    left = between(random, 0, size - 1)
    kind = pick(random, ("and", "or", "or", "if", "if", "iff"))
    first, second = draw_formula(random, letters, left), draw_formula(random, letters, size - 1 - left)
    while letters_in(first) == letters_in(second):
        second = draw_formula(random, letters, size - 1 - left)
    joined = [kind, first, second]
    return ["not", joined] if random() < 0.15 else joined


@lru_cache(maxsize=8)
def formula_pool(letters: str) -> list[tuple[Formula, int, int]]:
    """Return many different formulas of up to two connectives, always the same ones for the same letters.

    Each comes with its meaning and the number of its connectives. None is always true or never.
    """
    random, every = Generator(len(letters)).random, (1 << 2 ** len(letters)) - 1
    pool: dict[str, tuple[Formula, int, int]] = {}
    for _ in range(_POOL_DRAWS):
        size = between(random, 0, 2)
        formula = draw_formula(random, letters, size)
        truth = meaning(formula, letters)
        if 0 < truth < every:
            pool.setdefault(write(formula), (formula, truth, size))
    return list(pool.values())


def letters_in(formula: Formula) -> set[str]:
    """Return the letters of a formula."""
    return {formula} if isinstance(formula, str) else set().union(*map(letters_in, formula[1:]))


def is_formula(value: Any, letters: str, depth: int = 0) -> bool:
    """Return whether a value is a formula over these letters, not nested too deep."""
    if isinstance(value, str):
        return len(value) == 1 and value in letters
    if not isinstance(value, list) or not value or depth > _MAX_DEPTH:
        return False
    if len(value) != (2 if value[0] == "not" else 3) or value[0] not in ("not", *_SIGNS):
        return False
    return all(is_formula(part, letters, depth + 1) for part in value[1:])

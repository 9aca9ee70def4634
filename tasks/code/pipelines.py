"""Small functions on lists of whole numbers, put together from steps: described in words, computed here, and as Python.

A step is `[name, number]`; a program is a list of steps, the last of which may be a result other than a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from llm_envs.tasks.draws import Random, between, pick

__all__ = ["RESULTS", "STEPS", "Step", "compute", "describe", "draw_inputs", "draw_steps", "source"]

Program = list[list[Any]]


class Step(NamedTuple):
    """One step."""

    words: str
    """What it does to the list; {k} is its number."""
    apply: Callable[[list[int], int], Any]
    code: str
    """A Python expression of `xs`; {k} is its number."""
    numbers: tuple[int, int] | None = None
    """Lowest and highest number; None if it has none."""


STEPS: dict[str, Step] = {
    "even": Step("keep the even numbers", lambda xs, k: [x for x in xs if x % 2 == 0], "[x for x in xs if x % 2 == 0]"),
    "odd": Step("keep the odd numbers", lambda xs, k: [x for x in xs if x % 2], "[x for x in xs if x % 2 != 0]"),
    "over": Step(
        "keep the numbers greater than {k}",
        lambda xs, k: [x for x in xs if x > k],
        "[x for x in xs if x > {k}]",
        (-5, 5),
    ),
    "most": Step(
        "keep the numbers that are at most {k}",
        lambda xs, k: [x for x in xs if x <= k],
        "[x for x in xs if x <= {k}]",
        (0, 9),
    ),
    "without": Step(
        "remove every number divisible by {k}",
        lambda xs, k: [x for x in xs if x % k],
        "[x for x in xs if x % {k} != 0]",
        (3, 7),
    ),
    "add": Step("add {k} to every number", lambda xs, k: [x + k for x in xs], "[x + {k} for x in xs]", (2, 9)),
    "times": Step("multiply every number by {k}", lambda xs, k: [x * k for x in xs], "[x * {k} for x in xs]", (2, 5)),
    "square": Step("square every number", lambda xs, k: [x * x for x in xs], "[x * x for x in xs]"),
    "absolute": Step(
        "replace every number by its absolute value", lambda xs, k: [abs(x) for x in xs], "[abs(x) for x in xs]"
    ),
    "negate": Step("change the sign of every number", lambda xs, k: [-x for x in xs], "[-x for x in xs]"),
    "remainder": Step(
        "replace every number by its remainder on division by {k} (from 0 to {k} minus 1)",
        lambda xs, k: [x % k for x in xs],
        "[x % {k} for x in xs]",
        (3, 9),
    ),
    "ascending": Step("sort in ascending order", lambda xs, k: sorted(xs), "sorted(xs)"),
    "descending": Step("sort in descending order", lambda xs, k: sorted(xs, reverse=True), "sorted(xs, reverse=True)"),
    "reverse": Step("reverse the order", lambda xs, k: xs[::-1], "xs[::-1]"),
    "take": Step("keep the first {k} numbers (all, if there are fewer)", lambda xs, k: xs[:k], "xs[:{k}]", (2, 5)),
    "drop": Step("drop the first {k} numbers", lambda xs, k: xs[k:], "xs[{k}:]", (1, 3)),
    "second": Step("keep every second number, beginning with the first", lambda xs, k: xs[::2], "xs[::2]"),
    "distinct": Step(
        "keep only the first of equal numbers", lambda xs, k: list(dict.fromkeys(xs)), "list(dict.fromkeys(xs))"
    ),
    "running": Step(
        "replace every number by the sum of all numbers up to and including it",
        lambda xs, k: list(accumulate(xs)),
        "[sum(xs[: i + 1]) for i in range(len(xs))]",
    ),
    "neighbours": Step(
        "replace the list by the differences of neighbours (each number's successor minus the number)",
        lambda xs, k: [b - a for a, b in pairwise(xs)],
        "[xs[i + 1] - xs[i] for i in range(len(xs) - 1)]",
    ),
}
RESULTS: dict[str, Step] = {
    "list": Step("the list", lambda xs, k: xs, "xs"),
    "sum": Step("the sum (0 for an empty list)", lambda xs, k: sum(xs), "sum(xs)"),
    "count": Step("how many numbers there are", lambda xs, k: len(xs), "len(xs)"),
    "largest": Step(
        "the largest number, or {k} for an empty list",
        lambda xs, k: max(xs, default=k),
        "max(xs) if xs else {k}",
        (-1, 0),
    ),
    "spread": Step(
        "the largest number minus the smallest (0 for an empty list)",
        lambda xs, k: max(xs) - min(xs) if xs else 0,
        "max(xs) - min(xs) if xs else 0",
    ),
    "text": Step(
        "the numbers as one text, joined by hyphens",
        lambda xs, k: "-".join(map(str, xs)),
        '"-".join([str(x) for x in xs])',
    ),
    "differs": Step(
        "True if all numbers are different, else False",
        lambda xs, k: len(set(xs)) == len(xs),
        "len(set(xs)) == len(xs)",
    ),
}


def draw_steps(random: Random, n: int) -> Program:
    """Draw `n` steps, no two alike one after the other, and a result."""
    program: Program = []
    names = tuple(STEPS)
    while len(program) < n:
        name = pick(random, names)
        if not program or program[-1][0] != name:
            program.append([name, _number(random, STEPS[name])])
    result = pick(random, tuple(RESULTS))
    return [*program, [result, _number(random, RESULTS[result])]]


def draw_inputs(random: Random, n: int) -> list[list[int]]:
    """Draw lists of whole numbers from -9 to 20; the first is empty, the second has one number."""
    sizes = [0, 1, *(between(random, 4, 9) for _ in range(n - 2))]
    return [[between(random, -9, 20) for _ in range(size)] for size in sizes[:n]]


def compute(program: Program, xs: Sequence[int]) -> Any:
    """Return what a program makes of a list."""
    value: Any = list(xs)
    for name, k in program[:-1]:
        value = STEPS[name].apply(value, k)
    name, k = program[-1]
    return RESULTS[name].apply(value, k)


def describe(program: Program) -> str:
    """Return the steps in words, numbered, and what is returned."""
    lines = [f"{i}. {STEPS[name].words.format(k=k)}" for i, (name, k) in enumerate(program[:-1], 1)]
    name, k = program[-1]
    return "\n".join([*lines, f"Return {RESULTS[name].words.format(k=k)}."])


def source(program: Program) -> str:
    """Return the program as a Python function `f(xs)`."""
    lines = [f"    xs = {STEPS[name].code.format(k=k)}" for name, k in program[:-1]]
    name, k = program[-1]
    return "\n".join(["def f(xs):", *lines, f"    return {RESULTS[name].code.format(k=k)}"])


def _number(random: Random, step: Step) -> int:
    return 0 if step.numbers is None else between(random, *step.numbers)

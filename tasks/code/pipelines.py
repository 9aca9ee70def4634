"""Small functions on lists of whole numbers, put together from steps: described in words, computed here, and as Python.

A step is `[name, number]`; a program is a list of steps, the last of which may be a result other than a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from llm_envs.tasks.draws import Random, between, pick

__all__ = [
    "DIVISORS",
    "RESULTS",
    "STEPS",
    "Step",
    "behaviour",
    "compute",
    "describe",
    "draw_inputs",
    "draw_result",
    "draw_steps",
    "everything_matters",
    "source",
]

Program = list[list[Any]]


class Step(NamedTuple):
    """One step."""

    words: str
    """Its effect on the list; {k} is its number."""
    apply: Callable[[list[int], int], Any]
    code: str
    """A Python expression of `xs`; {k} is its number."""
    numbers: tuple[int, int] | None = None
    """Lowest and highest number; None if it has none."""

    def say(self, k: int) -> str:
        """Return the words with a number."""
        return self.words.format(k=k).replace("first 1 numbers", "first number").replace(" 1 numbers", " 1 number")


STEPS: dict[str, Step] = {
    "even": Step("keep the even numbers", lambda xs, k: [x for x in xs if x % 2 == 0], "[x for x in xs if x % 2 == 0]"),
    "odd": Step("keep the odd numbers", lambda xs, k: [x for x in xs if x % 2], "[x for x in xs if x % 2 != 0]"),
    "over": Step(
        "keep the numbers greater than {k}",
        lambda xs, k: [x for x in xs if x > k],
        "[x for x in xs if x > {k}]",
        (-8, 15),
    ),
    "most": Step(
        "keep the numbers that are at most {k}",
        lambda xs, k: [x for x in xs if x <= k],
        "[x for x in xs if x <= {k}]",
        (-4, 19),
    ),
    "without": Step(
        "remove every number divisible by {k}",
        lambda xs, k: [x for x in xs if x % k],
        "[x for x in xs if x % {k} != 0]",
        (3, 9),
    ),
    "add": Step("add {k} to every number", lambda xs, k: [x + k for x in xs], "[x + {k} for x in xs]", (2, 30)),
    "times": Step("multiply every number by {k}", lambda xs, k: [x * k for x in xs], "[x * {k} for x in xs]", (2, 12)),
    "square": Step("square every number", lambda xs, k: [x * x for x in xs], "[x * x for x in xs]"),
    "absolute": Step(
        "replace every number by its absolute value", lambda xs, k: [abs(x) for x in xs], "[abs(x) for x in xs]"
    ),
    "negate": Step("change the sign of every number", lambda xs, k: [-x for x in xs], "[-x for x in xs]"),
    "remainder": Step(
        "replace every number by its remainder on division by {k} (from 0 to {k} minus 1)",
        lambda xs, k: [x % k for x in xs],
        "[x % {k} for x in xs]",
        (3, 12),
    ),
    "divide": Step(
        "divide every number by {k}, rounding down",
        lambda xs, k: [x // k for x in xs],
        "[x // {k} for x in xs]",
        (2, 9),
    ),
    "cap": Step(
        "replace every number greater than {k} by {k}",
        lambda xs, k: [min(x, k) for x in xs],
        "[min(x, {k}) for x in xs]",
        (0, 16),
    ),
    "raise": Step(
        "replace every number less than {k} by {k}",
        lambda xs, k: [max(x, k) for x in xs],
        "[max(x, {k}) for x in xs]",
        (-6, 10),
    ),
    "places": Step(
        "add to every number how many numbers stand before it",
        lambda xs, k: [i + x for i, x in enumerate(xs)],
        "[i + xs[i] for i in range(len(xs))]",
    ),
    "ascending": Step("sort in ascending order", lambda xs, k: sorted(xs), "sorted(xs)"),
    "descending": Step("sort in descending order", lambda xs, k: sorted(xs, reverse=True), "sorted(xs, reverse=True)"),
    "reverse": Step("reverse the order", lambda xs, k: xs[::-1], "xs[::-1]"),
    "take": Step("keep the first {k} numbers (all, if there are fewer)", lambda xs, k: xs[:k], "xs[:{k}]", (2, 6)),
    "drop": Step("drop the first {k} numbers", lambda xs, k: xs[k:], "xs[{k}:]", (1, 4)),
    "rotate": Step(
        "move the first {k} numbers to the end (leave fewer than {k} numbers as they are)",
        lambda xs, k: xs[k:] + xs[:k],
        "xs[{k}:] + xs[:{k}]",
        (2, 3),
    ),
    "every": Step(
        "keep the first of every {k} numbers (those at the places 1, {k} + 1, ...)",
        lambda xs, k: xs[::k],
        "xs[::{k}]",
        (2, 4),
    ),
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
    "sums": Step(
        "replace the list by the sums of neighbours (each number plus its successor)",
        lambda xs, k: [a + b for a, b in pairwise(xs)],
        "[xs[i] + xs[i + 1] for i in range(len(xs) - 1)]",
    ),
}
DIVISORS = frozenset({"without", "remainder", "divide", "every"})
"""Steps whose number must be above 0."""
RESULTS: dict[str, Step] = {
    "list": Step("the list", lambda xs, k: xs, "xs"),
    "sum": Step("the sum (0 for an empty list)", lambda xs, k: sum(xs), "sum(xs)"),
    "count": Step("how many numbers there are", lambda xs, k: len(xs), "len(xs)"),
    "largest": Step(
        "the largest number, or {k} for an empty list",
        lambda xs, k: max(xs, default=k),
        "max(xs) if xs else {k}",
        (-3, 3),
    ),
    "smallest": Step(
        "the smallest number, or {k} for an empty list",
        lambda xs, k: min(xs, default=k),
        "min(xs) if xs else {k}",
        (-3, 3),
    ),
    "final": Step(
        "the last number, or {k} for an empty list", lambda xs, k: xs[-1] if xs else k, "xs[-1] if xs else {k}", (-3, 3)
    ),
    "above": Step(
        "how many numbers are greater than {k}",
        lambda xs, k: sum(x > k for x in xs),
        "len([x for x in xs if x > {k}])",
        (-5, 20),
    ),
    "mean": Step(
        "the mean, rounded down (0 for an empty list)",
        lambda xs, k: sum(xs) // len(xs) if xs else 0,
        "sum(xs) // len(xs) if xs else 0",
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


def draw_steps(random: Random, n: int, inputs: Sequence[list[int]]) -> Program:
    """Draw `n` steps without a result; for some of the inputs each step, and each number, changes what it is given."""
    while True:
        program: Program = []
        state: list[Any] = list(inputs)
        for _ in range(8 * n):
            name = pick(random, _STEP_NAMES)
            step, k = STEPS[name], _number(random, STEPS[name])
            after = [step.apply(xs, k) for xs in state]
            nearby = (k + 1, k - 1) if step.numbers else ()
            if sum(map(len, after)) < 3 * len(inputs) or after == state:
                continue
            if name in _GROWING and max(map(max, filter(None, after))) > _LARGEST:
                continue
            if all(any(step.apply(xs, other) != ys for xs, ys in zip(state, after, strict=True)) for other in nearby):
                program.append([name, k])
                state = after
                if len(program) == n:
                    return program


def draw_result(random: Random) -> list[Any]:
    """Draw what is returned."""
    name = pick(random, _RESULT_NAMES)
    return [name, _number(random, RESULTS[name])]


def draw_inputs(random: Random, n: int) -> list[list[int]]:
    """Draw lists of whole numbers from -9 to 20; the first is empty, the second has one number."""
    sizes = [0, 1, *(between(random, 4, 11) for _ in range(n - 2))]
    return [[between(random, -9, 20) for _ in range(size)] for size in sizes[:n]]


def compute(program: Program, xs: list[int]) -> Any:
    """Return what a program makes of a list."""
    value: Any = list(xs)
    for name, k in program[:-1]:
        value = STEPS[name].apply(value, k)
    name, k = program[-1]
    return RESULTS[name].apply(value, k)


def everything_matters(program: Program, inputs: Sequence[list[int]]) -> bool:
    """Whether some input shows each step and number: without the step, or with the next number, its result differs."""
    *steps, (result, number) = program
    finish, states = RESULTS[result].apply, [list(inputs)]
    for name, k in steps:
        apply = STEPS[name].apply
        states.append([apply(xs, k) for xs in states[-1]])
    expected = [finish(xs, number) for xs in states[-1]]
    rest = [[(STEPS[name].apply, k) for name, k in steps[place + 1 :]] for place in range(len(steps))]

    def differs(place: int, name: str, k: int) -> bool:
        """Whether the program with another step at a place gives something else for some input."""
        for xs, right in zip(states[place], expected, strict=True):
            value = STEPS[name].apply(xs, k) if name else xs
            for apply, its_number in rest[place]:
                value = apply(value, its_number)
            if finish(value, number) != right:
                return True
        return False

    for place, (name, k) in enumerate(steps):
        if not differs(place, "", 0):
            return False
        if STEPS[name].numbers and not (differs(place, name, k + 1) and differs(place, name, k - 1)):
            return False
    nearby = (number + 1, number - 1) if RESULTS[result].numbers else ()
    return all([finish(xs, k) for xs in states[-1]] != expected for k in nearby)


def behaviour(program: Program) -> list[Any]:
    """Return what a program makes of some lists: the same for programs that do the same in other words."""
    return [compute(program, xs) for xs in _PROBES]


def describe(program: Program) -> str:
    """Return the steps in words, numbered, and what is returned; a step that was told before is named by its number."""
    said = [STEPS[name].say(k) for name, k in program[:-1]]
    lines = [
        f"{i}. {text if (first := said.index(text) + 1) == i else f'do what step {first} does, once more'}"
        for i, text in enumerate(said, 1)
    ]
    name, k = program[-1]
    return "\n".join([*lines, f"Return {RESULTS[name].say(k)}."])


def source(program: Program) -> str:
    """Return the program as a Python function `f(xs)`."""
    lines = [f"    xs = {STEPS[name].code.format(k=k)}" for name, k in program[:-1]]
    name, k = program[-1]
    return "\n".join(["def f(xs):", *lines, f"    return {RESULTS[name].code.format(k=k)}"])


_PROBES: tuple[list[int], ...] = (
    [], [7], [-8], [3, 3], [5, -2, 14, 0, 9, -6, 20, 11], [-9, -4, -1, 16, 2], [18, 12, 6, 6, 3, 1, 0, -7, 10],
    [4, 8, 15, 16, -3, 13, 13, -5, 19, 17, 1], list(range(-9, 21)),
)  # fmt: skip


_LARGEST = 100_000
_GROWING = frozenset({"times", "square", "running", "sums"})
_STEP_NAMES, _RESULT_NAMES = tuple(STEPS), (*RESULTS, *(3 * ("list", "text")))


def _number(random: Random, step: Step) -> int:
    return 0 if step.numbers is None else between(random, *step.numbers)

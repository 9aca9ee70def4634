"""Small functions on lists of whole numbers, each described in words, and how each can be wrong.

A function is data: `{"shape": ..., slot: value, ...}`. A shape has lines of Python and a description, with places for
its slots: numbers, relations, a condition on a number ("C") and a value made of a number ("V"). A mistake is a line in
which a number, sign, variable or range is another, or two are exchanged. Every wrong line is right in another function,
so that no line shows by itself that it is wrong. In the lines `{0}`, `{1}`, ... stand for the names of variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from llm_envs.tasks.code.forms import (
    RELATIONS,
    SHIFTED,
    WORDS,
    condition_code,
    condition_words,
    draw_condition,
    draw_value,
    is_possible,
    next_to,
    normal_condition,
    one_step_away,
    turned,
    value_code,
    value_words,
    words_for_digits,
)
from llm_envs.tasks.code.shapes import SHAPES, TWINS
from llm_envs.tasks.draws import Random, pick

__all__ = [
    "NAMES",
    "N_NAMES",
    "PLACE",
    "SLOTS",
    "Function",
    "compares",
    "describe",
    "draw",
    "draw_written",
    "is_function",
    "key_of",
    "mistake",
    "near",
    "neighbours",
    "run",
    "slot_words",
    "slots_of",
    "source",
    "with_names",
]

Function = dict[str, Any]
N_NAMES = 6
"""Names of variables that a function may need."""
NAMES = ("value", "item", "left", "right", "total", "count", "best", "size", "place", "rest", "first", "last", "found")

SLOTS: dict[str, tuple[Any, ...]] = {
    "s": tuple(range(20)),
    "d": tuple(range(-9, 10)),
    "k": tuple(range(2, 25)),
    "n": (2, 3, 4, 5),
    "p": (0, 1, 2, 3),
    "R": tuple(RELATIONS),
    "O": (">", "<"),
    "A": ("+=", "-="),
    "B": ("+=", "-="),
    "P": ("+", "-"),
}
"""The values of each slot but for conditions and values."""


_SIMPLE = tuple(name for name, shape in SHAPES.items() if shape.is_simple)
_FIRST_STAGE = """\
{5} = []
for {4} in {0}:
    if [C {4}]:
        {5}.append([V {4}])"""
PLACE = re.compile(r"\[([A-Za-z])(?: ((?:[^][]|\[[^]]*\])+))?\]")


def draw(random: Random, *, is_simple: bool = False, n_stages: int = 1) -> Function:
    """Draw a function: of a simple shape, or of any; with two stages it makes a list first, and works with that."""
    shape = pick(random, _SIMPLE if is_simple else tuple(SHAPES))
    function: Function = {"shape": shape}
    for slot in slots_of(shape):
        if slot == "C":
            function[slot] = draw_condition(random, is_simple)
        elif slot == "V":
            function[slot] = draw_value(random, is_simple)
        else:
            function[slot] = pick(random, SLOTS[slot])
    if n_stages == 2:
        function["before"] = [draw_condition(random, False), draw_value(random, False)]
    return function


def draw_written(random: Random, function: Function) -> Function:
    """Draw a function that does the same, perhaps with other comparisons: at least 4 for greater than 3.

    A function that is written so has other numbers and signs than the description of the first has.
    """
    written = {slot: turned(random, what) if slot == "C" else what for slot, what in function.items()}
    if "before" in function:
        written["before"] = [turned(random, function["before"][0]), function["before"][1]]
    if compares(function["shape"]) and random() < 0.5:
        sign, step = SHIFTED[function["R"]]
        if function["k"] + step in SLOTS["k"]:
            written |= {"R": sign, "k": function["k"] + step}
    return written


def compares(shape: str) -> bool:
    """Whether the relation of a shape is one to its number."""
    return "[R] [k]" in SHAPES[shape].lines


def source(function: Function) -> list[str]:
    """Return the lines of a function, with `{0}`, `{1}`, ... for its names."""
    before = function.get("before")
    lines = ["def f({0}):"]
    if before is not None:
        first = dict(zip("CV", before, strict=True))
        lines += _filled(_FIRST_STAGE, first).split("\n")
    body = SHAPES[function["shape"]].lines.replace("{xs}", "{5}" if before is not None else "{0}")
    lines += _filled(body, function).split("\n")
    return [lines[0], *(f"    {line}" for line in lines[1:])]


def run(function: Function, inputs: Sequence[Sequence[int]]) -> list[str]:
    """Return what a function gives for each input, as a `repr`, without compiling it anew for other numbers."""
    lists = _first_stage(function, [list(xs) for xs in inputs])
    numbers: list[int] = []
    slots = tuple(
        (slot, with_names(what, numbers)) for slot, what in function.items() if slot not in ("shape", "before")
    )
    code = _compiled(function["shape"], slots)
    return [repr(code(xs, *numbers)) for xs in lists]


def _first_stage(function: Function, lists: list[list[int]]) -> list[list[int]]:
    if "before" not in function:
        return lists
    numbers: list[int] = []
    slots = tuple((slot, with_names(what, numbers)) for slot, what in zip("CV", function["before"], strict=True))
    code = _compiled("", slots)
    return [code(xs, *numbers) for xs in lists]


def with_names(what: Any, numbers: list[int]) -> Any:
    """Return a slot with names instead of its numbers, which are added to those of the function."""
    if type(what) is int:
        numbers.append(what)
        return f"n{len(numbers) - 1}"
    return tuple([with_names(part, numbers) for part in what]) if isinstance(what, list) else what


@lru_cache(maxsize=10_000)
def _compiled(shape: str, slots: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """Return a function of the list and of the numbers in the slots; without a shape, the first stage."""
    text = SHAPES[shape].lines.replace("{xs}", "{0}") if shape else f"{_FIRST_STAGE}\nreturn {{5}}"
    names = sorted(set(re.findall(r"\bn\d+\b", repr(slots))), key=lambda name: int(name[1:]))
    body = _filled(text, dict(slots)).format(*"abcdef").replace("\n", "\n    ")
    namespace: dict[str, Any] = {}
    exec(f"def f({', '.join(['a', *names])}):\n    {body}", namespace)
    compiled: Callable[..., Any] = namespace["f"]
    return compiled


def describe(function: Function, *, is_spoken: bool = False) -> str:
    """Return in words what a function should do with its list, perhaps with words for the numbers from 2 to 12."""

    def words(found: re.Match[str]) -> str:
        slot, what = found[1], function[found[1]]
        if slot == "C":
            return condition_words(what)
        if slot == "V":
            return value_words(what)
        return slot_words(slot, what)

    text = PLACE.sub(words, SHAPES[function["shape"]].words)
    if (before := function.get("before")) is not None:
        condition, value = condition_words(before[0]), value_words(before[1])
        text = f"First replace the list: for each number that {condition}, the new list has {value}. Then: {text}"
    return words_for_digits(text) if is_spoken else text


def slot_words(slot: str, what: Any) -> str:
    """Return a slot's number or sign in words."""
    if slot == "O":
        return "largest" if what == ">" else "smallest"
    return RELATIONS.get(what) or WORDS.get(what) or str(what)


def neighbours(function: Function) -> list[Function]:
    """Return the functions in which a variable, a range, a sign or a number is another, or two are exchanged."""
    return list(_neighbours(function))


def mistake(function: Function, neighbour: Function) -> tuple[int, str] | None:
    """Return the line, from 0, that differs in a neighbour, and how it stands there; None if it is not one line."""
    changed = [
        (i, new) for i, (old, new) in enumerate(zip(source(function), source(neighbour), strict=True)) if old != new
    ]
    return changed[0] if len(changed) == 1 else None


def is_function(value: Any) -> bool:
    """Whether data from elsewhere are a function."""
    if not isinstance(value, dict) or value.get("shape") not in SHAPES:
        return False
    if value.keys() - {"before"} != {"shape", *slots_of(value["shape"])}:
        return False
    parts = [value[slot] for slot in ("C", "V") if slot in value]
    before = value.get("before", [["one", ">", 0], ["same"]])
    if not isinstance(before, list) or len(before) != 2 or not all(map(is_possible, [*parts, *before])):
        return False
    return all(what in SLOTS[slot] for slot, what in value.items() if slot in SLOTS)


def key_of(function: Function) -> Function:
    """Return the same for functions that do the same: at least 4 is greater than 3."""
    conditions = {slot: normal_condition(function[slot]) for slot in ("C",) if slot in function}
    before = function.get("before")
    if compares(function["shape"]):
        _, conditions["R"], conditions["k"] = normal_condition(["one", function["R"], function["k"]])
    return {
        **function,
        **conditions,
        **({"before": [normal_condition(before[0]), before[1]]} if before is not None else {}),
    }


def near(function: Function) -> list[int]:
    """Return the numbers of a function, those one smaller or greater, and those that its first stage makes such.

    Inputs with these show its mistakes.
    """
    numbers = {number + step for number in _numbers_of(function) for step in (-1, 0, 1)} or {0}
    if "before" in function:
        made = _first_stage(function, [[x] for x in _RANGE])
        numbers |= {x for x, xs in zip(_RANGE, made, strict=True) if not numbers.isdisjoint(xs)}
    return sorted(numbers)


_RANGE = range(-30, 41)


def _numbers_of(function: Function) -> list[int]:
    parts = [value for slot, value in function.items() if slot != "before"]
    for part in list(function.get("before", ())) + parts:
        parts += part if isinstance(part, list) else ()
    return [part for part in parts if type(part) is int]


def slots_of(shape: str) -> list[str]:
    """Return the names of a shape's slots."""
    return sorted({found[1] for found in PLACE.finditer(SHAPES[shape].lines)})


def _filled(text: str, function: Function) -> str:
    def code(found: re.Match[str]) -> str:
        slot, x = found[1], found[2]
        if slot == "C":
            return condition_code(function[slot], x)
        return value_code(function[slot], x) if slot == "V" else str(function[slot])

    return PLACE.sub(code, text)


def _neighbours(function: Function) -> Iterator[Function]:
    if function["shape"] in TWINS:
        yield {**function, "shape": TWINS[function["shape"]]}
    for slot, what in sorted(function.items()):  # the same order for a copy with its keys in another order
        if slot in ("C", "V"):
            for other in one_step_away(what):
                yield {**function, slot: other}
        elif slot == "before":
            yield from ({**function, slot: [other, what[1]]} for other in one_step_away(what[0]))
            yield from ({**function, slot: [what[0], other]} for other in one_step_away(what[1]))
        elif slot in "Rdks":  # the others have few values: a table of lines would know the other one
            for other in next_to(what):
                if other in SLOTS[slot]:
                    yield {**function, slot: other}

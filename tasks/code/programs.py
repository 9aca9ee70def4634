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
    "LETTERS",
    "NAMES",
    "N_NAMES",
    "PLACE",
    "SLOTS",
    "Function",
    "compares",
    "describe",
    "draw",
    "draw_written",
    "facts_of",
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
LETTERS = "abcdefghijk"
"""Names of variables for functions that nobody sees."""
N_NAMES = len(LETTERS)
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
_STATE_STAGE = """\
def {6}({7}):
    if abs({7}) < [m]:
        return {7}
    return {6}(abs({7}) // [m]) + abs({7}) % [m]
{8} = []
{9} = [s]
for {10} in {5}:
    {9} = ({9} + {6}({10})) % [k]
    if [C {9}]:
        {8}.append({10} [P] {9})"""
_STATE_WORDS = (
    "The weight of a number whose absolute value is below [m] is the number itself. The weight of any other is the "
    "weight of the quotient of its absolute value on division by [m], rounded down, plus the remainder of that "
    "division. Now a state begins at [s]. For each number of the new list, add its weight to the state, and replace "
    "the state by its remainder on division by [k]; if the state then [C], the newest list has the number [P] the "
    "state."
)
_STATE_SLOTS = "mskPC"
_STATE_RANGES: dict[str, tuple[Any, ...]] = {"m": (2, 3, 4, 5, 10), "s": tuple(range(5)), "k": tuple(range(5, 13))}
PLACE = re.compile(r"\[([A-Za-z])(?: ((?:[^][]|\[[^]]*\])+))?\]")


def draw(random: Random, *, is_simple: bool = False, n_stages: int = 1) -> Function:
    """Draw a function: of a simple shape, or of any.

    With two stages it makes a list first, and works with that. With three it makes another list of this one, with a
    state and a recursion.
    """
    shape = pick(random, _SIMPLE if is_simple else tuple(SHAPES))
    function: Function = {"shape": shape}
    for slot in slots_of(shape):
        if slot == "C":
            function[slot] = draw_condition(random, is_simple)
        elif slot == "V":
            function[slot] = draw_value(random, is_simple)
        else:
            function[slot] = pick(random, SLOTS[slot])
    if n_stages >= 2:
        function["before"] = [draw_condition(random, False), draw_value(random, False)]
    if n_stages == 3:
        function["state"] = [pick(random, values) for values in _STATE_RANGES.values()]
        function["state"] += [pick(random, SLOTS["P"]), draw_condition(random, False)]
    return function


def draw_written(random: Random, function: Function) -> Function:
    """Draw a function that does the same, perhaps with other comparisons: at least 4 for greater than 3.

    A function that is written so has other numbers and signs than the description of the first has.
    """
    written = {slot: turned(random, what) if slot == "C" else what for slot, what in function.items()}
    if "before" in function:
        written["before"] = [turned(random, function["before"][0]), function["before"][1]]
    if "state" in function:
        written["state"] = [*function["state"][:-1], turned(random, function["state"][-1])]
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
    stages = [_filled(text, slots) for text, slots in _stages_of(function)]
    lines = "\n".join([*stages, _filled(SHAPES[function["shape"]].lines, function)])
    return ["def f({0}):", *(f"    {line}" for line in lines.replace("{xs}", _LISTS[len(stages)]).split("\n"))]


_LISTS = ("{0}", "{5}", "{8}")
"""The list after so many stages."""


def _stages_of(function: Function) -> list[tuple[str, Function]]:
    """Return the lines and the slots of the stages before the shape."""
    stages = []
    if "before" in function:
        stages.append((_FIRST_STAGE, dict(zip("CV", function["before"], strict=True))))
    if "state" in function:
        stages.append((_STATE_STAGE, dict(zip(_STATE_SLOTS, function["state"], strict=True))))
    return stages


def run(function: Function, inputs: Sequence[Sequence[int]]) -> list[str]:
    """Return what a function gives for each input, as a `repr`, without compiling it anew for other numbers."""
    slots = {slot: what for slot, what in function.items() if slot not in ("shape", "before", "state")}
    lists = _run_stages(function, [list(xs) for xs in inputs])
    return list(map(repr, _run(SHAPES[function["shape"]].lines.replace("{xs}", "{0}"), slots, lists)))


def _run_stages(function: Function, lists: list[Any]) -> list[Any]:
    for place, (text, slots) in enumerate(_stages_of(function)):
        before, after = _LISTS[place], _LISTS[place + 1]
        lists = _run(f"{text.replace(f'in {before}:', 'in {0}:')}\nreturn {after}", slots, lists)
    return lists


def _run(text: str, slots: Function, lists: list[Any]) -> list[Any]:
    numbers: list[int] = []
    code = _compiled(text, tuple((slot, with_names(what, numbers)) for slot, what in slots.items()))
    return [code(xs, *numbers) for xs in lists]


def with_names(what: Any, numbers: list[int]) -> Any:
    """Return a slot with names instead of its numbers, which are added to those of the function."""
    if type(what) is int:
        numbers.append(what)
        return f"n{len(numbers) - 1}"
    return tuple([with_names(part, numbers) for part in what]) if isinstance(what, list) else what


@lru_cache(maxsize=10_000)
def _compiled(text: str, slots: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """Return a function of the list `{0}` and of the numbers in the slots."""
    names = sorted(set(re.findall(r"\bn\d+\b", repr(slots))), key=lambda name: int(name[1:]))
    body = _filled(text, dict(slots)).format(*LETTERS).replace("\n", "\n    ")
    namespace: dict[str, Any] = {}
    exec(f"def f({', '.join(['a', *names])}):\n    {body}", namespace)
    compiled: Callable[..., Any] = namespace["f"]
    return compiled


def describe(function: Function, *, is_spoken: bool = False) -> str:
    """Return in words what a function should do with its list, perhaps with words for the numbers from 2 to 12."""
    text = _said(SHAPES[function["shape"]].words, function)
    if "state" in function:
        stage = _said(_STATE_WORDS, dict(zip(_STATE_SLOTS, function["state"], strict=True)))
        text = f"{stage} Then, with the newest list: {text}"
    if (before := function.get("before")) is not None:
        condition, value = condition_words(before[0]), value_words(before[1])
        then = "" if "state" in function else "Then: "
        text = f"First replace the list: for each number that {condition}, the new list has {value}. {then}{text}"
    return words_for_digits(text) if is_spoken else text


def _said(text: str, function: Function) -> str:
    def words(found: re.Match[str]) -> str:
        slot, what = found[1], function[found[1]]
        if slot == "C":
            return condition_words(what)
        return value_words(what) if slot == "V" else slot_words(slot, what)

    return PLACE.sub(words, text)


def facts_of(function: Function) -> list[Any]:
    """Return what somebody must know to judge the lines of a function: its numbers, signs and kinds, as they are told.

    The same facts have the same places in a function and in its neighbours, if no more than a number or sign differs.
    """
    told = [found[1] for found in PLACE.finditer(SHAPES[function["shape"]].words)]
    parts = [function.get("before", []), function.get("state", []), function["shape"]]
    return list(_leaves([*parts, *(function[slot] for slot in dict.fromkeys(told))]))


def _leaves(what: Any) -> Iterator[Any]:
    if not isinstance(what, list):
        yield what
        return
    for part in what:
        yield from _leaves(part)


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
    if value.keys() - {"before", "state"} != {"shape", *slots_of(value["shape"])}:
        return False
    if "state" in value and ("before" not in value or not _is_state(value["state"])):
        return False
    parts = [value[slot] for slot in ("C", "V") if slot in value]
    before = value.get("before", [["one", ">", 0], ["same"]])
    if not isinstance(before, list) or len(before) != 2 or not all(map(is_possible, [*parts, *before])):
        return False
    return all(what in SLOTS[slot] for slot, what in value.items() if slot in SLOTS)


def _is_state(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != len(_STATE_SLOTS) or not is_possible(value[-1]):
        return False
    ranges = (*_STATE_RANGES.values(), SLOTS["P"])
    return all(type(what) in (int, str) and what in values for what, values in zip(value, ranges, strict=False))


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
        **(
            {"state": [*function["state"][:-1], normal_condition(function["state"][-1])]} if "state" in function else {}
        ),
    }


def near(function: Function) -> list[int]:
    """Return the numbers of a function, those one smaller or greater, and those that its first stage makes such.

    Inputs with these show its mistakes.
    """
    numbers = {number + step for number in _numbers_of(function) for step in (-1, 0, 1)} or {0}
    if "before" in function:
        made = _run_stages({slot: function[slot] for slot in ("shape", "before")}, [[x] for x in _RANGE])
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
        elif slot == "state":
            yield from ({**function, slot: other} for other in _other_states(what))
        elif slot in "Rdks":  # the others have few values: a table of lines would know the other one
            for other in next_to(what):
                if other in SLOTS[slot]:
                    yield {**function, slot: other}


def _other_states(state: list[Any]) -> Iterator[list[Any]]:
    for place, what in enumerate(state):
        for other in next_to(what):
            if _is_state(changed := [*state[:place], other, *state[place + 1 :]]):
                yield changed

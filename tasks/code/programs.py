"""Small functions on lists of whole numbers, each described in words, and how each can be wrong.

A function is data: `{"shape": ..., slot: value, ...}`. A shape has lines of Python and a description, with places for
its slots: numbers, relations, a condition on a number ("C") and a value made of a number ("V"). A mistake is a line in
which one number or sign is another. Every wrong line is right in another function, so that no line shows by itself that
it is wrong. In the lines `{0}`, `{1}`, ... stand for the names of variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from llm_envs.tasks.draws import Random, between, pick

__all__ = [
    "NAMES",
    "N_NAMES",
    "PLACE",
    "SHAPES",
    "SLOTS",
    "Function",
    "condition_code",
    "condition_words",
    "describe",
    "draw",
    "draw_condition",
    "draw_value",
    "is_function",
    "is_possible",
    "key_of",
    "mistake",
    "neighbours",
    "next_to",
    "normal_condition",
    "numbers_of",
    "one_step_away",
    "run",
    "slot_words",
    "slots_of",
    "source",
    "value_code",
    "value_words",
    "with_names",
]

Function = dict[str, Any]
N_NAMES = 6
"""Names of variables that a function may need."""
NAMES = ("value", "item", "left", "right", "total", "count", "best", "size", "place", "rest", "first", "last", "found")

_RELATIONS = {">": "greater than", ">=": "at least", "<": "less than", "<=": "at most"}
_OTHERS = {"==": ("!=",), "!=": ("==",), "+": ("-",), "-": ("+",), "min": ("max",), "max": ("min",)} | {
    sign: tuple(other for other in _RELATIONS if other != sign) for sign in _RELATIONS
}
"""The signs for which a sign can be mistaken."""
_STEPS = (-3, -2, -1, 1, 2, 3)
"""By how much a number can be wrong."""
_WORDS = {"+=": "add", "-=": "subtract", "+": "plus", "-": "minus", "min": "smaller", "max": "larger"}
SLOTS: dict[str, tuple[Any, ...]] = {
    "s": tuple(range(20)),
    "d": tuple(range(-9, 10)),
    "k": tuple(range(2, 25)),
    "n": (2, 3, 4, 5),
    "p": (0, 1, 2, 3),
    "R": tuple(_RELATIONS),
    "O": (">", "<"),
    "A": ("+=", "-="),
    "B": ("+=", "-="),
    "P": ("+", "-"),
}
"""The values of each slot but for conditions and values."""


class Shape(NamedTuple):
    """A kind of function."""

    words: str
    lines: str
    """Of its body, with `{xs}` for the list."""
    is_simple: bool = False


SHAPES: dict[str, Shape] = {
    "total": Shape(
        "Begin a total at [s]. For each number that [C], [A] [V]. Return the total.",
        """\
{1} = [s]
for {2} in {xs}:
    if [C {2}]:
        {1} [A] [V {2}]
return {1}""",
        True,
    ),
    "signed": Shape(
        "Begin a total at [s]. For each number that [C], [A] [V]; for each other number, [B] the number itself. Return "
        "the total.",
        """\
{1} = [s]
for {2} in {xs}:
    if [C {2}]:
        {1} [A] [V {2}]
    else:
        {1} [B] {2}
return {1}""",
    ),
    "places": Shape(
        "Count every number that [C]. The count begins at [s], and at the place [p] (the first is 0).",
        """\
{1} = [s]
for {2} in range([p], len({xs})):
    if [C {xs}[{2}]]:
        {1} += 1
return {1}""",
        True,
    ),
    "extreme": Shape(
        "For each number that [C], take [V]. Return the [O] value taken, or [d] if there is none.",
        """\
{1} = None
for {2} in {xs}:
    if [C {2}]:
        {3} = [V {2}]
        if {1} is None or {3} [O] {1}:
            {1} = {3}
if {1} is None:
    return [d]
return {1}""",
        True,
    ),
    "run": Shape(
        "Return the length of the longest run of neighbours each of which [C], or [d] if that is below [n].",
        """\
{1} = 0
{2} = 0
for {3} in {xs}:
    if [C {3}]:
        {2} += 1
        {1} = max({1}, {2})
    else:
        {2} = 0
if {1} < [n]:
    return [d]
return {1}""",
    ),
    "place": Shape(
        "Count, from the left, every number that [C]. Return the place (the first is 0) at which the count reaches "
        "[n], or [d] if it never does.",
        """\
{1} = 0
for {2} in range(len({xs})):
    if [C {xs}[{2}]]:
        {1} += 1
        if {1} == [n]:
            return {2}
return [d]""",
        True,
    ),
    "pairs": Shape(
        "Count the pairs of a number that [C] and any later number, for which the first [P] the second is [R] [k].",
        """\
{1} = 0
for {2} in range(len({xs})):
    if [C {xs}[{2}]]:
        for {3} in range({2} + 1, len({xs})):
            if {xs}[{2}] [P] {xs}[{3}] [R] [k]:
                {1} += 1
return {1}""",
    ),
    "tank": Shape(
        "A level begins at [s]. For each number, [A] [V]; then a level above [k] becomes [k], and one below [d] "
        "becomes [d]. Return the level.",
        """\
{1} = [s]
for {2} in {xs}:
    {1} [A] [V {2}]
    {1} = min({1}, [k])
    {1} = max({1}, [d])
return {1}""",
    ),
    "crossing": Shape(
        "A total begins at [s]. For each number, [A] [V]. Return the place (the first is 0) of the number after which "
        "the total is [R] [k] for the first time, or [d] if it never is.",
        """\
{1} = [s]
for {2} in range(len({xs})):
    {1} [A] [V {xs}[{2}]]
    if {1} [R] [k]:
        return {2}
return [d]""",
    ),
    "jumps": Shape(
        "Count the numbers for which the number [P] the one before it is [R] [k]. The count begins at [s].",
        """\
{1} = [s]
for {2} in range(1, len({xs})):
    if {xs}[{2}] [P] {xs}[{2} - 1] [R] [k]:
        {1} += 1
return {1}""",
        True,
    ),
    "chosen": Shape(
        "For each number that [C], take [V]. Return the list of the values taken, each once, without those that are "
        "[R] [k].",
        """\
{1} = []
for {2} in {xs}:
    if [C {2}]:
        {3} = [V {2}]
        if not ({3} [R] [k] or {3} in {1}):
            {1}.append({3})
return {1}""",
    ),
    "windows": Shape(
        "Add up every [n] neighbouring numbers. Return the [O] sum that [C], or [d] if there is none.",
        """\
{1} = None
for {2} in range(len({xs}) - [n] + 1):
    {3} = sum({xs}[{2}:{2} + [n]])
    if [C {3}]:
        if {1} is None or {3} [O] {1}:
            {1} = {3}
if {1} is None:
    return [d]
return {1}""",
    ),
    "blocks": Shape(
        "Cut the list into blocks of [n] numbers; the last may be shorter. A block's total begins at [s]; for each of "
        "its numbers, [A] [V]. Return the list of the totals.",
        """\
{1} = []
for {2} in range(0, len({xs}), [n]):
    {3} = [s]
    for {4} in {xs}[{2}:{2} + [n]]:
        {3} [A] [V {4}]
    {1}.append({3})
return {1}""",
    ),
    "records": Shape(
        "A record begins at [k]. Each number that is [R] the record becomes the record. Return how often a number that "
        "[C] became the record.",
        """\
{1} = 0
{2} = [k]
for {3} in {xs}:
    if {3} [R] {2}:
        {2} = {3}
        if [C {3}]:
            {1} += 1
return {1}""",
    ),
}
_SIMPLE = tuple(name for name, shape in SHAPES.items() if shape.is_simple)
_FIRST_STAGE = """\
{5} = []
for {4} in {0}:
    if [C {4}]:
        {5}.append([V {4}])"""
PLACE = re.compile(r"\[([A-Za-z])(?: ((?:[^][]|\[[^]]*\])+))?\]")


# Conditions: [kind, sign, number, ...]; values: [kind, ...].


def condition_code(condition: Sequence[Any], x: str) -> str:
    """Return a condition on x as Python."""
    kind, sign, a, *more = condition
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
    if kind == "one":
        return f"is {_RELATIONS[sign]} {a}"
    if kind == "rest":
        return f"{'leaves' if sign == '==' else 'does not leave'} the remainder {more[0]} on division by {a}"
    if kind == "digit":
        return f"{'has' if sign == '==' else 'does not have'} {a} as its last digit"
    return f"is {_RELATIONS[sign]} {a} {kind} {_RELATIONS[more[0]]} {more[1]}"


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
        return f"{rest[0]} times the number {_WORDS[rest[1]]} {rest[2]}"
    if kind == "distance":
        return f"its distance from {rest[0]}"
    if kind == "bound":
        return f"the {_WORDS[rest[0]]} of the number and {rest[1]}"
    return f"its {'quotient (rounded down)' if kind == 'quotient' else 'remainder'} on division by {rest[0]}"


def draw_condition(random: Random, is_simple: bool) -> list[Any]:
    """Draw a condition."""
    kind = pick(random, ("one", "rest", "digit", "one") if is_simple else ("one", "rest", "digit", "and", "or"))
    if kind == "one":
        return ["one", pick(random, tuple(_RELATIONS)), between(random, -4, 14)]
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
    lists: list[Any] = [list(xs) for xs in inputs]
    numbers: list[int] = []
    if "before" in function:
        code = _compiled(
            "", (("C", with_names(function["before"][0], numbers)), ("V", with_names(function["before"][1], numbers)))
        )
        lists = [code(xs, *numbers) for xs in lists]
        numbers = []
    slots = tuple(
        (slot, with_names(what, numbers)) for slot, what in function.items() if slot not in ("shape", "before")
    )
    code = _compiled(function["shape"], slots)
    return [repr(code(xs, *numbers)) for xs in lists]


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


def describe(function: Function) -> str:
    """Return in words what a function should do with its list."""

    def words(found: re.Match[str]) -> str:
        slot, what = found[1], function[found[1]]
        if slot == "C":
            return condition_words(what)
        if slot == "V":
            return value_words(what)
        return slot_words(slot, what)

    text = PLACE.sub(words, SHAPES[function["shape"]].words)
    if (before := function.get("before")) is None:
        return text
    condition, value = condition_words(before[0]), value_words(before[1])
    return f"First replace the list: for each number that {condition}, the new list has {value}. Then: {text}"


def slot_words(slot: str, what: Any) -> str:
    """Return a slot's number or sign in words."""
    if slot == "O":
        return "largest" if what == ">" else "smallest"
    return _RELATIONS.get(what) or _WORDS.get(what) or str(what)


def neighbours(function: Function) -> list[Function]:
    """Return the functions in which one sign or one number is another, by at most 3."""
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
    return {
        **function,
        **conditions,
        **({"before": [normal_condition(before[0]), before[1]]} if before is not None else {}),
    }


def numbers_of(function: Function) -> list[int]:
    """Return the numbers of a function: inputs with these and their neighbours show its mistakes."""
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


def one_step_away(parts: list[Any]) -> Iterator[list[Any]]:
    """Yield a condition or a value with one of its signs and numbers changed."""
    for i, part in enumerate(parts[1:], 1):
        for other in next_to(part):
            changed = [*parts[:i], other, *parts[i + 1 :]]
            if is_possible(changed):
                yield changed


def is_possible(parts: Any) -> bool:
    """Whether a condition or a value can be drawn."""
    if not isinstance(parts, list) or not parts:
        return False
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
    "one": lambda form, a, b: len(form) == 2 and form[0] in _RELATIONS and form[1] is int and -4 <= a <= 14,
    "digit": lambda form, a, b: form in _TESTS and 0 <= a <= 9,
    "scaled": lambda form, a, b: form in [("+", int, int), ("-", int, int)] and 2 <= a <= 9 and 1 <= b <= 9,
    "distance": lambda form, a, b: form == (int,) and -3 <= a <= 12,
    "bound": lambda form, a, b: form in [("min", int), ("max", int)] and 0 <= a <= 12,
    "quotient": lambda form, a, b: form == (int,) and 2 <= a <= 7,
    "rest": lambda form, a, b: (
        (form == (int,) and 2 <= a <= 7) or (form[:2] in _TESTS and form[2:] == (int,) and 2 <= a <= 6 and 0 <= b < a)
    ),
}
"""Whether a kind has this form, the signs and then the types of its numbers, of which a and b are the first."""


def next_to(what: Any) -> tuple[Any, ...]:
    """Return what a sign or a number can be mistaken for."""
    return _OTHERS.get(what, ()) if isinstance(what, str) else tuple(what + step for step in _STEPS)


def normal_condition(condition: list[Any]) -> list[Any]:
    """Write a condition without "at least" and "at most"."""
    parts = list(condition)
    for i, part in enumerate(parts):
        if part in (">=", "<="):
            parts[i], parts[i + 1] = part[0], parts[i + 1] + (-1 if part == ">=" else 1)
    return parts

"""Small Python packages as data: their functions, described in words and written as modules, and how each can be wrong.

A package is a list of parts, each a dict with the name of its function. A part may use parts before it:

- a rule tells whether a number has a property: `{"kind": "rule", "name": ..., "C": condition}`, perhaps together with
  another rule: `"with": ["or", name]`;
- a value makes a number of a number: `{"kind": "value", "name": ..., "V": value}`;
- a selection makes a list of the values of the numbers that obey a rule: `{"kind": "selection", "rule", "value"}`;
- a step changes a list: `{"kind": "step", "step": [name, number]}`, of `pipelines.STEPS`;
- a measure goes through a list: `{"kind": "measure", "function": {"shape": ..., slot: ...}, "rule", "value"}`, of
  `shapes.SHAPES`;
- a report calls selections and steps, and a measure at the end: `{"kind": "report", "calls": [name, ...]}`.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from llm_envs.env import canonical_json
from llm_envs.tasks.code.forms import (
    draw_condition,
    draw_value,
    is_possible,
    next_to,
    normal_condition,
    one_step_away,
    turned,
)
from llm_envs.tasks.code.pipelines import STEPS
from llm_envs.tasks.code.programs import (
    PLACE,
    SLOTS,
    compares,
    draw_written,
    slots_of,
    with_names,
)
from llm_envs.tasks.code.shapes import SHAPES, TWINS
from llm_envs.tasks.code.spellings import N_SPELLINGS, spell_condition, spell_value
from llm_envs.tasks.draws import Random, between, pick, sample
from llm_envs.tasks.language.vocabulary import VOCABULARY

__all__ = [
    "MODULES",
    "Part",
    "Parts",
    "draw_parts",
    "draw_spellings",
    "draw_turned",
    "function_of",
    "functions",
    "is_package",
    "key_of",
    "measure_lines",
    "neighbours",
    "numbers_in",
    "takes_list",
    "users",
    "uses",
    "with_mistakes",
]

Part = dict[str, Any]
Parts = list[Part]

MODULES = {
    "rule": "rules",
    "value": "values",
    "selection": "lists",
    "step": "lists",
    "measure": "measures",
    "report": "reports",
}
"""The module in which each kind of part stands."""
_NAMES = {"rule": "is_{}", "value": "{}_value", "selection": "{}_list", "step": "{}_list", "measure": "{}_score",
          "report": "{}_report"}  # fmt: skip
_FIELDS: dict[str, tuple[str, ...]] = {
    "rule": ("C",),
    "value": ("V",),
    "selection": ("rule", "value"),
    "step": ("step",),
    "measure": ("function", "rule", "value"),
    "report": ("calls",),
}
_MOST_PARTS = 80
_LOCALS = ("xs", "result", "item", "taken", "other", "rest")
"""Names of the variables of a measure."""


def draw_parts(random: Random, n: Mapping[str, int], *, is_linked: bool) -> Parts:
    """Draw a package.

    Args:
        random: `self.np_random.random`.
        n: How many parts of each kind, in this order: "rule", "value", "list" (selections and steps), "measure" and
            "report".
        is_linked: Whether rules may refer to other rules.
    """
    words = iter(sample(random, _WORDS, sum(n.values())))
    parts: Parts = []
    made: dict[str, Callable[[Any], Any]] = {}
    for group, count in n.items():
        for place in range(count):
            kind = ("selection", "step")[place % 2] if group == "list" else group
            name = _NAMES[kind].format(next(words))
            for _ in range(_MOST_DRAWS):
                part = {"kind": kind, "name": name, **_draw_fields(random, kind, parts, is_linked)}
                made[name] = function_of(part, made)
                if _is_lively(kind, made[name]):
                    break
            parts.append(part)
    return parts


def draw_turned(random: Random, parts: Parts) -> Parts:
    """Draw a package that does the same, perhaps with other comparisons: at least 4 for greater than 3."""
    written = [dict(part) for part in parts]
    for part in written:
        if "C" in part:
            part["C"] = turned(random, part["C"])
        if "function" in part:
            part["function"] = draw_written(random, part["function"])
    return written


def _draw_fields(random: Random, kind: str, parts: Parts, is_linked: bool) -> dict[str, Any]:
    def known(*kinds: str) -> list[str]:
        return [part["name"] for part in parts if part["kind"] in kinds]

    if kind == "rule":
        if is_linked and len(parts) >= 2 and random() < 0.6:
            return {"C": _simple_condition(random), "with": [pick(random, _LINKS), pick(random, known("rule"))]}
        return {"C": draw_condition(random, False)}
    if kind == "value":
        return {"V": _telling_value(random)}
    if kind == "step":
        step = pick(random, _NUMBERED_STEPS)
        return {"step": [step, between(random, *STEPS[step].numbers or (0, 0))]}
    if kind == "report":
        calls = sample(random, lists := known("selection", "step"), between(random, 2, min(3, len(lists))))
        return {"calls": [*calls, pick(random, known("measure"))]}
    used = {"rule": pick(random, known("rule")), "value": pick(random, known("value"))}
    if kind == "selection":
        return used
    shape = pick(random, tuple(SHAPES))
    slots = {slot: pick(random, SLOTS[slot]) for slot in slots_of(shape) if slot in SLOTS}
    return {"function": {"shape": shape, **slots}, **used}


def _is_lively(kind: str, function: Callable[[Any], Any]) -> bool:
    """Whether a function gives different things for different numbers or lists."""
    if kind == "rule":
        return 0.1 <= sum(map(function, _NUMBERS)) / len(_NUMBERS) <= 0.9
    if kind == "value":
        return len(set(map(function, _NUMBERS))) >= 3
    outcomes = [function(xs) for xs in _PROBES]
    if kind in ("selection", "step") and sum(map(bool, outcomes)) < len(_PROBES) * 0.7:
        return False
    return len(set(map(repr, outcomes))) >= 3


_MOST_DRAWS = 60
_NUMBERS = range(-12, 30)
_PROBES = tuple([(7 * i * i + 11 * i * j + 5 * j * j + 3 * j) % 37 - 12 for j in range(5 + i % 4)] for i in range(10))
"""Lists of numbers that look random."""
_WORDS = tuple(word for word in VOCABULARY if 4 <= len(word) <= 7 and word not in ("every", "lists"))
_LINKS = ("or", "and", "and not")
_NUMBERED_STEPS = tuple(name for name, step in STEPS.items() if step.numbers and name not in ("times", "add"))


def _simple_condition(random: Random) -> list[Any]:
    while (condition := draw_condition(random, True))[0] in ("and", "or"):
        pass
    return condition


def _telling_value(random: Random) -> list[Any]:
    while len(value := draw_value(random, False)) == 1:  # without a number there is nothing to be wrong
        pass
    return value


# The behaviour of the functions.


def functions(parts: Parts) -> dict[str, Callable[[Any], Any]]:
    """Return the functions of a package by name."""
    made: dict[str, Callable[[Any], Any]] = {}
    for part in parts:
        made[part["name"]] = function_of(part, made)
    return made


def function_of(part: Part, made: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return the function of a part.

    Args:
        part: The part.
        made: The functions before it, by name.
    """
    return _MAKERS[part["kind"]](part, made)


def takes_list(part: Part) -> bool:
    """Whether the function of a part takes a list, not a number."""
    return part["kind"] not in ("rule", "value")


def _make_rule(part: Part, made: Mapping[str, Any]) -> Callable[[Any], Any]:
    numbers: list[int] = []
    own, link = _expression("C", with_names(part["C"], numbers)), part.get("with")
    if link is None:
        return lambda x: own(x, *numbers)
    how, other = link[0], made[link[1]]
    if how == "or":
        return lambda x: other(x) or own(x, *numbers)
    if how == "and":
        return lambda x: other(x) and own(x, *numbers)
    return lambda x: not other(x) and own(x, *numbers)


def _make_value(part: Part, made: Mapping[str, Any]) -> Callable[[Any], Any]:
    numbers: list[int] = []
    own = _expression("V", with_names(part["V"], numbers))
    return lambda x: own(x, *numbers)


@lru_cache(maxsize=1_000)
def _expression(slot: str, form: tuple[Any, ...]) -> Callable[..., Any]:
    """Return a condition or a value as a function of a number and of the numbers in the form."""
    code = (spell_condition if slot == "C" else spell_value)(form, "x", 0)
    names = sorted(set(re.findall(r"\bn\d+\b", repr(form))))
    made: Callable[..., Any] = eval(f"lambda {', '.join(['x', *names])}: {code}")
    return made


def _make_selection(part: Part, made: Mapping[str, Any]) -> Callable[[Any], Any]:
    rule, value = made[part["rule"]], made[part["value"]]
    return lambda xs: [value(x) for x in xs if rule(x)]


def _make_step(part: Part, made: Mapping[str, Any]) -> Callable[[Any], Any]:
    name, k = part["step"]
    return lambda xs: STEPS[name].apply(xs, k)


def _make_measure(part: Part, made: Mapping[str, Any]) -> Callable[[Any], Any]:
    numbers: list[int] = []
    slots = tuple((slot, with_names(what, numbers)) for slot, what in part["function"].items() if slot != "shape")
    code = _measure(part["function"]["shape"], slots, len(numbers))
    rule, value = made[part["rule"]], made[part["value"]]
    return lambda xs: code(xs, rule, value, *numbers)


@lru_cache(maxsize=5_000)
def _measure(shape: str, slots: tuple[tuple[str, Any], ...], n_numbers: int) -> Callable[..., Any]:
    lines = measure_lines({"shape": shape, **dict(slots)}, "rule", "value")
    head = ", ".join(["xs", "rule", "value", *(f"n{i}" for i in range(n_numbers))])
    namespace: dict[str, Any] = {}
    exec("\n".join([f"def f({head}):", *lines]), namespace)
    made: Callable[..., Any] = namespace["f"]
    return made


def _make_report(part: Part, made: Mapping[str, Any]) -> Callable[[Any], Any]:
    calls = [made[name] for name in part["calls"]]

    def report(xs: Any) -> Any:
        for call in calls:
            xs = call(xs)
        return xs

    return report


_MAKERS: dict[str, Callable[[Part, Mapping[str, Any]], Callable[[Any], Any]]] = {
    "rule": _make_rule,
    "value": _make_value,
    "selection": _make_selection,
    "step": _make_step,
    "measure": _make_measure,
    "report": _make_report,
}


def measure_lines(function: Mapping[str, Any], rule: str, value: str) -> list[str]:
    """Return the lines of a measure's body, with the names of the rule and of the value that it uses."""

    def code(found: Any) -> str:
        if found[1] in "CV":
            return f"{rule if found[1] == 'C' else value}({found[2]})"
        return str(function[found[1]])

    text = PLACE.sub(code, SHAPES[function["shape"]].lines.replace("{xs}", "{0}")).format(*_LOCALS)
    return [f"    {line}" for line in text.split("\n")]


def users(parts: Parts, place: int) -> set[str]:
    """Return the names of the part at a place and of all that use it."""
    names = {parts[place]["name"]}
    for part in parts[place + 1 :]:
        if names & set(uses(part)):
            names.add(part["name"])
    return names


def uses(part: Part) -> list[str]:
    """Return the names of the parts that the code of a part calls."""
    if part["kind"] == "report":
        return list(part["calls"])
    if part["kind"] == "measure":
        slots = slots_of(part["function"]["shape"])
        return [part[field] for field, slot in (("rule", "C"), ("value", "V")) if slot in slots]
    return [part[field] for field in ("rule", "value") if field in part] + part.get("with", [])[1:]


# Mistakes.


def neighbours(parts: Parts, place: int) -> list[Part]:
    """Return how the part at a place can be wrong: another number, sign, function that it uses, or order of calls."""
    return [part for part in _changed(parts, place) if part != parts[place]]


def with_mistakes(parts: Parts, mistakes: Sequence[Sequence[int]]) -> Parts:
    """Return the package with mistakes, each a place and the number of a neighbour of the part there."""
    wrong = list(parts)
    for place, number in mistakes:
        wrong[place] = neighbours(parts, place)[number]
    return wrong


def _changed(parts: Parts, place: int) -> Iterator[Part]:
    part = parts[place]
    for slot in ("C", "V"):
        if slot in part:
            yield from ({**part, slot: other} for other in one_step_away(part[slot]))
    if part["kind"] == "step":
        name, k = part["step"]
        low, high = STEPS[name].numbers or (0, 0)
        yield from ({**part, "step": [name, other]} for other in next_to(k) if low <= other <= high)
    if part["kind"] == "measure":
        if (shape := part["function"]["shape"]) in TWINS:
            yield {**part, "function": {**part["function"], "shape": TWINS[shape]}}
        for slot, what in sorted(part["function"].items()):
            if slot in ("R", "d", "k", "s"):
                others = [other for other in next_to(what) if other in SLOTS[slot]]
                yield from ({**part, "function": {**part["function"], slot: other}} for other in others)
    if part["kind"] in ("selection", "measure"):
        for field in ("rule", "value"):
            if part[field] in uses(part):
                others = [other["name"] for other in parts[:place] if other["kind"] == field]
                yield from ({**part, field: other} for other in others)
    if "with" in part:
        yield from ({**part, "with": [how, part["with"][1]]} for how in _LINKS)
        others = [other["name"] for other in parts[:place] if other["kind"] == "rule"]
        yield from ({**part, "with": [part["with"][0], other]} for other in others)
    if part["kind"] == "report":
        calls = part["calls"]
        for i in range(len(calls) - 2):
            yield {**part, "calls": [*calls[:i], calls[i + 1], calls[i], *calls[i + 2 :]]}
        lasts = [other["name"] for other in parts[:place] if other["kind"] == "measure"]
        yield from ({**part, "calls": [*calls[:-1], last]} for last in lasts)


def numbers_in(parts: Parts) -> list[int]:
    """Return the numbers of a package: inputs with these and their neighbours show its mistakes."""
    found: list[int] = []

    def look(what: Any) -> None:
        if type(what) is int:
            found.append(what)
        elif isinstance(what, list | dict):
            for part in what.values() if isinstance(what, dict) else what:
                look(part)

    look(parts)
    return sorted({number for number in found if -40 <= number <= 60})


# Other people's.


def key_of(parts: Parts) -> list[str]:
    """Return the same for packages that do the same: without names, each function written out in full, sorted."""
    whole: dict[str, Any] = {}
    for part in parts:
        fields = {key: value for key, value in part.items() if key not in ("name", *_FIELDS["selection"], "calls")}
        if "C" in fields:
            fields["C"] = normal_condition(fields["C"])
        if "with" in fields:
            fields["with"] = fields["with"][0]
        if "function" in fields and compares(fields["function"]["shape"]):
            _, sign, number = normal_condition(["one", fields["function"]["R"], fields["function"]["k"]])
            fields["function"] = {**fields["function"], "R": sign, "k": number}
        whole[part["name"]] = [fields, *(whole[name] for name in uses(part))]
    return sorted(map(canonical_json, whole.values()))


def is_package(parts: Any) -> bool:
    """Whether data from elsewhere are a package."""
    if not isinstance(parts, list) or not 2 <= len(parts) <= _MOST_PARTS:
        return False
    kinds: dict[str, str] = {}
    for part in parts:
        if not isinstance(part, dict) or not _is_part(part, kinds):
            return False
        kinds[part["name"]] = part["kind"]
    return True


def _is_part(part: Part, kinds: Mapping[str, str]) -> bool:
    """Whether this is a part of the functions before it, whose kinds are given."""
    kind, name = part.get("kind"), part.get("name")
    if not isinstance(kind, str) or kind not in _FIELDS or not isinstance(name, str) or name in kinds:
        return False
    if not _is_name(name, kind) or part.keys() - {"with"} != {"kind", "name", *_FIELDS[kind]}:
        return False

    def is_one(what: Any, *wanted: str) -> bool:
        return isinstance(what, str) and kinds.get(what) in wanted

    if "with" in part:
        link = part["with"]
        if kind != "rule" or not (isinstance(link, list) and len(link) == 2 and is_one(link[1], "rule")):
            return False
        if link[0] not in _LINKS or part["C"][:1] in (["and"], ["or"]):
            return False
    if kind in ("rule", "value"):
        return is_possible(part["C" if kind == "rule" else "V"]) and _is_condition(part) == (kind == "rule")
    if kind in ("selection", "measure") and not (is_one(part["rule"], "rule") and is_one(part["value"], "value")):
        return False
    if kind == "step":
        step = part["step"]
        numbers = isinstance(step, list) and list(map(type, step)) == [str, int] and step[0] in STEPS
        return numbers and (limits := STEPS[step[0]].numbers) is not None and limits[0] <= step[1] <= limits[1]
    if kind == "measure":
        return _is_function(part["function"])
    calls = part.get("calls", ["", ""])
    if kind != "report":
        return True
    return (
        isinstance(calls, list)
        and 2 <= len(calls) <= 4
        and all(is_one(call, "selection", "step") for call in calls[:-1])
        and is_one(calls[-1], "measure")
    )


def _is_condition(part: Part) -> bool:
    """Whether a rule's or value's form is that of a condition."""
    form = part["C"] if "C" in part else part["V"]
    return form[0] in ("one", "digit", "and", "or", "both", "neither") or (form[0] == "rest" and len(form) == 4)


def _is_name(name: str, kind: str) -> bool:
    before, after = _NAMES[kind].split("{}")
    word = name[len(before) : len(name) - len(after)]
    is_free = not keyword.iskeyword(name) and not hasattr(builtins, name)
    return name == f"{before}{word}{after}" and word.isascii() and word.isalpha() and word.islower() and is_free


def _is_function(function: Any) -> bool:
    if not isinstance(function, dict) or not isinstance(function.get("shape"), str) or function["shape"] not in SHAPES:
        return False
    slots = {slot for slot in slots_of(function["shape"]) if slot in SLOTS}
    return function.keys() == {"shape", *slots} and all(
        type(function[slot]) in (int, str) and function[slot] in SLOTS[slot] for slot in slots
    )


def draw_spellings(random: Random, parts: Parts) -> list[int]:
    """Draw how each part is written, a number for each."""
    return [between(random, 0, N_SPELLINGS - 1) for _ in parts]

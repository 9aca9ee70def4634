"""The packages of `packages.py` as text: a README that describes the functions in words, and modules of Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_envs.tasks.code.forms import condition_words, value_words, words_for_digits
from llm_envs.tasks.code.packages import MODULES, Part, Parts, measure_lines, takes_list
from llm_envs.tasks.code.pipelines import STEPS
from llm_envs.tasks.code.programs import PLACE, slot_words
from llm_envs.tasks.code.shapes import SHAPES
from llm_envs.tasks.code.spellings import spell_condition, spell_value

__all__ = ["body", "names_in_words", "readme", "sentence", "sources"]


# As Python.


def sources(parts: Parts, package: str, spellings: Sequence[int]) -> dict[str, str]:
    """Return the modules of a package by path, such as "/harbor/rules.py".

    A module imports all functions of the modules that its kind of part may use, so that the imports give no mistake
    away.
    """
    modules: dict[str, str] = {}
    for module in dict.fromkeys(MODULES.values()):
        imports = [
            f"from {package}.{other} import (\n"
            + "".join(f"    {part['name']},\n" for part in parts if MODULES[part["kind"]] == other)
            + ")"
            for other in _IMPORTED.get(module, ())
        ]
        bodies = [
            "\n".join(body(part, spelling))
            for part, spelling in zip(parts, spellings, strict=True)
            if MODULES[part["kind"]] == module
        ]
        modules[f"/{package}/{module}.py"] = "\n\n\n".join([*(["\n".join(imports)] if imports else []), *bodies]) + "\n"
    return modules


_IMPORTED = {"lists": ("rules", "values"), "measures": ("rules", "values"), "reports": ("lists", "measures")}


def _argument(part: Part) -> str:
    return "xs" if takes_list(part) else "x"


def body(part: Part, spelling: int) -> list[str]:
    """Return the lines of a part's function."""
    return [f"def {part['name']}({_argument(part)}):", *_body(part, spelling)]


def _body(part: Part, spelling: int) -> list[str]:
    kind = part["kind"]
    if kind == "rule":
        own, link = spell_condition(part["C"], "x", spelling), part.get("with")
        return [f"    return {own}" if link is None else f"    return {_LINKED[link[0]].format(link[1], own)}"]
    if kind == "value":
        return [f"    return {spell_value(part['V'], 'x', spelling)}"]
    if kind == "selection":
        return [f"    return [{part['value']}(x) for x in xs if {part['rule']}(x)]"]
    if kind == "step":
        name, k = part["step"]
        return [f"    return {STEPS[name].code.format(k=k)}"]
    if kind == "measure":
        return measure_lines(part["function"], part["rule"], part["value"])
    *lists, last = part["calls"]
    return [*(f"    xs = {name}(xs)" for name in lists), f"    return {last}(xs)"]


_LINKED = {"or": "{}(x) or {}", "and": "{}(x) and {}", "and not": "not {}(x) and {}"}


# In words.


def readme(
    parts: Parts, package: str, order: Sequence[int], former: Sequence[Part | None], *, is_spoken: bool = False
) -> str:
    """Return what the functions should do, in words.

    Args:
        parts: The package.
        package: Its name.
        order: Of the sentences, as places in `parts`.
        former: The earlier version of each part that the README tells; None if it tells none.
        is_spoken: Whether numbers from 2 to 12 are words.
    """
    places = sorted(range(len(parts)), key=lambda place: order[place])
    lines = [f"- {sentence(parts[place], former[place], is_spoken=is_spoken)}" for place in places]
    return "\n".join(
        [f"# {package}", "", "Functions on whole numbers x and lists xs of whole numbers.", "", *lines, ""]
    )


def sentence(part: Part, former: Part | None = None, *, is_spoken: bool = False) -> str:
    """Return what a function should do, perhaps with what it did in an earlier version."""
    say = words_for_digits if is_spoken else str
    what = f"`{part['name']}({_argument(part)})`: {say(_words(part))}"
    return what if former is None else f"{what} Until version 2: {say(_words(former))}"


def names_in_words(parts: Parts) -> dict[str, str]:
    """Return the names of the functions by the words that stand for them in sentences."""
    names = {part["name"]: part["name"] for part in parts}
    names |= {_adjective(part["name"]): part["name"] for part in parts if part["kind"] == "rule"}
    spoken = {_spoken(part["name"]): part["name"] for part in parts if part["kind"] == "value"}
    return names | spoken | {f"{words}s": name for words, name in spoken.items()}


def _words(part: Part) -> str:
    name, kind = part["name"], part["kind"]
    if kind == "rule":
        own, link = condition_words(part["C"]), part.get("with")
        what = own if link is None else _LINK_WORDS[link[0]].format(_adjective(link[1]), own)
        return f"x is {_adjective(name)} if it {what}; True or False."
    if kind == "value":
        return f"the {_spoken(name)} of a number is {value_words(part['V'])}."
    if kind == "selection":
        return (
            f"the list of the {_spoken(part['value'])}s of all numbers that are "
            f"{_adjective(part['rule'])}, in their order."
        )
    if kind == "step":
        step, k = part["step"]
        return f"{STEPS[step].say(k)}. Return the list."
    if kind == "measure":
        return _measure_words(part)
    *lists, last = part["calls"]
    return f"{', then '.join(f'`{call}`' for call in lists)}, and `{last}` of the list that results."


_LINK_WORDS = {"or": "is {}, or if it {}", "and": "is {} and also {}", "and not": "is not {} but {}"}


def _adjective(rule: str) -> str:
    return rule.removeprefix("is_")


def _spoken(value: str) -> str:
    return value.replace("_", " ")


def _measure_words(part: Part) -> str:
    def words(found: Any) -> str:
        if found[1] == "C":
            return f"is {_adjective(part['rule'])}"
        return f"its {_spoken(part['value'])}" if found[1] == "V" else slot_words(found[1], part["function"][found[1]])

    return str(PLACE.sub(words, SHAPES[part["function"]["shape"]].words))

"""Values that parts of a request tell by reference to another part, and values that the user corrects at the end.

A part may have `"as": {"people": 2}`: its party is told by the difference to the party of part 2. It may have `"first":
{"people": 5}`: the user said 5 first, and corrects that. A step's arguments are always the values that hold in the end;
the words of references follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, between, pick, shuffled
from llm_envs.tasks.tools.functions import LARGE, PARAMETERS, is_value
from llm_envs.tasks.wording import in_words

__all__ = ["LINKED", "check_links", "corrections", "draw_links", "people_as_read", "words_by_reference"]

Part = dict[str, Any]
LINKED = ("people", "date")
"""The arguments that can be told by reference."""
_N_FIRST = 2
"""Parts whose value is told itself and corrected later, for each argument; those of the others follow from them."""
_MOST = 16
"""The largest party."""


def draw_links(random: Random, parts: Sequence[Part]) -> None:
    """Let most parts tell their party and date by reference, and have what they follow from corrected."""
    for name in LINKED:
        numbers = shuffled(random, [n for n in range(1, len(parts) + 1) if name in _told(parts, n)])
        for place, number in enumerate(numbers[_N_FIRST:], _N_FIRST):
            other = pick(random, numbers[:place])
            parts[number - 1].setdefault("as", {})[name] = other
            if name == "date":
                near = date.fromisoformat(_arguments(parts, other)[name]) + timedelta(between(random, -40, 40))
                _arguments(parts, number)[name] = near.isoformat()
        for number in numbers[:_N_FIRST]:
            follow = [other for other in numbers if other != number and _root(parts, other, name) == number]
            if follow:
                value = _arguments(parts, number)[name]
                if name == "people":
                    first: int | str = _first_people(
                        random, value, [_arguments(parts, other)[name] for other in follow]
                    )
                else:
                    first = _first_date(random, value)
                parts[number - 1].setdefault("first", {})[name] = first


def _first_date(random: Random, value: str) -> str:
    return (date.fromisoformat(value) + timedelta(pick(random, (-1, 1)) * between(random, 1, 40))).isoformat()


def _first_people(random: Random, value: int, sizes: Sequence[int]) -> int:
    """Draw a wrong size of a party that misleads about whether the others are large.

    Args:
        random: Draws.
        value: The right size.
        sizes: The right sizes of the parties that follow from it.
    """
    low, high = value + 1 - min(sizes), value + _MOST - max(sizes)
    firsts = [n for n in range(max(low, 1), min(high, _MOST) + 1) if n != value] or [value % _MOST + 1]
    n_misled = [sum((size + first - value >= LARGE) != (size >= LARGE) for size in sizes) for first in firsts]
    return pick(random, [first for first, n in zip(firsts, n_misled, strict=True) if n == max(n_misled)])


def words_by_reference(parts: Sequence[Part], number: int) -> dict[str, str]:
    """Return the words of a part's arguments that are told otherwise than by their final value."""
    part, arguments = parts[number - 1], _arguments(parts, number)
    said = {name: PARAMETERS["common"][name].say(first) for name, first in part.get("first", {}).items()}
    for name, other in part.get("as", {}).items():
        said[name] = _SAY[name](arguments[name], _arguments(parts, other)[name], f"part {other}")
    return said


def _say_people(value: int, other: int, where: str) -> str:
    if value == other:
        return f"for a party as large as in {where}"
    return f"for a party of {abs(value - other)} {'more' if value > other else 'fewer'} than in {where}"


def _say_date(value: str, other: str, where: str) -> str:
    days = (date.fromisoformat(value) - date.fromisoformat(other)).days
    if days == 0:
        return f"on the date of {where}"
    return f"{in_words(abs(days), 'day')} {'after' if days > 0 else 'before'} the date of {where}"


_SAY: Mapping[str, Callable[[Any, Any, str], str]] = {"people": _say_people, "date": _say_date}


def corrections(parts: Sequence[Part]) -> list[str]:
    """Return the lines in which the user corrects what was told wrongly at first; none without corrections."""
    lines = []
    for number, part in enumerate(parts, 1):
        first = part.get("first", {})
        for name in (name for name in LINKED if name in first):
            say = PARAMETERS["common"][name].say
            lines.append(f"- Part {number} is {say(_arguments(parts, number)[name])}, not {say(first[name])}.")
    if not lines:
        return []
    return [
        "I must correct myself. All that I told by reference to these values, also through other parts, changes too:",
        *lines,
    ]


def people_as_read(parts: Sequence[Part], number: int) -> int | None:
    """Return the party's size for somebody who corrects the part itself, but none that follow from it."""
    people: int | None = _arguments(parts, number).get("people")
    root = _root(parts, number, "people")
    if people is None or root == number:
        return people
    value = _arguments(parts, root)["people"]
    return people + int(parts[root - 1].get("first", {}).get("people", value)) - int(value)


def check_links(parts: Sequence[Part]) -> None:
    """Raise `InvalidActionError` if a part refers to what is not told, or in a circle, or corrects what it has not."""
    for number, part in enumerate(parts, 1):
        told, links, first = _told(parts, number), part.get("as", {}), part.get("first", {})
        if not {*links, *first} <= set(LINKED) & told.keys() or set(links) & set(first):
            raise InvalidActionError(
                f"part {number} has as={links} and first={first}: only {' and '.join(LINKED)} can be in one of them, "
                "and only if the part tells it"
            )
        for name, value in first.items():
            if not is_value(PARAMETERS["common"][name].schema, value) or value == told[name]:
                raise InvalidActionError(f"part {number} corrects {name} from {value!r}: it must be another {name}")
        for name, other in links.items():
            if other not in range(1, len(parts) + 1) or name not in _told(parts, other):
                raise InvalidActionError(f"part {number} refers to part {other!r}, which does not tell its {name}")
            _root(parts, number, name)
        words_by_reference(parts, number)
    corrections(parts)


def _arguments(parts: Sequence[Part], number: int) -> dict[str, Any]:
    arguments: dict[str, Any] = parts[number - 1]["steps"][0]["arguments"]
    return arguments


def _told(parts: Sequence[Part], number: int) -> Mapping[str, Any]:
    """Return the arguments of a part's first step that the user does not leave out."""
    return {name: value for name, value in _arguments(parts, number).items() if name != parts[number - 1]["missing"]}


def _root(parts: Sequence[Part], number: int, name: str) -> int:
    """Return the part whose value is told itself, and from which that of a part follows."""
    seen = [number]
    while name in parts[seen[-1] - 1].get("as", {}):
        seen.append(parts[seen[-1] - 1]["as"][name])
        if seen[-1] in seen[:-1]:
            raise InvalidActionError(f"the parts {seen} tell their {name} by each other")
    return seen[-1]

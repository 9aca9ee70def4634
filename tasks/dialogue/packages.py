"""The themes of `negotiation.py`, the costs and points of packages, and the words of the other side about them.

A problem is plain JSON: a `theme`; `own`, the points of each option of each thing for the agent; `costs`, its cost for
the other side; `limit`, the most that a package may cost the other side; `patience`, the number of offers that the
other side refuses before it leaves; and `likened`, the options with a cost told by that of another one: `[thing,
option, other thing, its option]`, by place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from llm_envs.errors import InvalidActionError

__all__ = [
    "THEMES",
    "Theme",
    "asked_about",
    "best_package",
    "check_deal",
    "cost_of",
    "draw_deal",
    "points_of",
    "read_package",
    "told",
]

_WORD = re.compile(r"[a-z]+")
_LIST_MARKER = re.compile(r"(?:[0-9]{1,2}[.)]|[-*\u2022])\s+")
_CHOICE = re.compile(r"(?:(?:and|i offer|offer:?|the) )*([a-z]+) ?(?::|=|->|\u2192| - | is | ) ?(.*?)(?: ?\([^()]*\))?")
_DECORATION = " .\"'*`{}[]"
_MOST = 1_000


class Theme(NamedTuple):
    """The subject of a negotiation."""

    what: str
    other: str
    things: dict[str, tuple[str, ...]]
    """Options of each thing that has to be settled; the thing's name is one word."""


THEMES: dict[str, Theme] = {
    "kitchen": Theme(
        "a new kitchen",
        "joiner",
        {
            "delivery": ("in two weeks", "in a month", "in a quarter", "in half a year"),
            "warranty": ("none", "one year", "three years", "ten years"),
            "payment": ("at once", "in two parts", "in ten parts", "after a year"),
            "wood": ("pine", "beech", "oak", "walnut"),
            "fitting": ("by you", "by a helper", "by the joiner", "by a team"),
            "lamps": ("no lamps", "two lamps", "five lamps", "nine lamps"),
            "waste": ("left there", "taken to the yard", "taken away", "sold on"),
        },
    ),
    "hall": Theme(
        "the rent of a hall",
        "landlord",
        {
            "weekday": ("Monday", "Thursday", "Saturday", "Sunday"),
            "closing": ("at eight", "at ten", "at midnight", "at four"),
            "deposit": ("none", "a tenth", "a third", "all of it"),
            "kitchen": ("closed", "for drinks", "for cold food", "for everything"),
            "chairs": ("fifty", "eighty", "a hundred", "two hundred"),
            "music": ("no music", "quiet", "loud", "a band"),
            "cleaning": ("by you", "swept by you", "by the landlord", "by a firm"),
        },
    ),
    "website": Theme(
        "a website",
        "designer",
        {
            "launch": ("in May", "in July", "in October", "in December"),
            "pages": ("five", "ten", "twenty", "forty"),
            "changes": ("none", "one round", "three rounds", "any number"),
            "hosting": ("your server", "a rented server", "the designer's server", "two servers"),
            "photos": ("yours", "bought ones", "taken in a day", "taken in a week"),
            "languages": ("one", "two", "four", "six"),
            "support": ("none", "by e-mail", "by telephone", "day and night"),
        },
    ),
}


# Packages: of each thing the place of an option.


def points_of(problem: Mapping[str, Any], package: Sequence[int]) -> int:
    """Return the points of a package for the agent."""
    return sum(row[place] for row, place in zip(problem["own"], package, strict=True))


def cost_of(problem: Mapping[str, Any], package: Sequence[int]) -> int:
    """Return the cost of a package for the other side."""
    return sum(row[place] for row, place in zip(problem["costs"], package, strict=True))


def best_package(own: Sequence[Sequence[int]], costs: Sequence[Sequence[int]], limit: int) -> tuple[int, list[int]]:
    """Return the most points that a package within the limit is worth, and that package."""
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    """By the cost so far: the most points for it, and the options."""
    for values, prices in zip(own, costs, strict=True):
        following: dict[int, tuple[int, list[int]]] = {}
        for spent, (points, places) in best.items():
            for place, (value, price) in enumerate(zip(values, prices, strict=True)):
                total = spent + price
                if total <= limit and (total not in following or following[total][0] < points + value):
                    following[total] = (points + value, [*places, place])
        best = following
    return max(best.values(), key=lambda entry: entry[0])


def read_package(theme: Theme, names: Sequence[str], text: str) -> list[int]:
    """Read an offer such as "wood: oak; lamps: no lamps", also with commas, line breaks, "wood = oak" or as JSON.

    Raises:
        InvalidActionError: If it does not name one option of each of the things.
    """
    chosen: dict[str, int] = {}
    for part in filter(str.strip, re.split(r"[;,\n]", text.casefold())):
        part = _LIST_MARKER.sub("", " ".join(part.split()), count=1).removesuffix(" and")
        match = _CHOICE.fullmatch(re.sub(r"[\"'*`{}\[\]]", "", part).strip(_DECORATION))
        name, option = (part.strip(_DECORATION), "") if match is None else (match[1], match[2].strip(_DECORATION))
        if name not in names:
            raise InvalidActionError(f"{name[:30]!r} is not one of {', '.join(names)}")
        options = [known.casefold().replace("'", "") for known in theme.things[name]]
        if option not in options:
            raise InvalidActionError(f"{option[:30]!r} is not an option for {name}: {', '.join(theme.things[name])}")
        if name in chosen:
            raise InvalidActionError(f"the offer names {name} twice")
        chosen[name] = options.index(option)
    if missing := [name for name in names if name not in chosen]:
        raise InvalidActionError(f"an offer names an option of each thing; {', '.join(missing)} is missing")
    return [chosen[name] for name in names]


# The words of the other side.


def told(theme: Theme, names: Sequence[str], problem: Mapping[str, Any], number: int) -> str:
    """Return the other side's words about one thing: the cost of each option, some of them likened to another's."""
    costs, options = problem["costs"], theme.things[names[number]]
    likened = {option: (other, its) for thing, option, other, its in problem["likened"] if thing == number}
    said = []
    for place, option in enumerate(options):
        cost = costs[number][place]
        if place in likened:
            other, its = likened[place]
            more = cost - costs[other][its]
            than = f'"{theme.things[names[other]][its]}" for the {names[other]}'
            said.append(
                f'"{option}" costs me as much as {than}'
                if not more
                else f'"{option}" costs me {abs(more)} {"more" if more > 0 else "less"} than {than}'
            )
        else:
            said.append(f'"{option}" costs me {cost}' if cost else f'"{option}" costs me nothing')
    return f"As to the {names[number]}: {', '.join(said)}."


def asked_about(text: str, names: Sequence[str]) -> list[int]:
    """Return which of the things a message names, in singular or plural."""
    words = set(_WORD.findall(text.casefold()))
    return [number for number, name in enumerate(names) if words & {name, f"{name}s", name.removesuffix("s")}]


# Drawing and checking.


def draw_deal(rng: np.random.Generator, n_things: int, n_likened: int, patience: int) -> dict[str, Any]:
    """Draw a problem in which the package that the agent likes best costs too much."""
    while True:
        draws: Callable[[], float] = chain(rng.random(24 * n_things + 16).tolist(), iter(rng.random, None)).__next__

        def below(n: int, draws: Callable[[], float] = draws) -> int:
            return int(draws() * n)

        def shuffled(items: Sequence[int], below: Callable[[int], int] = below) -> list[int]:
            left = list(items)
            return [left.pop(below(len(left))) for _ in items]

        theme = list(THEMES)[below(len(THEMES))]
        places = sorted(shuffled(range(7))[:n_things])
        own, costs = [], []
        for _ in range(n_things):
            # Weights that differ by up to six and twelve times: a concession in the wrong place is expensive.
            worth, price = round(5 * 6 ** draws()), round(3 * 12 ** draws())
            values = [worth, *sorted((1 + below(worth - 1) for _ in range(2)), reverse=True), 0]
            prices = [price, *sorted((below(price + 1) for _ in range(2)), reverse=True), 0]
            order = shuffled(range(4))
            if draws() < 0.3:  # the two sides then do not want the opposite
                prices = [prices[place] for place in shuffled(range(4))]
            own.append([values[place] for place in order])
            costs.append([prices[place] for place in order])
        most = sum(prices[values.index(max(values))] for values, prices in zip(own, costs, strict=True))
        limit = int(most * (0.3 + 0.3 * draws()))
        problem = {
            "theme": theme,
            "things": places,
            "own": own,
            "costs": costs,
            "limit": limit,
            "patience": patience,
            "likened": _draw_likened(n_things, n_likened, below),
        }
        if most > limit and best_package(own, costs, limit)[0] - best_package(own, costs, 0)[0] >= 20:
            return problem


def _draw_likened(n_things: int, n_likened: int, below: Callable[[int], int]) -> list[list[int]]:
    """Draw options whose cost is told by that of another thing's option, which is told as a number."""
    likened: dict[tuple[int, int], list[int]] = {}
    while len(likened) < n_likened:
        thing, option, other, its = below(n_things), below(4), below(n_things), below(4)
        is_named = any((thing, option) == (row[2], row[3]) for row in likened.values())
        if thing != other and (other, its) not in likened and not is_named:
            likened[thing, option] = [thing, option, other, its]
    return sorted(likened.values())


def check_deal(problem: Mapping[str, Any]) -> None:
    """Raise `InvalidActionError` if there is nothing to negotiate about."""
    if problem["theme"] not in THEMES:
        raise InvalidActionError(f"its theme must be one of {', '.join(THEMES)}")
    n_known, things = len(THEMES[problem["theme"]].things), problem["things"]
    if not all(type(place) is int and 0 <= place < n_known for place in things) or len(set(things)) < len(things):
        raise InvalidActionError(f"its things must be different numbers below {n_known}")
    for name in ("own", "costs"):
        rows = problem[name]
        if len(rows) != len(things) or not all(
            isinstance(row, list) and len(row) == 4 and all(type(n) is int and 0 <= n <= _MOST for n in row)
            for row in rows
        ):
            raise InvalidActionError(f"its {name} must be four numbers from 0 to {_MOST} for each of the things")
    if not all(0 in row for row in problem["costs"]) or not 1 <= problem["patience"] <= 100 or problem["limit"] < 0:
        raise InvalidActionError("an option of each thing costs nothing; the limit is from 0, the patience from 1")
    named = {(row[0], row[1]) for row in problem["likened"]}
    for thing, option, other, its in problem["likened"]:
        if not (0 <= thing < len(things) and 0 <= other < len(things) and 0 <= option < 4 and 0 <= its < 4):
            raise InvalidActionError("an option is likened to one that does not exist")
        if thing == other or (other, its) in named:
            raise InvalidActionError("an option is likened to one of another thing whose cost is told as a number")
    own, costs, limit = problem["own"], problem["costs"], problem["limit"]
    if not best_package(own, costs, 0)[0] < best_package(own, costs, limit)[0] < sum(map(max, own)):
        raise InvalidActionError("its limit must allow for more than what costs nothing, and not for everything")

"""The themes of `negotiation.py`, the costs and points of packages, and the words of the other side about them.

A problem is plain JSON: a `theme`; `own`, the points of each option of each thing for the agent; `costs`, its cost for
the other side; `limit`, the most that a package may cost the other side; `patience`, the number of offers that the
other side refuses before it leaves; and `likened`, the options with a cost told by that of another one: `[thing,
option, other thing, its option]`, by place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from llm_envs.errors import InvalidActionError
from llm_envs.tasks.dialogue.said import Subject, asked_about, words_of

__all__ = [
    "THEMES",
    "Theme",
    "asked_for",
    "best_package",
    "check_deal",
    "cost_of",
    "draw_deal",
    "points_of",
    "read_package",
    "told",
]

_LIST_NUMBER = re.compile(r"^\s*[0-9]{1,2}[.)]")
_POINTS = re.compile(r"\([0-9]+(?: points?)?\)")
_BEFORE_OFFERS = ("i", "my", "offer", "propose", "package", "let", "agree", "on", "and")
_MOST = 1_000


class Theme(NamedTuple):
    """The subject of a negotiation."""

    what: str
    other: str
    things: dict[str, tuple[str, ...]]
    """Options of each thing that has to be settled; the thing's name is one word."""
    words: dict[str, tuple[str, ...]]
    """Other words for some of the things."""


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
        {
            "delivery": ("deliver", "delivered"),
            "warranty": ("guarantee",),
            "payment": ("pay", "paid", "instalments", "installments"),
            "fitting": ("fitted", "fit", "install", "installed", "installation"),
            "lamps": ("lighting",),
            "waste": ("rubbish", "disposal"),
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
        {
            "weekday": ("day",),
            "closing": ("close", "open until", "end at"),
            "chairs": ("seats", "seating"),
            "cleaning": ("clean", "cleaned", "sweep", "swept"),
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
        {
            "launch": ("launched", "go live", "online"),
            "changes": ("revisions",),
            "hosting": ("host", "hosted", "server"),
            "photos": ("pictures", "images"),
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
    plain = _POINTS.sub("", text.casefold())
    between = rf"[;,\n]|(?:\band\b|[|/])(?=[\s*]*(?:the )?(?:{'|'.join(names)})\b)"
    chosen: dict[str, int] = {}
    for part in re.split(between, plain):
        if words := [*words_of(_LIST_NUMBER.sub("", part))]:
            name, place = _choice(theme, names, words)
            if name in chosen:
                raise InvalidActionError(f"the offer names {name} twice")
            chosen[name] = place
    if missing := [name for name in names if name not in chosen]:
        raise InvalidActionError(f"an offer names an option of each thing; {', '.join(missing)} is missing")
    return [chosen[name] for name in names]


def _choice(theme: Theme, names: Sequence[str], words: list[str]) -> tuple[str, int]:
    """Return the thing and the option's place that a part of an offer names; the option may do without the thing."""
    while words[0] in _BEFORE_OFFERS and len(words) > 1:
        words = words[1:]
    named = {next(words_of(name)): name for name in names}
    name, option = (named[words[0]], words[1:]) if words[0] in named else ("", words)
    wordings = [option, option[1:] if option and option[0] in ("is", "on", "with") else option]
    found = [
        (thing, place)
        for thing in ([name] if name else names)
        for place, known in enumerate(theme.things[thing])
        if [*words_of(known)] in wordings
    ]
    if len(found) == 1:
        return found[0]
    if name:
        known = ", ".join(theme.things[name])
        raise InvalidActionError(f"{' '.join(option)[:30]!r} is not an option for {name}: {known}")
    raise InvalidActionError(f"{' '.join(words)[:30]!r} is not one of {', '.join(names)}")


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


def asked_for(text: str, theme: Theme, names: Sequence[str], told: Collection[str] = ()) -> list[int]:
    """Return which of the things a message asks about; those that were told before count only without others."""
    subjects = {name: Subject((name,), theme.things[name], theme.words.get(name, ())) for name in names}
    return [names.index(name) for name in asked_about(text, subjects, told)]


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

"""The catalogues of `played_user.py`, the wishes of a customer, and a customer who follows a script.

A problem is plain JSON: a `theme`, `items` as name and properties, and `wishes`, properties that the customer wants;
the others do not matter to them. Exactly one item has all the wished properties.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from llm_envs.tasks.dialogue.said import Subject, asked_about

__all__ = [
    "CATALOGUES",
    "Catalogue",
    "asked_in",
    "draw_problem",
    "fitting",
    "questions",
    "scripted_answer",
    "words_in",
]

_WORD = re.compile(r"[a-z]+")


class Catalogue(NamedTuple):
    """The things on offer."""

    noun: str
    properties: dict[str, tuple[str, ...]]
    """Values of each property, by its name, which is one word."""
    names: tuple[str, ...]


CATALOGUES: dict[str, Catalogue] = {
    "flats": Catalogue(
        "a flat",
        {
            "district": ("north", "south", "harbour", "centre"),
            "rooms": ("two", "three", "four"),
            "floor": ("ground", "middle", "top"),
            "heating": ("gas", "wood", "electric"),
            "outside": ("balcony", "garden", "terrace"),
            "furniture": ("full", "kitchen only", "none"),
            "parking": ("street", "yard", "garage"),
            "walls": ("brick", "timber", "concrete"),
            "view": ("park", "river", "railway"),
        },
        ("Acorn", "Birch", "Clover", "Dahlia", "Elder", "Fern", "Ginkgo", "Hazel", "Iris", "Juniper", "Kale", "Lilac",
         "Maple", "Nettle", "Olive", "Poplar", "Quince", "Rowan", "Sorrel", "Tulip", "Umbel", "Violet", "Willow",
         "Yew"),
    ),
    "trips": Catalogue(
        "a holiday trip",
        {
            "region": ("sea", "mountains", "city", "forest"),
            "lodging": ("hotel", "cabin", "tent"),
            "meals": ("none", "breakfast", "all"),
            "transport": ("train", "bus", "boat"),
            "length": ("weekend", "week", "fortnight"),
            "activity": ("hiking", "swimming", "museums"),
            "season": ("spring", "summer", "winter"),
            "guide": ("local", "recorded", "absent"),
            "company": ("families", "couples", "strangers"),
        },
        ("Albatross", "Badger", "Curlew", "Dolphin", "Egret", "Falcon", "Gannet", "Heron", "Ibis", "Jackdaw", "Kestrel",
         "Lapwing", "Marten", "Nightjar", "Osprey", "Puffin", "Quail", "Raven", "Siskin", "Tern",
         "Urial", "Vole", "Wagtail", "Zander"),
    ),
    "bicycles": Catalogue(
        "a bicycle",
        {
            "purpose": ("commuting", "racing", "touring", "cargo"),
            "frame": ("steel", "carbon", "aluminium"),
            "gears": ("one", "seven", "twenty"),
            "brakes": ("rim", "disc", "drum"),
            "colour": ("green", "black", "orange"),
            "motor": ("none", "front", "rear"),
            "saddle": ("leather", "gel", "wooden"),
            "tyres": ("slick", "studded", "wide"),
            "lights": ("dynamo", "battery", "solar"),
        },
        ("Aurora", "Breeze", "Comet", "Drift", "Ember", "Flint", "Glide", "Halo", "Icarus", "Jolt", "Kite", "Loop",
         "Mistral", "Nova", "Orbit", "Pulse", "Quartz", "Ripple", "Spark", "Tempo", "Umbra", "Vento", "Whisk",
         "Zephyr"),
    ),
}  # fmt: skip

_OTHER_WORDS = {
    "district": ("area", "neighbourhood", "neighborhood", "part of town"),
    "floor": ("storey",),
    "furniture": ("furnished", "furnishing", "kitchen furnished"),
    "heating": ("heat", "heated"),
    "outside": ("outdoor", "outdoors"),
    "parking": ("to park", "car"),
    "rooms": ("bedrooms", "how big", "how large"),
    "view": ("look at", "look out", "look onto", "overlook"),
    "walls": ("built of", "made of"),
    "region": ("where to", "destination"),
    "lodging": ("stay in", "stay at", "sleep", "accommodation"),
    "meals": ("food", "eat"),
    "transport": ("travel by", "travel there", "get there", "go there by"),
    "length": ("how long", "how many days", "duration"),
    "activity": ("do there", "activities"),
    "season": ("when", "time of year"),
    "guide": ("guided",),
    "company": ("travel with", "travelling with", "traveling with", "companions"),
    "purpose": ("use it for", "used for", "use the bicycle for", "use the bike for"),
    "gears": ("speeds",),
    "brakes": ("braking",),
    "motor": ("engine", "electric"),
    "saddle": ("seat",),
    "tyres": ("wheels",),
    "lights": ("lighting", "lamps"),
}
_SUBJECTS = {
    key: Subject((key,), values, _OTHER_WORDS.get(key, ()))
    for catalogue in CATALOGUES.values()
    for key, values in catalogue.properties.items()
}


def fitting(items: Mapping[str, Mapping[str, str]], wishes: Mapping[str, str]) -> list[str]:
    """Return the names of the items that have all of these properties."""
    return [name for name, item in sorted(items.items()) if all(item[key] == value for key, value in wishes.items())]


def questions(items: Mapping[str, Mapping[str, str]], wishes: Mapping[str, str]) -> list[str]:
    """Return the properties to ask about, one after the other, until one item is left.

    Next comes the one that is sure to leave fewest items, should the customer care for it: asked without knowing what
    the customer wants.
    """
    asked: list[str] = []
    left = list(items.values())
    properties = sorted(left[0])
    while len(left) > 1 and properties:
        counts: dict[str, int] = {}
        for key in properties:
            values = [item[key] for item in left]
            counts[key] = max(map(values.count, set(values)))
        key = min(properties, key=counts.__getitem__)
        properties.remove(key)
        asked.append(key)
        if key in wishes:
            left = [item for item in left if item[key] == wishes[key]]
    return asked


def words_in(text: str) -> set[str]:
    """Return the words of a text in lower case."""
    return set(_WORD.findall(text.casefold()))


def asked_in(text: str, items: Mapping[str, Mapping[str, str]], told: Collection[str] = ()) -> list[str]:
    """Return which properties a message asks about; the names of items tell the customer nothing."""
    if words_in(text) & {name.casefold() for name in items}:
        return []
    return asked_about(text, {key: _SUBJECTS[key] for key in sorted(next(iter(items.values())))}, told)


def scripted_answer(
    text: str, items: Mapping[str, Mapping[str, str]], wishes: Mapping[str, str], told: Collection[str] = ()
) -> str:
    """Return the answer of a customer who tells one wish at a time, and does not know the items by their names."""
    if words_in(text) & {name.casefold() for name in items}:
        return "I do not know these by name. Ask me what I would like."
    named = asked_in(text, items, told)
    if len(named) != 1:
        return "Could you ask me about one thing?"
    value = wishes.get(named[0])
    does = "do" if named[0].endswith("s") else "does"
    return f"The {named[0]} {does} not matter to me." if value is None else f"I would like {value}."


def draw_problem(rng: np.random.Generator, n_items: int, n_properties: int, n_wishes: int, most: int) -> dict[str, Any]:
    """Draw a catalogue and a customer.

    Args:
        rng: The source of randomness.
        n_items: How many items there are.
        n_properties: How many properties they have.
        n_wishes: How many of these matter.
        most: Questions that it may take at most, if they are asked well.
    """
    while True:
        draws = iter(rng.random(2 * n_items + n_items * n_properties + 20).tolist()).__next__
        theme = list(CATALOGUES)[int(draws() * len(CATALOGUES))]
        catalogue = CATALOGUES[theme]
        left = list(catalogue.properties)
        keys = [left.pop(int(draws() * len(left))) for _ in range(n_properties)]
        names = list(catalogue.names)
        items = {
            names.pop(int(draws() * len(names))): {
                key: catalogue.properties[key][int(draws() * len(catalogue.properties[key]))] for key in keys
            }
            for _ in range(n_items)
        }
        wanted = items[list(items)[int(draws() * n_items)]]
        wishes = {key: wanted[key] for key in keys[:n_wishes]}
        if len(fitting(items, wishes)) == 1 and len(questions(items, wishes)) <= most:
            return {"theme": theme, "items": items, "wishes": wishes}

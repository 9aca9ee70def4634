"""The functions of `function_calling.py`: what they are about, their parameters as schemas, and values in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from llm_envs.env import split_of
from llm_envs.tasks.draws import Random, between, pick, sample
from llm_envs.tasks.wording import in_words

__all__ = [
    "EXTRA",
    "GIVES",
    "KINDS",
    "LARGE",
    "NEEDS",
    "NESTED",
    "PARAMETERS",
    "SYNONYMS",
    "VERBS",
    "Parameter",
    "function_name",
    "is_value",
    "kind_of",
    "nouns_of",
    "request",
    "schema_of",
]

LARGE = 9
"""People from which on a group is large."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "trip": (
        *("ferry", "night train", "coach", "airship", "canal boat", "cable car", "shuttle bus", "minibus"),
        *("horse carriage", "seaplane", "water taxi", "steamboat", "tram", "helicopter"),
    ),
    "stay": (
        *("hotel room", "campsite", "cabin", "hostel bed", "treehouse", "houseboat", "villa", "yurt", "guest house"),
        *("loft", "lodge", "bungalow", "farmhouse", "mountain hut"),
    ),
    "event": (
        *("concert", "museum tour", "cooking class", "regatta", "opera", "film screening", "wine tasting"),
        *("pottery course", "guided walk", "chess lesson", "planetarium show", "dance course", "ballet", "lecture"),
    ),
    "rental": (
        *("bicycle", "projector", "tent", "power drill", "camera", "kayak", "generator", "piano", "trailer"),
        *("sound system", "lawn mower", "telescope", "wheelchair", "ladder"),
    ),
    "service": (
        *("haircut", "dental check", "car wash", "piano tuning", "window cleaning", "chimney sweep", "dog walk"),
        *("tax consultation", "eye test", "vaccination", "massage", "translation", "boiler check", "furniture repair"),
    ),
}
"""The things that functions are about, by kind."""


class Parameter(NamedTuple):
    """A parameter of functions."""

    schema: Mapping[str, Any]
    draw: Callable[[Random], Any]
    say: Callable[[Any], str]
    """A value in the words of a request."""


_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October"),
    *("November", "December"),
)
_CITIES = ("Oslo", "Lima", "Turin", "Perth", "Accra", "Riga", "Quito", "Hanoi", "Cork", "Bergen", "Dakar", "Lyon")
_PEOPLE = ("mia", "tom", "ines", "raj", "lena", "omar", "yuki", "nora", "paul", "zoe")
_NOTES = ("call first", "ring twice", "use the side door", "no flowers", "bring a receipt", "keep it quiet")
_WHOLE, _YES_NO, _TEXT = {"type": "integer"}, {"type": "boolean"}, {"type": "string"}


def _date(random: Random) -> str:
    return f"{between(random, 2031, 2034)}-{between(random, 1, 12):02}-{between(random, 1, 28):02}"


def _say_date(value: str) -> str:
    year, month, day = value.split("-")
    return f"on {int(day)} {_MONTHS[int(month) - 1]} {year}"


def _say_time(value: str) -> str:
    hour, minute = map(int, value.split(":"))
    return f"at {(hour - 1) % 12 + 1}:{minute:02} {'in the morning' if hour < 12 else 'in the afternoon or evening'}"


def _say_minutes(value: int) -> str:
    hours, rest = divmod(value, 60)
    return f"for {hours} h {rest} min" if hours and rest else f"for {hours} h" if hours else f"for {rest} min"


def _choice(values: tuple[str, ...], words: str) -> Parameter:
    return Parameter({"type": "string", "enum": list(values)}, lambda random: pick(random, values), words.format)


def _number(low: int, high: int, words: str, noun: str | None = None) -> Parameter:
    """Return a whole number; `words` have it, with its noun, if that is given."""
    return Parameter(
        _WHOLE,
        lambda random: between(random, low, high),
        lambda value: words.format(value if noun is None else in_words(value, noun)),
    )


def _switch(on: str, off: str) -> Parameter:
    return Parameter(_YES_NO, lambda random: random() < 0.5, lambda value: on if value else off)


def _several(values: tuple[str, ...], words: str) -> Parameter:
    return Parameter(
        {"type": "array", "items": _TEXT, "description": "In the order in which they were named."},
        lambda random: sample(random, values, between(random, 1, 3)),
        lambda value: words.format(" and ".join([", ".join(value[:-1]), value[-1]] if value[1:] else value)),
    )


def _object(description: str = "", **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        **({"description": description} if description else {}),
    }


_TIME = {**_TEXT, "description": "HH:MM, 24 hours"}
_CONTACT = Parameter(
    _object("Whom to call, and when.", name=_TEXT, hours=_object(first=_TIME, last=_TIME)),
    lambda random: {  # keys are in order, as in a problem that is given as JSON: the oracle's calls then look the same
        "hours": {
            "first": f"{between(random, 6, 12):02}:{pick(random, ('00', '30'))}",
            "last": f"{between(random, 13, 22):02}:{pick(random, ('00', '30'))}",
        },
        "name": pick(random, _PEOPLE),
    },
    lambda value: (
        f"with {value['name']} to be called from {_say_time(value['hours']['first']).removeprefix('at ')} to "
        f"{_say_time(value['hours']['last']).removeprefix('at ')}"
    ),
)
_PARCELS = Parameter(
    {
        "type": "array",
        "items": _object(content=_TEXT, kilos=_WHOLE),
        "description": "In the order in which they were named.",
    },
    lambda random: [
        {"content": content, "kilos": between(random, 1, 30)}
        for content in sample(random, ("books", "wine", "tools", "shoes", "paint"), between(random, 1, 3))
    ],
    lambda value: "with " + " and ".join(f"{in_words(each['kilos'], 'kilo')} of {each['content']}" for each in value),
)
NESTED = ("contact", "parcels")
"""Parameters whose values have parts."""

PARAMETERS: Mapping[str, Mapping[str, Parameter]] = {
    "common": {
        "date": Parameter({**_TEXT, "description": "YYYY-MM-DD"}, _date, _say_date),
        "people": _number(1, 16, "for a party of {}"),
        "city": Parameter(_TEXT, lambda random: pick(random, _CITIES), "in the city of {}".format),
        "max_price": Parameter(
            {"type": "number", "description": "In euros."},
            lambda random: between(random, 40, 900) / 2,
            "for {:g} euros at most".format,
        ),
        "language": _choice(("en", "fr", "pl", "hi"), "with the language code {}"),
        "is_member": _switch("for a member", "for somebody who is no member"),
        "contact": _CONTACT,
        "parcels": _PARCELS,
    },
    "trip": {
        "departure": Parameter(
            {**_TEXT, "description": "HH:MM, 24 hours"},
            lambda random: f"{between(random, 1, 23):02}:{pick(random, ('00', '15', '30', '45'))}",
            lambda value: f"leaving {_say_time(value)}",
        ),
        "seat_class": _choice(("basic", "comfort", "first"), "in the class {}"),
        "luggage_kg": _number(5, 60, "with {} kg of luggage"),
        "meals": _switch("with meals", "without meals"),
        "stops": _several(_CITIES, "by way of {}"),
    },
    "stay": {
        "nights": _number(1, 21, "for {}", "night"),
        "floor": _number(0, 9, "on floor {}"),
        "breakfast": _switch("with breakfast", "without breakfast"),
        "view": _choice(("sea", "garden", "street"), "with a view of the {}"),
        "pets": _number(1, 4, "bringing {}", "pet"),
    },
    "event": {
        "row": _number(1, 30, "in row {}"),
        "area": _choice(("stalls", "circle", "box"), "with seats in the {}"),
        "drinks": _switch("with drinks", "without drinks"),
        "start": Parameter(
            {**_TEXT, "description": "HH:MM, 24 hours"},
            lambda random: f"{between(random, 9, 23):02}:{pick(random, ('00', '30'))}",
            lambda value: f"beginning {_say_time(value)}",
        ),
        "guests": _several(_PEOPLE, "together with {}"),
    },
    "rental": {
        "minutes": Parameter(_WHOLE, lambda random: 15 * between(random, 2, 40), _say_minutes),
        "delivery": _switch("delivered to the door", "picked up by myself"),
        "colour": _choice(("black", "red", "white"), "in the colour {}"),
        "extras": _several(("case", "lamp", "lock", "cable", "cover", "stand"), "together with {}"),
        "deposit": _number(20, 400, "with a deposit of {}", "euro"),
    },
    "service": {
        "minutes": Parameter(_WHOLE, lambda random: 15 * between(random, 2, 12), _say_minutes),
        "at_home": _switch("at my home", "at your place"),
        "urgency": _choice(("low", "normal", "high"), "with the urgency {}"),
        "specialist": Parameter(_TEXT, lambda random: pick(random, _PEOPLE), "done by {}".format),
        "visits": _number(1, 6, "{} in all", "time"),
    },
}
"""Of functions that are given no id, by the kind of what they are about; those of "common" are of every kind."""

EXTRA: Mapping[str, Parameter] = {
    "cover": _choice(("theft", "damage", "full"), "with the cover {}"),
    "days": _number(1, 30, "counting {}", "day"),
    "reason": _choice(("illness", "weather", "mistake", "other"), "with the reason {}"),
    "notify": _switch("telling everybody", "telling nobody"),
    "note": Parameter(_TEXT, lambda random: pick(random, _NOTES), 'with the note "{}"'.format),
    "email": Parameter(
        _TEXT,
        lambda random: f"{pick(random, _PEOPLE)}{between(random, 2, 99)}@example.org",
        "using the address {}".format,
    ),
    "method": _choice(("card", "cash", "invoice"), "by {}"),
    "instalments": _number(2, 12, "in {}", "instalment"),
    "stars": _number(1, 5, "with {}", "star"),
    "contact": _CONTACT,
}
"""Of functions that are given an id."""

VERBS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "quote": ("Work out what {} costs. Nothing is reserved.", "work out what {} costs", ()),
    "check": ("Check whether {} is free. Nothing is reserved.", "check whether {} is free", ()),
    "reserve": ("Reserve {}.", "reserve {}", ()),
    "waitlist": ("Put somebody on the waiting list for {}.", "put me on the waiting list for {}", ()),
    "confirm": (
        "Turn a quote for {} into a reservation.",
        "turn {} into a reservation",
        ("email", "note", "notify", "method", "reason"),
    ),
    "insure": ("Insure a reservation of {}.", "insure {}", ("cover", "days", "note", "notify", "email")),
    "extend": ("Make a reservation of {} longer.", "make {} longer", ("days", "reason", "note", "notify", "email")),
    "cancel": ("Cancel a reservation of {}.", "cancel {}", ("reason", "note", "notify", "email", "method")),
    "share": (
        "Send a reservation of {} to somebody.",
        "send {} to somebody",
        ("email", "note", "notify", "reason", "days"),
    ),
    "pay": ("Pay for a reservation of {}.", "pay for {}", ("method", "instalments", "email", "note", "notify")),
    "refund": ("Give back a payment for {}.", "give back {}", ("reason", "method", "email", "note", "notify")),
    "leave": ("Leave the waiting list for {}.", "end {}", ("reason", "email", "notify", "note", "days")),
    "rate": ("Rate a reservation of {}.", "rate {}", ("stars", "note", "notify", "email", "reason")),
}
"""What a function does: its description, a request, and the parameters from `EXTRA` that it may have."""
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "quote": ("quote", "price", "estimate"),
    "check": ("check", "find", "look_up"),
    "reserve": ("reserve", "book", "take"),
    "waitlist": ("queue_for", "await", "waitlist"),
    "confirm": ("confirm", "accept", "settle"),
    "insure": ("insure", "protect", "cover"),
    "extend": ("extend", "prolong", "lengthen"),
    "cancel": ("cancel", "drop", "undo"),
    "share": ("share", "send", "forward"),
    "pay": ("pay", "buy", "pay_for"),
    "refund": ("refund", "return", "reimburse"),
    "leave": ("leave", "unqueue", "give_up"),
    "rate": ("rate", "review", "score"),
}
"""Possible names of a function; its description tells what it does."""
GIVES: Mapping[str, str] = {
    "quote": "quote_id",
    "reserve": "reservation_id",
    "confirm": "reservation_id",
    "waitlist": "waiting_id",
    "pay": "payment_id",
}
"""The id that a call returns."""
NEEDS: Mapping[str, str] = {
    "confirm": "quote_id",
    **dict.fromkeys(("insure", "extend", "cancel", "share", "pay", "rate"), "reservation_id"),
    "refund": "payment_id",
    "leave": "waiting_id",
}
"""The id that a call is given."""
_THINGS = {"quote_id": "quote", "reservation_id": "reservation", "waiting_id": "wait", "payment_id": "payment"}


def kind_of(noun: str) -> str:
    """Return the kind of what a function is about."""
    return next(kind for kind, nouns in KINDS.items() if noun in nouns)


@lru_cache(maxsize=2)
def nouns_of(split: str) -> tuple[str, ...]:
    """Return what the functions of a split are about; nothing is in both splits."""
    return tuple(noun for nouns in KINDS.values() for noun in nouns if split_of(noun) == split)


def parameters_of(verb: str, noun: str) -> Mapping[str, Parameter]:
    """Return the parameters that a function may have, its id aside."""
    if verb in NEEDS:
        return {name: EXTRA[name] for name in (*VERBS[verb][2], "contact")}
    return {**PARAMETERS["common"], **PARAMETERS[kind_of(noun)]}


def function_name(function: Mapping[str, Any]) -> str:
    """Return a function's name."""
    ending = "_group" if function["sizes"] == "large" else ""
    return f"{function['word']}_{function['noun'].replace(' ', '_')}{ending}"


def schema_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function's JSON Schema in OpenAI's shape, fresh."""
    verb, noun = function["verb"], function["noun"]
    known = parameters_of(verb, noun)
    properties = {name: dict(known[name].schema) for name in function["parameters"]}
    required = list(function["required"])
    if verb in NEEDS:
        properties = {NEEDS[verb]: {"type": "string"}, **properties}
        required = [NEEDS[verb], *required]
    description = VERBS[verb][0].format(_a(noun))
    if function["sizes"]:
        description += f" For {LARGE} people or more." if function["sizes"] == "large" else f" For up to {LARGE - 1}."
    if verb in GIVES:
        description += f" Returns the {GIVES[verb]}."
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": function_name(function), "description": description, "parameters": parameters},
    }


def is_value(schema: Mapping[str, Any], value: Any) -> bool:
    """Return whether a value is of a parameter's type exactly: "3" is no number, and 3 no text."""
    kind = schema["type"]
    if kind == "object":
        known = schema["properties"]
        return (
            isinstance(value, dict)
            and value.keys() == known.keys()
            and all(is_value(known[k], value[k]) for k in known)
        )
    if kind == "array":
        return isinstance(value, list) and all(is_value(schema["items"], item) for item in value)
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    if kind == "string":
        return isinstance(value, str) and value in schema.get("enum", (value,))
    return isinstance(value, int) or (kind == "number" and isinstance(value, float) and math.isfinite(value))


def request(step: Mapping[str, Any], *, follows: bool, without: str = "", said: Mapping[str, str] | None = None) -> str:
    """Return one step of a request in words, but for the argument that the user does not tell.

    Args:
        step: Its verb, noun and arguments.
        follows: Whether its id is what the step before returns.
        without: The parameter that the user does not tell; "" for none.
        said: Words of arguments, by name, instead of the usual ones.
    """
    verb, noun, arguments = step["verb"], step["noun"], step["arguments"]
    what = _a(noun)
    if verb in NEEDS:
        thing = _THINGS[NEEDS[verb]]
        what = f"that {thing}" if follows else f"the {thing} {arguments[NEEDS[verb]]} of {what}"
    known = parameters_of(verb, noun)
    words = {name: known[name].say(arguments[name]) for name in known if name in arguments and name != without}
    told = {**words, **(said or {})}.values()
    return ", ".join([VERBS[verb][1].format(what), *told])


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"

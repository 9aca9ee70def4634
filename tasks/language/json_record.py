"""`llm/JsonRecord-v0`: write the content of a text as JSON that fits a schema."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.algorithmic.lists import check_words
from llm_envs.tasks.draws import Random, between, pick, sample, shuffled
from llm_envs.tasks.people import PEOPLE
from llm_envs.tasks.replies import without_fence
from llm_envs.tasks.wording import in_words

__all__ = ["JsonRecordEnv", "same_json"]


class JsonRecordEnv(SingleTurnEnv):
    """Write the content of a text as JSON that fits a schema.

    ## Description
    A JSON Schema and a short text are given; the answer is the one object that fits the schema and has the content of
    the text. Numbers are written out, dates and durations are to be converted, some properties are not mentioned, and
    some sentences belong to no property. Teaches to follow a schema exactly, and to invent nothing.

    ## Observation
    The schema, the rules, and the text. After the reply "Correct.", "Incorrect." or the reason why it is malformed.

    ## Action
    The object in the final answer, `<answer>{"name": "Ada"}</answer>`, perhaps in a fence of three backticks or with
    prose around it. The order of properties and white space do not matter. Thinking in `<think>...</think>` is allowed
    before it.

    ## Reward
    `correct` (weight 1): 1 for the right object. `malformed` (weight -0.1): 1 for a reply without an answer, with
    broken tags, or whose answer is not one JSON object (a property twice included).

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "starter": one property; "easy" (default): three; "medium": five, some of them not mentioned,
      and sentences that belong to none; "hard": six and a list of two to four objects; "expert": a list of 24 people
      with up to seven properties each, told in any order, some of them corrected later, and some told by those of
      another person, with whom they change.
    - `reset(options={"problem": {"schema": {...}, "text": "...", "expected": {...}}})` gives all three.

    ## Version History
    - v0: first version.
    """

    # Measured for one property: the commonest record of a schema is right in 11%. Three values are right together in
    # less than one of a thousand records.
    difficulties = {
        "starter": Difficulty("one property", chance_rate=0.12, settings={"n": 1}),
        "easy": Difficulty("three properties", chance_rate=0.001, settings={"n": 3}),
        "medium": Difficulty("five, asides and gaps", chance_rate=1e-4, settings={"n": 5, "asides": 2}),
        "hard": Difficulty("six and a list of objects", chance_rate=1e-5, settings={"n": 6, "asides": 2}),
        "expert": Difficulty(
            "24 people, in any order, with corrections that also change what is told of others",
            chance_rate=1e-6,
            settings={"people": 24, "n": 7, "corrections": 16, "links": 12},
            expected_hard="Some 135 values are collected from as many sentences in any order, 16 of them replaced "
            "later, 12 told by another one that may be replaced, and written as 24 objects; at one slip in 190 "
            "values, 49% of the records are right.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "at the expert level some 150 sentences about 24 people are drawn"
    problem_fields = {"schema": dict, "text": str, "expected": dict}
    instructions = "Write the content of the text as one JSON object that fits the schema."
    answer_example = '{"first_name": "Ada", "children": 2}'
    plain_answer = staticmethod(without_fence)
    has_natural_form = False

    def generate(self) -> dict[str, Any]:
        """Draw properties with their values, and say them."""
        random = self.np_random.random
        if self.difficulty == "expert":
            while True:
                problem = _draw_people(random, self.settings)
                if _as_read(problem) != problem["expected"]:
                    return problem
        fields = sample(random, _FIELDS, self.settings["n"] + self.settings.get("asides", 0))
        wanted, asides = fields[: self.settings["n"]], fields[self.settings["n"] :]
        person = pick(random, PEOPLE)
        properties: dict[str, Any] = {}
        expected: dict[str, Any] = {}
        sentences = []
        for i, field in enumerate(wanted):
            key = pick(random, field.keys)
            properties[key] = field.schema
            if i == 0 and asides:
                continue  # the text does not mention it
            value, said = field.draw(random, person)
            expected[key] = value
            sentences.append(said)
        sentences += [field.draw(random, person)[1] for field in asides]
        sentences = shuffled(random, sentences)
        if self.difficulty == "hard":
            key, schema, values, said = _draw_list(random, person)
            properties[key], expected[key] = schema, values
            sentences.append(said)
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return {"schema": schema, "text": f"This is about {person}. {' '.join(sentences)}", "expected": expected}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an expected object with a property that the schema does not have."""
        if not isinstance(properties := problem["schema"].get("properties"), dict):
            raise InvalidActionError("the schema must have properties")
        if extra := sorted(problem["expected"].keys() - properties.keys()):
            raise InvalidActionError(f"the schema has no property {extra[0]!r}")

    def prompt(self) -> str:
        """Return the schema, the rules and the text."""
        return (
            f"Schema:\n{json.dumps(self.problem['schema'], sort_keys=True)}\n\n"
            "Leave out every property that the text does not mention. Dates are written as YYYY-MM-DD, durations as "
            "whole minutes, amounts of money as numbers, lists in the order of the text.\n\n"
            f"Text:\n{self.problem['text']}"
        )

    def solution(self) -> str:
        """Return the expected object."""
        return json.dumps(self.problem["expected"], ensure_ascii=False)

    def shortcuts(self) -> Mapping[str, str]:
        """Return the answer of a reader that keeps every value as it was where it was read.

        It corrects a person's city, but not the city of others who live in the same one.
        """
        read = (
            _as_read(self.problem)
            if isinstance(self.problem["expected"].get("people"), list)
            else self.problem["expected"]
        )
        if read == self.problem["expected"]:
            return {}
        n_kept = sum(len(person) - 1 for person in read["people"])
        return {f"reader({n_kept})": self.write_answer(json.dumps(read, ensure_ascii=False))}

    def is_correct(self, answer: str) -> bool:
        """Compare as JSON."""
        start, end = answer.find("{"), answer.rfind("}") + 1
        is_in_prose = 0 <= start < end and answer[:1] not in ("[", '"')
        around = f"{answer[:start]} {answer[end:]}" if is_in_prose else ""
        check_words(around)
        if any(character.isdigit() for character in answer[end:] if is_in_prose):
            raise InvalidActionError("there are numbers after the object: they may be another answer")
        try:
            text = answer[start:end] if is_in_prose else answer
            given = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise InvalidActionError(f"the answer is not JSON ({error})") from error
        if not isinstance(given, dict):
            raise InvalidActionError("the answer is JSON, but not an object")
        return same_json(given, self.problem["expected"])


def same_json(first: Any, second: Any) -> bool:
    """Return whether two values are the same JSON: 1 and 1.0 are one number, and no number is true or false."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same_json(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same_json, first, second))
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first == second
    return type(first) is type(second) and bool(first == second)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a property twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


class _Field(NamedTuple):
    keys: Sequence[str]
    """Its possible names."""
    schema: dict[str, Any]
    draw: Callable[[Random, str], tuple[Any, str]]
    """Random numbers and the person's name -> a value, and a sentence that tells it."""


_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_CITIES = ("Lisbon", "Oslo", "Quito", "Riga", "Accra", "Hanoi", "Lima", "Turin", "Perth", "Bergen", "Cork", "Dakar")
_TRADES = ("carpenter", "nurse", "pilot", "baker", "translator", "surveyor", "teacher", "welder", "botanist")
_LANGUAGES = ("Dutch", "Greek", "Hindi", "Korean", "Polish", "Swahili", "Turkish", "Welsh", "Yoruba")
_ITEMS = ("lamp", "kettle", "ladder", "tent", "drill", "clock", "stool", "mirror", "rake", "scale", "fan", "rug")
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def _number_in_words(n: int) -> str:
    """Return a number from 21 to 99 in words."""
    tens, ones = divmod(n, 10)
    return _TENS[tens - 2] + (f"-{_ONES[ones - 1]}" if ones else "")


def _age(random: Random, who: str) -> tuple[Any, str]:
    age = between(random, 21, 89)
    said = _number_in_words(age) if random() < 0.5 else str(age)
    return age, pick(random, (f"{who} is {said} years old.", f"At {said}, {who} is not the oldest in the street."))


def _city(random: Random, who: str) -> tuple[Any, str]:
    city, other = sample(random, _CITIES, 2)
    return city, pick(random, (f"{who} left {other} and now lives in {city}.", f"{who}'s home is in {city}."))


def _trade(random: Random, who: str) -> tuple[Any, str]:
    trade, other = sample(random, _TRADES, 2)
    return trade, pick(random, (f"{who} works as a {trade}.", f"{who} was a {other} once and is a {trade} today."))


def _birthday(random: Random, who: str) -> tuple[Any, str]:
    day, month, year = between(random, 1, 28), between(random, 1, 12), between(random, 1935, 2004)
    name = _MONTHS[month - 1]
    said = pick(random, (f"on {day} {name} {year}", f"on {name} {day}, {year}"))
    return f"{year}-{month:02}-{day:02}", f"{who} was born {said}."


def _salary(random: Random, who: str) -> tuple[Any, str]:
    hundreds = between(random, 180, 890)
    said = f"{hundreds * 100:,}" if random() < 0.6 else f"{hundreds / 10:g} thousand"
    return hundreds * 100, f"{who} earns {said} a year."


def _commute(random: Random, who: str) -> tuple[Any, str]:
    minutes = between(random, 61, 149)
    hours, rest = divmod(minutes, 60)
    more = f" and {in_words(rest, 'minute')}" if rest else ""
    said = f"{'an hour' if hours == 1 else 'two hours'}{more}"
    return minutes, f"{who}'s way to work takes {said}."


def _married(random: Random, who: str) -> tuple[Any, str]:
    married = random() < 0.5
    return married, f"{who} is {'married' if married else 'not married'}."


def _languages(random: Random, who: str) -> tuple[Any, str]:
    spoken = sample(random, _LANGUAGES, between(random, 2, 3))
    return spoken, f"{who} speaks {', '.join(spoken[:-1])} and {spoken[-1]}."


def _member(random: Random, who: str) -> tuple[Any, str]:
    code = f"{pick(random, 'ABCDEFGHJK')}{between(random, 100, 999)}"
    return code, f"The number on {who}'s card is {code}."


def _pet(random: Random, who: str) -> tuple[Any, str]:
    name, kind = pick(random, ("Pixel", "Moss", "Toffee", "Biscuit", "Comet")), pick(random, ("cat", "dog", "parrot"))
    return {"name": name, "kind": kind}, f"{who} has a {kind} called {name}."


_STRING, _INTEGER, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_FIELDS = (
    _Field(("age", "age_in_years"), _INTEGER, _age),
    _Field(("city", "residence"), _STRING, _city),
    _Field(("profession", "job", "occupation"), _STRING, _trade),
    _Field(("birth_date", "born"), {"type": "string", "format": "date"}, _birthday),
    _Field(("salary", "yearly_income"), _NUMBER, _salary),
    _Field(("commute_minutes", "travel_time"), _INTEGER, _commute),
    _Field(("married", "is_married"), {"type": "boolean"}, _married),
    _Field(("languages", "speaks"), {"type": "array", "items": _STRING}, _languages),
    _Field(("member_id", "card_number"), _STRING, _member),
    _Field(("pet", "animal"), {"type": "object", "properties": {"kind": _STRING, "name": _STRING}}, _pet),
)


_MENTIONED = 0.8
"""Share of the properties of people that the text mentions."""


_LIKE_ANOTHER: dict[Callable[[Random, str], tuple[Any, str]], str] = {
    _city: "{} lives in the same city as {}.",
    _trade: "{} has the same trade as {}.",
}
_TOLD = re.compile(
    r"(?P<link>(?P<who>\w+) (?P<kind>lives|has) [a-z ]+ as (?P<other>\w+)\.)"
    r"|(?P<lives>\w+)(?: left \w+ and now lives|'s home is) in (?P<city>\w+)\."
    r"|(?P<works>\w+) (?:works as|was a \w+ once and is) a (?P<trade>\w+)"
)


def _as_read(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record in which nobody's city and trade change with those of another person that are corrected."""
    kept: dict[tuple[str, str], str] = {}
    waiting: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for told in _TOLD.finditer(problem["text"]):
        if told["link"]:
            field = "city" if told["kind"] == "lives" else "trade"
            source, key = (field, told["other"]), (field, told["who"])
            if source in kept:
                kept[key] = kept[source]
            else:
                waiting[source].append(key)
        else:
            key, value = (
                (("city", told["lives"]), told["city"]) if told["lives"] else (("trade", told["works"]), told["trade"])
            )
            kept.update(dict.fromkeys([key, *waiting.pop(key, ())], value))
    names = {
        key: "city" if draw is _city else "trade" for keys, _, draw in _FIELDS if draw in _LIKE_ANOTHER for key in keys
    }
    return {
        "people": [
            {key: kept.get((names.get(key, ""), person["name"]), value) for key, value in person.items()}
            for person in problem["expected"]["people"]
        ]
    }


def _draw_people(random: Random, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem about several people: sentences about them stand in any order, and corrections replace some."""
    n_fields, n_corrections, n_links = settings["n"], settings["corrections"], settings["links"]
    people, others = sample(random, PEOPLE, settings["people"]), [f for f in _FIELDS if f.draw not in _LIKE_ANOTHER]
    fields = [field for field in _FIELDS if field.draw in _LIKE_ANOTHER]
    fields = shuffled(random, [*fields, *sample(random, others, n_fields - len(fields))])
    keys = [pick(random, field.keys) for field in fields]
    told = [(who, i) for who in people for i in range(n_fields) if random() < _MENTIONED]
    told = shuffled(random, told)
    alike = [(who, i) for who, i in told if fields[i].draw in _LIKE_ANOTHER]
    linked, sources = alike[:n_links], alike[n_links:]
    told = [entry for entry in told if entry not in linked]
    records: dict[str, dict[str, Any]] = {who: {"name": who} for who in people}
    sentences = []
    for who, i in told:
        records[who][keys[i]], said = fields[i].draw(random, who)
        sentences.append(said)
    by_field = {i: [entry for entry in sources if entry[1] == i] for _, i in linked}
    links = [(who, i, pick(random, by_field[i])[0]) for who, i in linked]
    first = [told.index((source, i)) for _, i, source in links][: n_corrections // 2]
    rest = [place for place in range(len(told)) if place not in first]
    changed = sorted([*set(first), *sample(random, rest, n_corrections - len(set(first)))], reverse=True)
    for place in changed:  # from the end, so that the places of those before stay what they are
        who, i = told[place]
        records[who][keys[i]], said = fields[i].draw(random, who)
        sentences.insert(between(random, place + 1, len(sentences)), f"Correction: {said}")
    for who, i, source in links:
        records[who][keys[i]] = records[source][keys[i]]
        sentences.insert(between(random, 0, len(sentences)), _LIKE_ANOTHER[fields[i].draw].format(who, source))
    properties = {"name": _STRING} | {key: field.schema for key, field in zip(keys, fields, strict=True)}
    person = {"type": "object", "properties": properties, "additionalProperties": False}
    schema = {
        "type": "object",
        "properties": {
            "people": {"type": "array", "items": person, "description": "everybody, in the order of the first sentence"}
        },
    }
    text = (
        f"This is about {', '.join(people[:-1])} and {people[-1]}. Corrections replace what was said before, also for "
        "those who live in the same city or have the same trade."
    )
    return {
        "schema": schema,
        "text": " ".join([text, *sentences]),
        "expected": {"people": [records[who] for who in people]},
    }


def _draw_list(random: Random, who: str) -> tuple[str, dict[str, Any], list[dict[str, Any]], str]:
    """Return (key, schema, values, sentence) of a list of objects."""
    items = sample(random, _ITEMS, between(random, 2, 4))
    values: list[dict[str, Any]] = []
    said = []
    for item in items:
        amount, cents = between(random, 2, 9), between(random, 2, 60) * 25
        values.append({"item": item, "quantity": amount, "price": cents / 100})
        said.append(f"{_ONES[amount - 1]} of the article {item} at {cents / 100:.2f} each")
    schema = {
        "type": "array",
        "items": {"type": "object", "properties": {"item": _STRING, "price": _NUMBER, "quantity": _INTEGER}},
    }
    return pick(random, ("orders", "purchases")), schema, values, f"{who} ordered {'; '.join(said)}."

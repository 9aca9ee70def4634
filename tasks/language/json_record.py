"""`llm/JsonRecord-v0`: write the content of a text as JSON that fits a schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
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
      and sentences that belong to none; "hard": six and a list of two to four objects; "expert": a list of 18 people
      with up to seven properties each in nested objects, told in any order, many by a comparison with somebody else,
      some of them corrected later.
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
            "18 people in nested objects, compared with one another, with corrections",
            chance_rate=1e-6,
            settings={"people": 18, "n": 7, "corrections": 16},
            expected_hard="Some 100 values are collected from as many sentences in any order. About 40 of them follow "
            "from the value of somebody else, through up to six comparisons, and 16 are replaced later, with all that "
            "follows from them; at one slip in 150 values, 51% of the records are right.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "at the expert level some 120 sentences about 18 people are drawn"
    problem_fields = {"schema": dict, "text": str, "expected": dict}
    instructions = "Write the content of the text as one JSON object that fits the schema."
    answer_example = '{"first_name": "Ada", "children": 2}'
    plain_answer = staticmethod(without_fence)
    has_natural_form = False

    def generate(self) -> dict[str, Any]:
        """Draw properties with their values, and say them."""
        random = self.np_random.random
        if self.difficulty == "expert":
            people = _People(random, self.settings["people"], self.settings["n"])
            told = people.tell(random, self.settings["corrections"])
            problem = people.problem(told)
            self._read_once = problem, people.records(_read_once(told))
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
        """Return, at the expert level, what the reader writes that reads once and keeps the last 50 values in mind.

        It writes each value down where the text tells it. Where it depends on somebody else's, and that is not one of
        the last 50 values, it is left out; what was written down does not change if the other's value is corrected.
        """
        problem, records = getattr(self, "_read_once", (None, None))
        if problem is not self.problem:
            return {}
        return {f"reader({_KEPT})": self.write_answer(json.dumps({"people": records}, ensure_ascii=False))}

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
    compare: Callable[[Random, str, str, Any], tuple[Callable[[Any], Any], str]]
    """The same, another's name and value -> how the value follows from the other's, and a sentence that tells it."""
    part: str = ""
    """The object of a nested record that has it; "" for the record itself."""


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


def _same_city(random: Random, who: str, other: str, value: Any) -> tuple[Callable[[Any], Any], str]:
    return lambda city: city, f"{who} lives in the same city as {other}."


def _same_trade(random: Random, who: str, other: str, value: Any) -> tuple[Callable[[Any], Any], str]:
    return lambda trade: trade, f"{who} has the same profession as {other}."


def _other_age(random: Random, who: str, other: str, value: Any) -> tuple[Callable[[Any], Any], str]:
    years = between(random, 2, 19)
    if value > 55:
        return lambda age: age - years, f"{who} is {in_words(years, 'year')} younger than {other}."
    return lambda age: age + years, f"{who} is {in_words(years, 'year')} older than {other}."


def _other_birthday(random: Random, who: str, other: str, value: Any) -> tuple[Callable[[Any], Any], str]:
    days, is_later = between(random, 2, 60), random() < 0.5
    change = timedelta(days if is_later else -days)
    said = f"{who} was born {in_words(days, 'day')} {'after' if is_later else 'before'} {other}."
    return lambda born: (date.fromisoformat(born) + change).isoformat(), said


def _other_salary(random: Random, who: str, other: str, value: Any) -> tuple[Callable[[Any], Any], str]:
    more = between(random, 3, 60) * 100
    if value > 60_000:
        return lambda salary: salary - more, f"{who} earns {more:,} a year less than {other}."
    return lambda salary: salary + more, f"{who} earns {more:,} a year more than {other}."


def _other_commute(random: Random, who: str, other: str, value: Any) -> tuple[Callable[[Any], Any], str]:
    minutes = between(random, 2, 25)
    if value > 100:
        return (
            lambda time: time - minutes,
            f"{who}'s way to work is {in_words(minutes, 'minute')} shorter than {other}'s.",
        )
    return lambda time: time + minutes, f"{who}'s way to work is {in_words(minutes, 'minute')} longer than {other}'s."


def _like_or_unlike(random: Random, who: str, other: str, value: Any) -> tuple[Callable[[Any], Any], str]:
    is_like = random() < 0.5
    said = f"Of {who} and {other}, " + ("both are married or neither." if is_like else "exactly one is married.")
    return lambda married: married is is_like, said


def _more_languages(random: Random, who: str, other: str, value: Any) -> tuple[Callable[[Any], Any], str]:
    last = pick(random, _LANGUAGES)
    said = f"{who} speaks the languages of {other} in the same order, but {last} comes last."
    return lambda spoken: [*[each for each in spoken if each != last], last], said


def _same_digits(random: Random, who: str, other: str, value: Any) -> tuple[Callable[[Any], Any], str]:
    letter = pick(random, "ABCDEFGHJK")
    said = f"The number on {who}'s card is that on {other}'s card with {letter} for its letter."
    return lambda code: f"{letter}{code[1:]}", said


def _namesake(random: Random, who: str, other: str, value: Any) -> tuple[Callable[[Any], Any], str]:
    kind = pick(random, ("cat", "dog", "parrot"))
    said = f"{who} has a {kind} that is called like {other}'s pet."
    return lambda pet: {"name": pet["name"], "kind": kind}, said


_STRING, _INTEGER, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_FIELDS = (
    _Field(("age", "age_in_years"), _INTEGER, _age, _other_age),
    _Field(("city", "residence"), _STRING, _city, _same_city, "home"),
    _Field(("profession", "job", "occupation"), _STRING, _trade, _same_trade, "work"),
    _Field(("birth_date", "born"), {"type": "string", "format": "date"}, _birthday, _other_birthday),
    _Field(("salary", "yearly_income"), _NUMBER, _salary, _other_salary, "work"),
    _Field(("commute_minutes", "travel_time"), _INTEGER, _commute, _other_commute, "work"),
    _Field(("married", "is_married"), {"type": "boolean"}, _married, _like_or_unlike, "home"),
    _Field(("languages", "speaks"), {"type": "array", "items": _STRING}, _languages, _more_languages),
    _Field(("member_id", "card_number"), _STRING, _member, _same_digits),
    _Field(
        ("pet", "animal"),
        {"type": "object", "properties": {"kind": _STRING, "name": _STRING}},
        _pet,
        _namesake,
        "home",
    ),
)

_MENTIONED = 0.8
"""Share of the properties of people that the text mentions."""
_COMPARED = 0.4
"""Share of those that it tells by a comparison with somebody else."""
_KEPT = 50
"""Values that the reader of `shortcuts` keeps in mind."""

_Values = dict[tuple[str, int], Any]
"""By person and number of the property."""


class _Told(NamedTuple):
    """A sentence that tells a property of a person."""

    who: str
    field: int
    value: Any
    """None if it follows from the value of somebody else."""
    other: str | None
    follows: Callable[[Any], Any]
    sentence: str


class _People:
    """The people of the expert level, with their properties."""

    def __init__(self, random: Random, n_people: int, n_fields: int) -> None:
        self.names, self.fields = sample(random, PEOPLE, n_people), sample(random, _FIELDS, n_fields)
        self.keys = [pick(random, field.keys) for field in self.fields]
        self.values: _Values = {}

    def tell(self, random: Random, n_corrections: int) -> list[_Told]:
        """Draw the values; return the sentences that tell them in any order, some of them corrected later."""
        told = []
        for i in range(len(self.fields)):
            known: list[str] = []
            for who in shuffled(random, self.names):
                if random() < _MENTIONED:
                    told.append(self._tell(random, who, i, known))
                    known.append(who)
        told = shuffled(random, told)
        for place in sorted(sample(random, range(len(told)), n_corrections), reverse=True):
            right = told[place]  # from the end, so that the places of those before stay what they are
            value, sentence = self.fields[right.field].draw(random, right.who)
            told[place] = _Told(right.who, right.field, value, None, _unchanged, sentence)
            right = right._replace(sentence=f"Correction: {right.sentence}")
            told.insert(between(random, place + 1, len(told)), right)
        return told

    def _tell(self, random: Random, who: str, i: int, known: list[str]) -> _Told:
        """Draw the value of a person's property, perhaps from that of one of `known`."""
        if known and random() < _COMPARED:
            other = pick(random, known[-4:])
            follows, sentence = self.fields[i].compare(random, who, other, self.values[other, i])
            self.values[who, i] = follows(self.values[other, i])
            return _Told(who, i, None, other, follows, sentence)
        value, sentence = self.fields[i].draw(random, who)
        self.values[who, i] = value
        return _Told(who, i, value, None, _unchanged, sentence)

    def records(self, values: _Values) -> list[dict[str, Any]]:
        """Return the people as objects that fit the schema."""
        records: list[dict[str, Any]] = [{"name": who} for who in self.names]
        for record in records:
            for i, (key, field) in enumerate(zip(self.keys, self.fields, strict=True)):
                if (record["name"], i) in values:
                    part = record.setdefault(field.part, {}) if field.part else record
                    part[key] = values[record["name"], i]
        return records

    def problem(self, told: Sequence[_Told]) -> dict[str, Any]:
        """Return the schema, the text and the expected object."""
        properties: dict[str, Any] = {"name": _STRING}
        for key, field in zip(self.keys, self.fields, strict=True):
            part = properties.setdefault(field.part, _object({}))["properties"] if field.part else properties
            part[key] = field.schema
        order = "everybody, in the order of the first sentence; without objects that would be empty"
        people = {"type": "array", "items": _object(properties), "description": order}
        text = (
            f"This is about {', '.join(self.names[:-1])} and {self.names[-1]}. Corrections replace what was said "
            "before. Comparisons with somebody are with what is right after all corrections."
        )
        return {
            "schema": {"type": "object", "properties": {"people": people}},
            "text": " ".join([text, *(each.sentence for each in told)]),
            "expected": {"people": self.records(self.values)},
        }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _unchanged(value: Any) -> Any:
    return value


def _read_once(told: Sequence[_Told]) -> _Values:
    """Return what the reader of `shortcuts` has written down."""
    written: _Values = {}
    kept: _Values = {}
    for each in told:
        value = each.value if each.other is None else kept.get((each.other, each.field))
        if value is not None:
            kept.pop((each.who, each.field), None)
            written[each.who, each.field] = kept[each.who, each.field] = each.follows(value)
        if len(kept) > _KEPT:
            del kept[next(iter(kept))]
    return written


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

"""`llm/Extraction-v0`: find all entries of a document that meet several conditions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.algorithmic.lists import check_words
from llm_envs.tasks.draws import Random, between, pick, sample, shuffled
from llm_envs.tasks.people import PEOPLE
from llm_envs.tasks.replies import list_items

__all__ = ["ExtractionEnv", "matching"]

Entry = dict[str, Any]


class ExtractionEnv(SingleTurnEnv):
    """Find all entries of a document that meet several conditions.

    ## Description
    The document is a report in prose on deliveries. For each it gives the code, the customer, the destination, the
    weight, and whether it has arrived, in changing words. From the hard level on, later paragraphs correct earlier
    ones. The question asks for the codes of all deliveries that meet the conditions. Teaches to read all of a long
    text, to combine conditions, and to let a correction replace the statement that it corrects.

    ## Observation
    The document and the question. After the reply "Correct.", "Incorrect." or the reason why it is malformed.

    ## Action
    The codes in the final answer, `<answer>K27, M81</answer>`, in any order, with commas, line breaks or "and" between
    them. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for exactly the right codes. `malformed` (weight -0.1): 1 for a reply without an answer,
    with broken tags, or with a code that the document does not have, or a code twice.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "starter": four deliveries, one condition; "easy" (default): six, one; "medium": twelve, two;
      "hard": eighteen, two, and corrections; "expert": 40, three, and corrections, where deliveries are compared with
      others, and conditions with those of the heaviest or lightest delivery that meets further conditions.
    - `reset(options={"problem": {"document": "...", "entries": [...], "conditions": [["city", "is", "Oslo"]]}})` gives
      the document, the final state of its deliveries, and the conditions, on "person", "city", "arrived" ("is") and
      "weight" ("over", "under"). A value may be that of another delivery,
      `{"of": "heaviest", "that": [["arrived", "is", true]]}`.

    ## Version History
    - v0: first version.
    """

    # Two of four codes: 6 sets, the likeliest right in 17%. Two or three of six: 35 sets, and some are likelier. Two to
    # four of 12 and of 18: 781 and 4,029 sets; two to eight of 40: over 90 million.
    difficulties = {
        "starter": Difficulty(
            "four deliveries, one condition",
            chance_rate=0.19,
            settings={"n": 4, "conditions": 1, "most": 2, "corrections": 0},
        ),
        "easy": Difficulty(
            "six deliveries, one condition",
            chance_rate=0.06,
            settings={"n": 6, "conditions": 1, "most": 3, "corrections": 0},
        ),
        "medium": Difficulty(
            "twelve, two conditions",
            chance_rate=0.005,
            settings={"n": 12, "conditions": 2, "most": 4, "corrections": 0},
        ),
        "hard": Difficulty(
            "eighteen, with corrections",
            chance_rate=0.002,
            settings={"n": 18, "conditions": 2, "most": 4, "corrections": 4},
        ),
        "expert": Difficulty(
            "40, compared with others, three nested conditions, with corrections",
            chance_rate=0.002,
            settings={"n": 40, "conditions": 3, "most": 8, "corrections": 12, "compared": 24},
            expected_hard="24 of the 40 deliveries get their weight or destination from another one, through up to "
            "five others, 12 are corrected, with all that follows from them, and two conditions need the heaviest or "
            "lightest delivery of some kind first: at one slip in 130 facts, half of the answers are right.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "at the expert level conditions are drawn until a few deliveries meet all, and each matters"
    problem_fields = {"document": str, "entries": list, "conditions": list}
    instructions = "Read the document and answer the question. Give only the codes, with commas between them."
    answer_example = "A12, B34"

    def generate(self) -> dict[str, Any]:
        """Draw deliveries, then conditions that two to four of them meet, then the words."""
        random, n = self.np_random.random, self.settings["n"]
        cities, people = sample(random, _CITIES, 4), sample(random, PEOPLE, 4)
        codes: list[str] = []
        while len(codes) < n:
            code = f"{pick(random, 'CDFGHKLMPRT')}{between(random, 11, 99)}"
            if code not in codes:
                codes.append(code)
        entries = [_draw_entry(random, code, people, cities) for code in codes]
        n_compared = self.settings.get("compared", 0)
        conditions = _draw_conditions(
            random, entries, self.settings["conditions"], self.settings["most"], is_nested=n_compared > 0
        )
        if conditions is None:
            return self.generate()
        compared = _compare(random, entries, n_compared)
        told = [_Told(entry, entry, compared.get(entry["code"], {})) for entry in entries]
        if n_corrections := self.settings["corrections"]:
            told = _corrected(random, told, conditions, cities, n_corrections)
        corrections = [_say_correction(random, each) for each in told if each.said != each.entry]
        sentences = [(each, _say(random, each)) for each in told]
        ordered, document = _paragraphs(random, sentences)
        document += "\n\n" + " ".join(corrections) if corrections else ""
        problem = {
            "document": f"{_COMPARISONS}\n\n{document}" if n_compared else document,
            "entries": entries,
            "conditions": conditions,
        }
        self._read_once = problem, _read_once(ordered)
        return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse entries and conditions of another form, and questions that nothing answers."""
        known = {"code": str, "person": str, "city": str, "weight": int, "arrived": bool}
        for entry in problem["entries"]:
            if not isinstance(entry, dict) or {k: type(v) for k, v in entry.items()} != known:
                raise InvalidActionError(f"the entry {entry!r} must have {', '.join(known)}")
        codes = [entry["code"] for entry in problem["entries"]]
        if len(set(codes)) < len(codes) or not all(code.isalnum() and code == code.upper() for code in codes):
            raise InvalidActionError("its codes must be different, of capitals and digits")
        _check_conditions(problem["entries"], problem["conditions"], known)
        if not matching(problem["entries"], problem["conditions"]):
            raise InvalidActionError("no entry meets the conditions")

    def prompt(self) -> str:
        """Return the document and the question."""
        conditions = [_SAID[name](how, what) for name, how, what in self.problem["conditions"]]
        document = self.problem["document"]
        if any(isinstance(what, dict) for _, _, what in self.problem["conditions"]):  # "and" would be ambiguous
            listed = "\n".join(f"{i}. They {condition}." for i, condition in enumerate(conditions, 1))
            return f"{document}\n\nWhich deliveries meet all of these conditions? Give their codes.\n{listed}"
        return f"{document}\n\nWhich deliveries {' and '.join(conditions)}? Give their codes."

    def solution(self) -> str:
        """Return the codes."""
        return ", ".join(matching(self.problem["entries"], self.problem["conditions"]))

    def shortcuts(self) -> Mapping[str, str]:
        """Return the answer of a reader that reads once and keeps the last 120 facts; a delivery has four.

        It works out a comparison where it reads it, if it still knows the other delivery. A correction replaces that
        fact, not what followed from it. A delivery does not meet a condition on a fact that it has lost.
        """
        problem, known = getattr(self, "_read_once", (None, []))
        if problem is not self.problem:
            return {}
        codes = matching(known, problem["conditions"]) or [problem["entries"][0]["code"]]
        return {f"reader({_KEPT})": self.write_answer(", ".join(codes))}

    def is_correct(self, answer: str) -> bool:
        """Compare as sets; a remark in parentheses behind a code does not matter."""
        for remark in re.findall(r"\(([^()]*)\)", answer):
            check_words(remark)
        given = [
            code
            for item in list_items(answer)
            for word in re.sub(r"\([^()]*\)?$", "", item).upper().split()
            if (code := word.strip("*`")) not in _NOT_CODES
        ]
        known = {entry["code"] for entry in self.problem["entries"]}
        for code in given:
            if code not in known:
                raise InvalidActionError(f"{code[:30]!r} is not a code of the document")
        if len(set(given)) < len(given):
            raise InvalidActionError("the answer has a code twice")
        if not given:
            raise InvalidActionError("the answer has no code")
        return set(given) == set(matching(self.problem["entries"], self.problem["conditions"]))


_NOT_CODES = ("DELIVERY", "DELIVERIES", "CODE", "CODES")


def matching(entries: Sequence[Entry], conditions: Sequence[Sequence[Any]]) -> list[str]:
    """Return the codes of the entries that meet all conditions `[property, "is" | "over" | "under", value]`.

    A value `{"of": "heaviest" | "lightest", "that": conditions}` is the property of that one entry.
    """
    values = [(name, how, _value(entries, name, what)) for name, how, what in conditions]
    return [entry["code"] for entry in entries if all(_meets(entry.get(name), how, what) for name, how, what in values)]


def _value(entries: Sequence[Entry], name: str, what: Any) -> Any:
    """Return the value of a condition; None if no entry, or more than one, is the heaviest or lightest."""
    if not isinstance(what, dict):
        return what
    codes = set(matching(entries, what["that"]))
    among = [entry for entry in entries if entry["code"] in codes and "weight" in entry]
    ordered = sorted(among, key=lambda entry: entry["weight"], reverse=what["of"] == "heaviest")
    is_one = bool(ordered) and (len(ordered) == 1 or ordered[0]["weight"] != ordered[1]["weight"])
    return ordered[0].get(name) if is_one else None


def _meets(value: Any, how: str, what: Any) -> bool:
    if value is None or what is None:
        return False
    if how == "is":
        return bool(value == what)
    return bool(value > what if how == "over" else value < what)


def _check_conditions(entries: Sequence[Entry], conditions: Any, known: Mapping[str, type], *, depth: int = 0) -> None:
    """Raise `InvalidActionError` for conditions of another form."""
    for condition in conditions:
        if not isinstance(condition, list) or len(condition) != 3 or condition[0] not in _SAID:
            raise InvalidActionError(f"the condition {condition!r} must be [{', '.join(_SAID)}; is, over, under; what]")
        name, how, what = condition
        if isinstance(what, dict) and depth == 0 and name != "arrived":
            if what.keys() != {"of", "that"} or what["of"] not in _EXTREMES or not isinstance(what["that"], list):
                raise InvalidActionError(f"the value {what!r} must have of ({', '.join(_EXTREMES)}) and that")
            _check_conditions(entries, what["that"], known, depth=1)
            what = _value(entries, name, what)
        if type(what) is not known[name] or how not in (["over", "under"] if name == "weight" else ["is"]):
            raise InvalidActionError(f"the condition {condition!r} does not fit {name}")


_CITIES = ("Lisbon", "Oslo", "Quito", "Riga", "Accra", "Hanoi", "Lima", "Turin", "Perth", "Bergen", "Cork", "Dakar")
_EXTREMES = ("heaviest", "lightest")
_COMPARISONS = "Where a delivery is compared with another, take what is right for the other after all corrections."
_KEPT = 120
"""Facts that the reader of `shortcuts` keeps."""


def _one(what: Mapping[str, Any]) -> str:
    """Return the words for a single delivery: "the heaviest delivery that goes to Oslo"."""
    verbs = {"person": "was ordered by {}", "city": "goes to {}", "arrived": "has {}arrived", "weight": "weighs {}"}
    said = []
    for name, how, value in what["that"]:
        if name == "arrived":
            value = "" if value else "not "
        elif name == "weight":
            value = f"{'more' if how == 'over' else 'less'} than {value} kg"
        said.append(verbs[name].format(value))
    return f"the {what['of']} delivery that {' and '.join(said)}"


def _say_weight(how: str, what: Any) -> str:
    return f"weigh {'more' if how == 'over' else 'less'} than {_one(what) if isinstance(what, dict) else f'{what} kg'}"


_SAID: dict[str, Callable[[str, Any], str]] = {
    "person": lambda how, what: (
        f"were ordered by {f'the customer of {_one(what)}' if isinstance(what, dict) else what}"
    ),
    "city": lambda how, what: f"go {f'where {_one(what)} goes' if isinstance(what, dict) else f'to {what}'}",
    "weight": _say_weight,
    "arrived": lambda how, what: "have arrived" if what else "have not arrived",
}


def _draw_entry(random: Random, code: str, people: Sequence[str], cities: Sequence[str]) -> Entry:
    return {
        "code": code,
        "person": pick(random, people),
        "city": pick(random, cities),
        "weight": between(random, 3, 97),
        "arrived": random() < 0.5,
    }


def _draw_conditions(
    random: Random, entries: Sequence[Entry], n: int, most: int, *, is_nested: bool
) -> list[list[Any]] | None:
    """Return conditions that at least two entries meet together, and each of which matters; None if none were found."""
    for _ in range(30):
        model = pick(random, entries)
        conditions: list[list[Any]] = []
        for name in sample(random, tuple(_SAID), n):
            if is_nested and name != "arrived":
                conditions.append(_draw_nested(random, entries, name))
            elif name == "weight":
                over = random() < 0.5
                bound = model["weight"] + between(random, 1, 9) * (-1 if over else 1)
                conditions.append(["weight", "over" if over else "under", bound])
            else:
                conditions.append([name, "is", model[name]])
        met = [set(matching(entries, [condition])) for condition in conditions]
        missed = [[entry["code"] not in codes for codes in met] for entry in entries]
        n_missed = [sum(row) for row in missed]
        if 2 <= n_missed.count(0) <= most:
            alone = [row for row, count in zip(missed, n_missed, strict=True) if count == 1]
            if all(any(row[i] for row in alone) for i in range(n)):
                return conditions
    return None


def _draw_nested(random: Random, entries: Sequence[Entry], name: str) -> list[Any]:
    """Return a condition on the property of the heaviest or lightest of at least four deliveries."""
    while True:
        model = pick(random, entries)
        of, others = pick(random, _EXTREMES), [other for other in ("person", "city", "arrived") if other != name]
        what = {"of": of, "that": [[other, "is", model[other]] for other in others if random() < 0.7]}
        if what["that"] and len(matching(entries, what["that"])) >= 4 and _value(entries, name, what) is not None:
            how = "is" if name != "weight" else "over" if of == "lightest" else "under"
            return [name, how, what]


class _Told(NamedTuple):
    """A delivery, and how the document tells it."""

    entry: Entry
    said: Entry
    """With a mistake in one property, if the document corrects it later."""
    like: Mapping[str, Entry]
    """By property: the delivery with which it is compared."""


def _compare(random: Random, entries: Sequence[Entry], n: int) -> dict[str, dict[str, Entry]]:
    """Return, by code, with which delivery the weight or the destination is compared, never in a circle."""
    found: dict[str, dict[str, Entry]] = {}
    order = shuffled(random, entries)
    for place in sorted(sample(random, range(6, len(order)), n) if n else []):
        entry, before = order[place], order[max(0, place - 12) : place]
        same = [other for other in before if other["city"] == entry["city"]]
        different = [other for other in before if other["weight"] != entry["weight"]]
        name, others = ("city", same) if same and random() < 0.5 else ("weight", different)
        if others:
            found[entry["code"]] = {name: pick(random, others)}
    return found


def _corrected(
    random: Random,
    told: Sequence[_Told],
    conditions: Sequence[Sequence[Any]],
    cities: Sequence[str],
    n_corrections: int,
) -> list[_Told]:
    """Return the deliveries with some mistakes, which matter: without the corrections the answer is another."""
    entries = [each.entry for each in told]
    used = {other["code"] for each in told for other in each.like.values()}
    plain = [place for place, each in enumerate(told) if not each.like]
    places = [place for place in plain if entries[place]["code"] in used] or plain
    for _ in range(50):
        changed = list(told)
        chosen = sample(random, places, min(n_corrections, len(places)))
        chosen += sample(random, [place for place in plain if place not in places], n_corrections - len(chosen))
        for place in chosen:
            entry, name = entries[place], pick(random, ("city", "weight", "arrived"))
            said = {**entry, name: _other(random, name, entry[name], cities)}
            changed[place] = told[place]._replace(said=said)
        if matching([each.said for each in changed], conditions) != matching(entries, conditions):
            break
    return changed


def _other(random: Random, name: str, value: Any, cities: Sequence[str]) -> Any:
    """Return another value of a property: the document has it first, and corrects it later."""
    if name == "arrived":
        return not value
    if name == "city":
        return pick(random, [city for city in cities if city != value])
    while abs((weight := between(random, 3, 97)) - value) <= 5:
        pass
    return weight


def _say(random: Random, told: _Told) -> str:
    code, person, city, weight = (told.said[name] for name in ("code", "person", "city", "weight"))
    arrived = pick(random, _ARRIVED if told.said["arrived"] else _UNDER_WAY)
    if not told.like:
        return pick(random, _FORMS).format(code=code, person=person, city=city, weight=weight, arrived=arrived)
    goes, weighs = f"goes to {city}", f"weighs {weight} kg"
    if (other := told.like.get("city")) is not None:
        goes = f"goes where {other['code']} goes"
    if (other := told.like.get("weight")) is not None:
        more = told.entry["weight"] - other["weight"]
        weighs = f"weighs {abs(more)} kg {'more' if more > 0 else 'less'} than {other['code']}"
    return pick(random, _COMPARED_FORMS).format(code=code, person=person, goes=goes, weighs=weighs, arrived=arrived)


_ARRIVED = ("has arrived", "is there already", "reached its destination")
_UNDER_WAY = ("has not arrived", "is still under way", "has yet to reach its destination")
_FORMS = (
    "Delivery {code}, ordered by {person}, weighs {weight} kg; it goes to {city} and {arrived}.",
    "{person} is the customer of {code}, which {arrived}. Its {weight} kg go to {city}.",
    "{city} is where {code} goes. It {arrived}, weighs {weight} kg and was ordered by {person}.",
    "At {weight} kg, {code} for {city} {arrived}. {person} had ordered it.",
)


_COMPARED_FORMS = (
    "Delivery {code}, ordered by {person}, {weighs}; it {goes} and {arrived}.",
    "{person} is the customer of {code}, which {arrived}. It {goes} and {weighs}.",
)


def _say_correction(random: Random, told: _Told) -> str:
    entry, code = told.entry, told.entry["code"]
    if told.said["city"] != entry["city"]:
        right = f"{code} goes to {entry['city']}"
    elif told.said["weight"] != entry["weight"]:
        right = f"{code} weighs {entry['weight']} kg"
    else:
        right = f"{code} {pick(random, _ARRIVED if entry['arrived'] else _UNDER_WAY)}"
    return pick(random, ("Correction: {}.", "Contrary to what is said above, {}.", "It turned out that {}.")).format(
        right
    )


def _paragraphs(random: Random, sentences: Sequence[tuple[_Told, str]]) -> tuple[list[_Told], str]:
    """Return the deliveries in the order of the document, and its paragraphs."""
    size = between(random, 3, 5)
    ordered = shuffled(random, sentences)
    starts = range(0, len(ordered), size)
    text = "\n\n".join(" ".join(sentence for _, sentence in ordered[i : i + size]) for i in starts)
    return [told for told, _ in ordered], text


def _read_once(ordered: Sequence[_Told]) -> list[Entry]:
    """Return what the reader of `shortcuts` knows of the deliveries in the end."""
    kept: dict[tuple[str, str], Any] = {}
    said = [(each, name) for each in ordered for name in ("person", "city", "weight", "arrived")]
    corrections = [(each, name) for each, name in said if each.said[name] != each.entry[name]]
    for number, (each, name) in enumerate([*said, *corrections]):
        value = (each.said if number < len(said) else each.entry)[name]
        if (other := each.like.get(name)) is not None:
            base = kept.get((other["code"], name))
            if base is None:
                continue
            value = base if name == "city" else base + each.entry["weight"] - other["weight"]
        kept.pop((each.entry["code"], name), None)
        kept[each.entry["code"], name] = value
        if len(kept) > _KEPT:
            del kept[next(iter(kept))]
    known: dict[str, Entry] = {each.entry["code"]: {"code": each.entry["code"]} for each in ordered}
    for (code, name), value in kept.items():
        known[code][name] = value
    return list(known.values())

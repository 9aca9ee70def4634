"""`llm/Extraction-v0`: find all entries of a document that meet several conditions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
      "hard": eighteen, two, and corrections; "expert": 48, three, and corrections.
    - `reset(options={"problem": {"document": "...", "entries": [...], "conditions": [["city", "is", "Oslo"]]}})` gives
      the document, the final state of its deliveries, and the conditions, on "person", "city", "arrived" ("is") and
      "weight" ("over", "under").

    ## Version History
    - v0: first version.
    """

    # Two of four codes: 6 sets, the likeliest right in 17%. Two or three of six: 35 sets, and some are likelier. Two to
    # four of 12 and of 18: 781 and 4,029 sets; two to eight of 48: over 400 million.
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
            "48, three conditions, with corrections",
            chance_rate=0.002,
            settings={"n": 48, "conditions": 3, "most": 8, "corrections": 12},
        ),
    }
    default_difficulty = "easy"
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
        conditions = _draw_conditions(random, entries, self.settings["conditions"], self.settings["most"])
        if conditions is None:
            return self.generate()
        said = entries
        corrections: list[str] = []
        if n_corrections := self.settings["corrections"]:
            said, corrections = _corrected(random, entries, conditions, cities, n_corrections)
        sentences = [_say(random, entry) for entry in said]
        document = _paragraphs(random, sentences) + ("\n\n" + " ".join(corrections) if corrections else "")
        return {"document": document, "entries": entries, "conditions": conditions}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse entries and conditions of another form, and questions that nothing answers."""
        known = {"code": str, "person": str, "city": str, "weight": int, "arrived": bool}
        for entry in problem["entries"]:
            if not isinstance(entry, dict) or {k: type(v) for k, v in entry.items()} != known:
                raise InvalidActionError(f"the entry {entry!r} must have {', '.join(known)}")
        codes = [entry["code"] for entry in problem["entries"]]
        if len(set(codes)) < len(codes) or not all(code.isalnum() and code == code.upper() for code in codes):
            raise InvalidActionError("its codes must be different, of capitals and digits")
        for condition in problem["conditions"]:
            if not isinstance(condition, list) or len(condition) != 3 or condition[0] not in _SAID:
                raise InvalidActionError(
                    f"the condition {condition!r} must be [{', '.join(_SAID)}; is, over, under; what]"
                )
            name, how, what = condition
            if type(what) is not known[name] or how not in (["over", "under"] if name == "weight" else ["is"]):
                raise InvalidActionError(f"the condition {condition!r} does not fit {name}")
        if not matching(problem["entries"], problem["conditions"]):
            raise InvalidActionError("no entry meets the conditions")

    def prompt(self) -> str:
        """Return the document and the question."""
        conditions = " and ".join(_SAID[name](how, what) for name, how, what in self.problem["conditions"])
        return f"{self.problem['document']}\n\nWhich deliveries {conditions}? Give their codes."

    def solution(self) -> str:
        """Return the codes."""
        return ", ".join(matching(self.problem["entries"], self.problem["conditions"]))

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
    """Return the codes of the entries that meet all conditions `[property, "is" | "over" | "under", value]`."""
    return [entry["code"] for entry in entries if all(_meets(entry[name], how, what) for name, how, what in conditions)]


def _meets(value: Any, how: str, what: Any) -> bool:
    if how == "is":
        return bool(value == what)
    return bool(value > what if how == "over" else value < what)


_CITIES = ("Lisbon", "Oslo", "Quito", "Riga", "Accra", "Hanoi", "Lima", "Turin", "Perth", "Bergen", "Cork", "Dakar")
_SAID: dict[str, Callable[[str, Any], str]] = {
    "person": lambda how, what: f"were ordered by {what}",
    "city": lambda how, what: f"go to {what}",
    "weight": lambda how, what: f"weigh {'more' if how == 'over' else 'less'} than {what} kg",
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


def _draw_conditions(random: Random, entries: Sequence[Entry], n: int, most: int) -> list[list[Any]] | None:
    """Return conditions that at least two entries meet together, and each of which matters; None if none were found."""
    for _ in range(30):
        model = pick(random, entries)
        conditions: list[list[Any]] = []
        for name in sample(random, tuple(_SAID), n):
            if name == "weight":
                over = random() < 0.5
                bound = model["weight"] + between(random, 1, 9) * (-1 if over else 1)
                conditions.append(["weight", "over" if over else "under", bound])
            else:
                conditions.append([name, "is", model[name]])
        missed = [[not _meets(entry[name], how, what) for name, how, what in conditions] for entry in entries]
        n_missed = [sum(row) for row in missed]
        if 2 <= n_missed.count(0) <= most:
            alone = [row for row, count in zip(missed, n_missed, strict=True) if count == 1]
            if all(any(row[i] for row in alone) for i in range(n)):
                return conditions
    return None


def _corrected(
    random: Random,
    entries: Sequence[Entry],
    conditions: Sequence[Sequence[Any]],
    cities: Sequence[str],
    n_corrections: int,
) -> tuple[list[Entry], list[str]]:
    """Return the entries with some mistakes, and the corrections of these; without them the answer is another."""
    for _ in range(50):
        said = list(entries)
        corrections = []
        for place in sample(random, range(len(entries)), n_corrections):
            name = pick(random, ("city", "weight", "arrived"))
            said[place] = {**entries[place], name: _other(random, name, entries[place][name], cities)}
            corrections.append((place, name))
        if any(
            matching([said[place]], conditions) != matching([entries[place]], conditions) for place, _ in corrections
        ):
            break
    return said, [_say_correction(random, entries[place], name) for place, name in corrections]


def _other(random: Random, name: str, value: Any, cities: Sequence[str]) -> Any:
    """Return another value of a property: the document has it first, and corrects it later."""
    if name == "arrived":
        return not value
    if name == "city":
        return pick(random, [city for city in cities if city != value])
    while abs((weight := between(random, 3, 97)) - value) <= 5:
        pass
    return weight


def _say(random: Random, entry: Entry) -> str:
    code, person, city, weight = (entry[name] for name in ("code", "person", "city", "weight"))
    arrived = pick(random, _ARRIVED if entry["arrived"] else _UNDER_WAY)
    return pick(random, _FORMS).format(code=code, person=person, city=city, weight=weight, arrived=arrived)


_ARRIVED = ("has arrived", "is there already", "reached its destination")
_UNDER_WAY = ("has not arrived", "is still under way", "has yet to reach its destination")
_FORMS = (
    "Delivery {code}, ordered by {person}, weighs {weight} kg; it goes to {city} and {arrived}.",
    "{person} is the customer of {code}, which {arrived}. Its {weight} kg go to {city}.",
    "{city} is where {code} goes. It {arrived}, weighs {weight} kg and was ordered by {person}.",
    "At {weight} kg, {code} for {city} {arrived}. {person} had ordered it.",
)


def _say_correction(random: Random, entry: Entry, name: str) -> str:
    code = entry["code"]
    if name == "city":
        right = f"{code} goes to {entry['city']}"
    elif name == "weight":
        right = f"{code} weighs {entry['weight']} kg"
    else:
        right = f"{code} {pick(random, _ARRIVED if entry['arrived'] else _UNDER_WAY)}"
    return pick(random, ("Correction: {}.", "Contrary to what is said above, {}.", "It turned out that {}.")).format(
        right
    )


def _paragraphs(random: Random, sentences: Sequence[str]) -> str:
    size = between(random, 3, 5)
    ordered = shuffled(random, sentences)
    return "\n\n".join(" ".join(ordered[i : i + size]) for i in range(0, len(ordered), size))

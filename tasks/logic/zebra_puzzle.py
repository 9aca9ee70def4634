"""`llm/ZebraPuzzle-v0`: who lives where, drinks what and keeps which pet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.algorithmic.lists import check_length, check_words
from llm_envs.tasks.draws import Random, pick, sample, shuffled
from llm_envs.tasks.logic.zebra_solver import (
    BETWEEN_VALUES,
    OF_A_HOUSE,
    Clue,
    Value,
    narrow,
    nothing_known,
    solve,
    tells,
)
from llm_envs.tasks.people import PEOPLE

__all__ = ["ZebraPuzzleEnv"]

_ATTRIBUTES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("drink", "the one who drinks {}", ("tea", "milk", "coffee", "water", "juice", "cocoa", "lemonade")),
    ("pet", "the owner of the {}", ("cat", "dog", "parrot", "goldfish", "hamster", "zebra", "tortoise")),
    ("colour", "the one in the {} house", ("red", "blue", "green", "yellow", "white", "orange", "purple")),
    ("job", "the {}", ("baker", "doctor", "painter", "pilot", "teacher", "farmer", "lawyer")),
    ("sport", "the one who likes {}", ("chess", "tennis", "rowing", "golf", "hockey", "judo", "skiing")),
)
_FIRST = ("name", "{}", PEOPLE)
_SAY = {
    "same": "{} is {}.",
    "other": "{} is not {}.",
    "left": "{} lives directly to the left of {}.",
    "next": "{} lives next door to {}.",
    "before": "{} lives somewhere to the left of {}.",
    "at": "{} lives in house {}.",
    "not at": "{} does not live in house {}.",
}
_KINDS = ("same", "same", "same", "other", "left", "left", "next", "next", "before")
_SYMMETRIC = ("same", "other", "next")
_ROUNDS = 3
"""Rounds of comparing the clues about values: after so many, different values almost always have different ranks."""
_HOUSE = re.compile(
    r"(?:^|(?<=[\s;,.|(*#\"{]))(?:house\s*(?:number\s*|#\s*)?)?([0-9]{1,3})[\s*\"]*[:.)=|\u2013-]",
    re.IGNORECASE | re.MULTILINE,
)
"""The number of a house before its values."""
_FILLERS = frozenset(
    (
        *("the", "a", "an", "and", "with", "who", "person", "one", "drinks", "drink", "likes", "like", "lives", "in"),
        *("has", "is", "owns", "keeps", "owner", "of", "house", "name", "works", "as"),
    )
)
"""Words that may stand between the values."""


class ZebraPuzzleEnv(SingleTurnEnv):
    """Find out from clues who lives in which house, with all that is theirs.

    ## Description
    Houses stand in a row; in each lives one person, and all differ in each of the named attributes (drink, pet, ...).
    The clues leave exactly one assignment, which can be found by ruling out houses, without trying out: the generator
    adds clues until that has found all. Teaches to combine many constraints, and to keep a table of what is still
    possible.

    ## Observation
    The attributes with their values, and the clues. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>1: Ada, tea, cat; 2: Ben, milk, dog</answer>`: all houses, on lines or between semicolons, with their
    values in any order. The names of the attributes ("pet: cat") may be there, too, and a table is understood. Thinking
    in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if everything is right. `malformed` (weight -0.1): 1 for a reply without an answer, with
    broken tags, or whose answer does not give each house one value of each attribute, and each value to one house.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". Puzzles that differ only in words are in the same split.
    - `difficulty`: "easy" (default): three houses, three attributes with the name; "medium": four and four; "hard":
      five and five, with few clues that name a house; "expert": seven and six, likewise.
    - `reset(options={"problem": {"attributes": [["name", ["Ada", "Ben"]], ["pet", ["cat", "dog"]]], "clues": [["at",
      [0, 0], 0], ["same", [0, 1], [1, 0]]]}})` plays a given puzzle: Ada (value 0 of attribute 0) lives in house 1
      (which is number 0), and Ben has the cat. Kinds of clues: "at", "not at", "same", "other", "left", "next",
      "before".

    ## Version History
    - v0: first version.
    """

    # One of (houses!)**attributes, each as likely as any other: 1 of 216, 331776, 2.5e10, 1.6e22.
    difficulties = {
        "easy": Difficulty(
            "three houses", chance_rate=0.005, settings={"houses": 3, "attributes": 3, "near": 0.3, "clues": 5}
        ),
        "medium": Difficulty(
            "four houses", chance_rate=4e-6, settings={"houses": 4, "attributes": 4, "near": 0.2, "clues": 10}
        ),
        "hard": Difficulty(
            "five houses", chance_rate=1e-9, settings={"houses": 5, "attributes": 5, "near": 0.1, "clues": 18}
        ),
        "expert": Difficulty(
            "seven houses",
            chance_rate=1e-9,
            settings={"houses": 7, "attributes": 6, "near": 0.05, "clues": 40},
            expected_hard="42 values are placed by some 50 clues, each looked at again and again as the table of 294 "
            "possibilities shrinks: some 300 steps of ruling out; at one slip in 400, 47% are right.",
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"attributes": list, "clues": list}
    slow_reset_reason = "at the hard level some 25 clues are drawn one by one, each followed through before the next"
    instructions = (
        "Solve the puzzle. The answer has one line for each house: the number of the house and all its values, in any "
        "order. The name is one of the values."
    )
    answer_example = "1: Ada, tea, cat\n2: Ben, milk, dog"
    has_natural_form = False

    def generate(self) -> dict[str, Any]:
        """Draw an assignment, and true clues until there is no other."""
        random, n, m = self.np_random.random, self.settings["houses"], self.settings["attributes"]
        attributes = [_FIRST, *sample(random, _ATTRIBUTES, m - 1)]
        named = [[name, sample(random, words, n)] for name, _, words in attributes]
        houses = [sample(random, range(n), n) for _ in range(m)]
        clues: list[Clue] = []
        possible, wanted = nothing_known(n, m), self.settings["clues"]
        while any(left & (left - 1) for values in possible for left in values):
            while len(clues) < wanted:
                clue = _draw_clue(random, houses, self.settings["near"])
                if clue not in clues and tells(clue, possible):
                    clues.append(clue)
            narrow(possible, clues)
            wanted += 1
        problem = {"attributes": named, "clues": [_as_json(clue) for clue in shuffled(random, clues)]}
        self._drawn = problem, houses
        return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a puzzle that has the wrong form, or not exactly one solution."""
        attributes, clues = problem["attributes"], problem["clues"]
        n = _check_attributes(attributes)
        if not all(_is_clue(clue, len(attributes), n) for clue in clues):
            raise InvalidActionError(
                'a clue is [kind, [attribute, number], [attribute, number]] or ["at", [0, 1], house]'
            )
        if len(solve(n, len(attributes), [_from_json(clue) for clue in clues])) != 1:
            raise InvalidActionError("not exactly one assignment fits the clues")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the clues without names: other words, or another order of anything, do not make another puzzle.

        A value is told by its clues, by the values in them, and by the other values of its attribute.
        """
        clues = [(kind, tuple(value), other) for kind, value, other in problem["clues"]]
        values = [(i, j) for i, (_, words) in enumerate(problem["attributes"]) for j in range(len(words))]
        ranks: dict[Value, int] = dict.fromkeys(values, 0)
        for _ in range(_ROUNDS):
            said: dict[Value, list[str]] = {value: [] for value in values}
            for kind, value, other in clues:
                if isinstance(other, int):
                    said[value].append(f"{kind} {other}")
                    continue
                to = tuple(other)
                roles = ("", "") if kind in _SYMMETRIC else ("first ", "second ")
                said[value].append(f"{roles[0]}{kind} {ranks[to]}")
                said[to].append(f"{roles[1]}{kind} {ranks[value]}")
            beside = {i: sorted(ranks[value] for value in values if value[0] == i) for i, _ in values}
            profiles = {value: f"{sorted(said[value])} {beside[value[0]]}" for value in values}
            order = {profile: rank for rank, profile in enumerate(sorted(set(profiles.values())))}
            ranks = {value: order[profile] for value, profile in profiles.items()}
        named = []
        for kind, value, other in clues:
            pair = [ranks[value], other if isinstance(other, int) else ranks[tuple(other)]]
            named.append([kind, *(sorted(pair) if kind in _SYMMETRIC else pair)])
        return sorted(named)

    def begin(self) -> None:
        """Take the assignment that was drawn, or solve a given puzzle."""
        drawn, houses = getattr(self, "_drawn", (None, []))
        attributes = self.problem["attributes"]
        n = len(attributes[0][1])
        if drawn is not self.problem:
            houses = solve(n, len(attributes), [_from_json(clue) for clue in self.problem["clues"]])[0]
        self._solution = [
            [words[where.index(house)] for (_, words), where in zip(attributes, houses, strict=True)]
            for house in range(n)
        ]

    def prompt(self) -> str:
        """Return the attributes and the clues."""
        attributes = self.problem["attributes"]
        n = len(attributes[0][1])
        phrases = {name: phrase for name, phrase, _ in (_FIRST, *_ATTRIBUTES)}
        lines = [f"{n} houses stand in a row, numbered 1 to {n} from left to right. One person lives in each."]
        lines.append("They differ in:")
        for name, words in attributes:
            lines.append(f"- {name}: {', '.join(sorted(words))}")
        lines.append("Clues:")

        def say(value: Value) -> str:
            name, words = attributes[value[0]]
            return phrases.get(name, f"the one with the {name} {{}}").format(words[value[1]])

        for i, (kind, value, other) in enumerate(self.problem["clues"], 1):
            text = _SAY[kind].format(say(value), other + 1 if isinstance(other, int) else say(other))
            lines.append(f"{i}. {text[0].upper()}{text[1:]}")
        return "\n".join(lines)

    def solution(self) -> str:
        """Return the whole assignment."""
        return "\n" + "\n".join(f"{i}: {', '.join(words)}" for i, words in enumerate(self._solution, 1)) + "\n"

    def is_correct(self, answer: str) -> bool:
        """Compare the values of each house."""
        known = {word.lower(): (i, word) for i, (_, words) in enumerate(self.problem["attributes"]) for word in words}
        n, found = len(self._solution), {}
        used: set[str] = set()
        fillers = _FILLERS | {name.lower() for name, _ in self.problem["attributes"]}
        check_length(answer)
        head, *houses = _HOUSE.split(answer.strip(" \n;."))
        if not houses or set(re.findall(r"\w+", head.lower())) & known.keys():
            raise InvalidActionError(f"{answer.strip()[:40]!r} is not of the form 1: value, value, ...")
        check_words(head)
        for number, line in zip(map(int, houses[::2]), houses[1::2], strict=True):
            if not 1 <= number <= n:
                raise InvalidActionError(f"there is no house {number}; the houses are 1 to {n}")
            words = [word for word in re.findall(r"\w+", line.lower()) if word in known or word not in fillers]
            unknown = next((word for word in words if word not in known), None)
            if unknown is not None:
                raise InvalidActionError(f"{unknown[:40]!r} is not a value of the puzzle")
            if sorted(known[word][0] for word in words) != list(range(len(self.problem["attributes"]))):
                raise InvalidActionError(f"house {number} must have one value of each attribute")
            if number in found or used & set(words):
                raise InvalidActionError(f"house {number} or one of its values is there twice")
            used |= set(words)
            found[number] = {known[word][1] for word in words}
        if len(found) < n:
            raise InvalidActionError(f"the answer has {len(found)} of {n} houses")
        return all(found[i] == set(words) for i, words in enumerate(self._solution, 1))


def _draw_clue(random: Random, houses: Sequence[Sequence[int]], near: float) -> Clue:
    """Draw a clue that is true; a share `near` of them names a house."""
    m, n = len(houses), len(houses[0])
    first = int(random() * m), int(random() * n)
    house = houses[first[0]][first[1]]
    if random() < near:
        if random() < 0.4:
            return "at", first, house
        not_there = int(random() * (n - 1))
        return "not at", first, not_there + (not_there >= house)
    while True:
        second = int(random() * m), int(random() * n)
        theirs = houses[second[0]][second[1]]
        kind = pick(random, _KINDS)
        is_about_one = first[0] == second[0]
        if (is_about_one and kind in ("same", "other")) or first == second or not BETWEEN_VALUES[kind](house, theirs):
            continue
        return kind, first, second


def _as_json(clue: Clue) -> list[Any]:
    kind, value, other = clue
    return [kind, list(value), other if isinstance(other, int) else list(other)]


def _from_json(clue: Sequence[Any]) -> Clue:
    kind, value, other = clue
    return (kind, tuple(value), other) if isinstance(other, int) else (kind, tuple(value), tuple(other))


def _check_attributes(attributes: Any) -> int:
    """Return the number of houses; raise if the attributes are not lists of as many different words each."""
    words: list[str] = []
    counts = set()
    for attribute in attributes:
        if not isinstance(attribute, list) or len(attribute) != 2 or not isinstance(attribute[1], list):
            raise InvalidActionError('an attribute is ["pet", ["cat", "dog"]]')
        words += [attribute[0], *attribute[1]]
        counts.add(len(attribute[1]))
    if not all(isinstance(word, str) and re.fullmatch(r"\w+", word) for word in words):
        raise InvalidActionError("attributes and values must be single words")
    if len(counts) != 1 or not 1 <= max(counts) <= 7 or not 1 <= len(attributes) <= 6:
        raise InvalidActionError("there must be 1 to 6 attributes, each with as many values: 1 to 7")
    values = [word.lower() for attribute in attributes for word in attribute[1]]
    if len(set(values)) < len(values):
        raise InvalidActionError("a value is there twice")
    return max(counts)


def _is_clue(clue: Any, m: int, n: int) -> bool:
    if not isinstance(clue, list) or len(clue) != 3 or not _is_value(clue[1], m, n):
        return False
    if clue[0] in list(OF_A_HOUSE):
        return type(clue[2]) is int and 0 <= clue[2] < n
    return clue[0] in list(BETWEEN_VALUES) and _is_value(clue[2], m, n)


def _is_value(value: Any, m: int, n: int) -> bool:
    if not isinstance(value, list) or len(value) != 2 or not all(type(part) is int for part in value):
        return False
    return 0 <= value[0] < m and 0 <= value[1] < n

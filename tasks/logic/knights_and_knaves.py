"""`llm/KnightsAndKnaves-v0`: who tells the truth, and who lies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, between, pick, sample
from llm_envs.tasks.logic.assignments import read_assignment
from llm_envs.tasks.people import PEOPLE

__all__ = ["KnightsAndKnavesEnv", "possible_kinds"]

Statement = list[Any]

_KINDS = (("knight", "knave"), ("truth-teller", "liar"), ("owl", "magpie"))
_IF = '"If X, then Y" is false when X is true and Y is false, and else true.'
_MOST_PEOPLE = 16
_SIMPLE = ("is", "is", "same", "different", "any")
_INDIRECT = ("any", "both", "if", "if", "count")
"""Forms that do not tell two people's kinds apart at once."""
_ALL = ("is", "same", "different", "any", "both", "if", "count")


class KnightsAndKnavesEnv(SingleTurnEnv):
    """Find out from what people say who always tells the truth and who always lies.

    ## Description
    Each person is of one of two kinds: all statements of the one kind are true, and all statements of the other
    are false. Each makes one statement about the kinds of some of them. Exactly one assignment of kinds fits; the
    generator has tried them all. Teaches reasoning by cases, and that a lie tells something, too.

    ## Observation
    The rule, the statements and the question. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>Ada: knight, Ben: knave, Cleo: knight</answer>`: the kind of each person, in any order. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if all kinds are right. `malformed` (weight -0.1): 1 for a reply without an answer, with
    broken tags, or whose answer does not give each person one kind.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". Puzzles that differ only in names are in the same split.
    - `difficulty`: "easy" (default): three people, simple statements; "medium": five, also about numbers and
      conditions; "hard": eight; "expert": sixteen, all statements about several people.
    - `reset(options={"problem": {"people": ["Ada", "Ben"], "kinds": ["knight", "knave"], "statements":
      [["is", 1, false], ["different", 0, 1]]}})` plays a given puzzle. Here person 0 calls person 1 a knave.
      Statements: `["is", a, truthful]`, `["same", a, b]`, `["different", a, b]`, `["any", a, b, truthful]` (at least
      one of them), `["both", a, b, truthful]`, `["if", a, truthful, b, truthful]`, `["count", k]` (exactly k of all
      are truthful).

    ## Version History
    - v0: first version.
    """

    # The chance rates bound the share of the commonest assignment, 13.3%, 3.6%, 0.6% and next to 0, and how often a
    # table of the forms that each kind uses is right: 17.6%, 5.4%, 0.6% and next to 0. It knows 53% of the people.
    difficulties = {
        "easy": Difficulty("three people", chance_rate=0.19, n_problems=224, settings={"people": 3, "forms": _SIMPLE}),
        "medium": Difficulty("five people", chance_rate=0.065, settings={"people": 5, "forms": _ALL}),
        "hard": Difficulty("eight people", chance_rate=0.01, settings={"people": 8, "forms": _ALL}),
        "expert": Difficulty(
            "sixteen people",
            chance_rate=0.001,
            settings={"people": 16, "forms": _INDIRECT},
            expected_hard="One of 65,536 assignments fits, and every statement leaves open what each of its people "
            "is; a proof goes through nested cases, some 300 statements to look up. At one slip in 400, 47% are "
            "right.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "at the expert level all 65,536 assignments are looked at until one is left"
    problem_fields = {"people": list, "kinds": list, "statements": list}
    instructions = "Find out which kind each person is. The answer is each name with its kind."
    answer_example = "Ada: knight, Ben: knave, Cleo: knight"

    def generate(self) -> dict[str, Any]:
        """Draw kinds, and statements that fit them, until no other kinds fit."""
        random, n, forms = self.np_random.random, self.settings["people"], self.settings["forms"]
        target = between(random, 0, 2**n - 1)
        statements = [_draw_statement(random, n, forms, i, target) for i in range(n)]
        while possible_kinds(n, statements) != 1 << target:
            i = int(random() * n)
            statements[i] = _draw_statement(random, n, forms, i, target)
        return {"people": sample(random, PEOPLE, n), "kinds": list(pick(random, _KINDS)), "statements": statements}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a puzzle that has the wrong form, or not exactly one solution."""
        people, kinds, statements = problem["people"], problem["kinds"], problem["statements"]
        if len(kinds) != 2 or not all(isinstance(x, str) and re.fullmatch(r"[\w-]+", x) for x in [*people, *kinds]):
            raise InvalidActionError("people and the two kinds must be single words")
        if not 1 <= len(people) <= _MOST_PEOPLE or len(set(people)) < len(people) or len(statements) != len(people):
            raise InvalidActionError(f"there must be 1 to {_MOST_PEOPLE} different people, with a statement each")
        if not all(_is_statement(statement, len(people)) for statement in statements):
            raise InvalidActionError("a statement is none of the documented forms")
        if possible_kinds(len(people), statements).bit_count() != 1:
            raise InvalidActionError("not exactly one assignment of kinds fits the statements")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return a key that does not depend on names and order: the statements by and about each person."""
        said = [_described(statement, speaker) for speaker, statement in enumerate(problem["statements"])]
        about: list[list[str]] = [[] for _ in said]
        for kind, people in said:
            for role, person in people:
                about[person].append(f"{role} {kind}")
        profiles = [f"{kind}: {sorted(heard)}" for (kind, _), heard in zip(said, about, strict=True)]
        return sorted(
            [profile, *sorted(f"{role} {profiles[person]}" for role, person in people)]
            for profile, (_, people) in zip(profiles, said, strict=True)
        )

    def begin(self) -> None:
        """Find the solution."""
        people, kinds = self.problem["people"], self.problem["kinds"]
        solution = possible_kinds(len(people), self.problem["statements"]).bit_length() - 1
        self._solution = {name: kinds[0 if solution >> i & 1 else 1] for i, name in enumerate(people)}

    def prompt(self) -> str:
        """Return the rule, the statements and the question."""
        people, (truthful, lying) = self.problem["people"], self.problem["kinds"]
        lines = [
            f"Each of {', '.join(people)} is either {_a(truthful)} or {_a(lying)}. "
            f"Whatever {_a(truthful)} says is true, whatever {_a(lying)} says is false. They say:"
        ]
        if any(statement[0] == "if" for statement in self.problem["statements"]):
            lines[0] = lines[0].replace(" They say:", f" {_IF} They say:")
        for i, statement in enumerate(self.problem["statements"]):
            lines.append(f'{people[i]}: "{_say(statement, i, people, self.problem["kinds"])}"')
        return "\n".join([*lines, "Of which kind is each of them?"])

    def solution(self) -> str:
        """Return everybody's kind."""
        return ", ".join(f"{name}: {kind}" for name, kind in self._solution.items())

    def is_correct(self, answer: str) -> bool:
        """Compare everybody's kind."""
        return read_assignment(answer, self.problem["people"], self.problem["kinds"]) == self._solution


def _described(statement: Statement, speaker: int) -> tuple[str, list[tuple[str, int]]]:
    """Return a statement without its people, and those with their roles in it; the first and second of "if" differ."""
    form, *rest = statement
    if form == "count":
        return f"count {rest[0]}", []
    people = [rest[0], rest[2]] if form == "if" else rest[:1] if form == "is" else rest[:2]
    truths = [value for value in rest if isinstance(value, bool)]
    roles = ("first", "second") if form == "if" else ("one", "one")
    named = [(role, person) for role, person in zip(roles, people, strict=False)]
    own = sorted(role for role, person in named if person == speaker)
    return f"{form} {truths} {own}", named


def possible_kinds(n: int, statements: Sequence[Statement]) -> int:
    """Return which of the 2**n assignments fit, as a set of bits: person i is truthful in assignment m if m has bit i.

    Assignment m fits if each person is truthful in it exactly when the person's statement is true in it.
    """
    truthful, every = _truthful(n)
    fitting = every
    for person, statement in zip(truthful, statements, strict=True):
        fitting &= ~(person ^ _meaning(n, statement))
    return fitting & every


@lru_cache(maxsize=16)
def _truthful(n: int) -> tuple[list[int], int]:
    """Return, for each person, the assignments in which it is truthful; and all assignments."""
    people = [sum(1 << m for m in range(2**n) if m >> i & 1) for i in range(n)]
    return people, (1 << 2**n) - 1


@lru_cache(maxsize=128)
def _exactly(n: int, count: int) -> int:
    return sum(1 << m for m in range(2**n) if m.bit_count() == count)


def _meaning(n: int, statement: Statement) -> int:
    """Return the assignments in which a statement is true."""
    people, every = _truthful(n)

    def kind(person: int, truthful: bool) -> int:
        return people[person] if truthful else every ^ people[person]

    form, *rest = statement
    if form == "is":
        return kind(*rest)
    if form == "same":
        return every ^ people[rest[0]] ^ people[rest[1]]
    if form == "different":
        return people[rest[0]] ^ people[rest[1]]
    if form == "any":
        return kind(rest[0], rest[2]) | kind(rest[1], rest[2])
    if form == "both":
        return kind(rest[0], rest[2]) & kind(rest[1], rest[2])
    if form == "if":
        return (every ^ kind(rest[0], rest[1])) | kind(rest[2], rest[3])
    return _exactly(n, rest[0])


def _draw_statement(random: Random, n: int, forms: Sequence[str], speaker: int, target: int) -> Statement:
    """Draw a statement that the speaker can make in the assignment `target`.

    Everything but the other people is drawn first, and kept if it can be: both kinds say each form equally often. A
    statement that only one kind can make, such as "Ben and I are both knaves", is not drawn.
    """
    n_tries = 0
    while True:
        if n_tries % _MOST_TRIES == 0:
            form, truthful, second_truthful = pick(random, forms), random() < 0.5, random() < 0.5
            place = int(random() * n)  # of the speaker among the people that are named, if it is 0 or 1
        n_tries += 1
        others = [person for person in range(n) if person != speaker]
        first, second = sample(random, others, 2)
        first, second = (speaker if place == 0 else first), (speaker if place == 1 else second)
        if form == "is":
            statement: Statement = ["is", others[int(random() * (n - 1))], truthful]
        elif form == "count":
            statement = ["count", _draw_count(random, n, speaker, target)]
        elif form == "if":
            statement = ["if", first, truthful, second, second_truthful]
        elif form in ("any", "both"):
            statement = [form, first, second, truthful]
        else:
            statement = [form, first, second]
        if _meaning(n, statement) >> target & 1 == target >> speaker & 1 and not _tells_its_speaker(
            n, statement, speaker
        ):
            return statement


def _draw_count(random: Random, n: int, speaker: int, target: int) -> int:
    """Draw how many are truthful: the true number, or one that is as likely from a truthful person."""
    if target >> speaker & 1:
        return target.bit_count()
    return 1 + sum(random() < 0.5 for _ in range(n - 1))


def _tells_its_speaker(n: int, statement: Statement, speaker: int) -> bool:
    """Return whether only one kind can make a statement, whatever the others are."""
    truthful, every = _truthful(n)
    fitting = every & ~(truthful[speaker] ^ _meaning(n, statement))
    return fitting & truthful[speaker] in (0, fitting)


_MOST_TRIES = 40
"""After so many, a form is given up: who tells the truth among people of one kind cannot tell that two differ."""
_SHAPES: dict[str, tuple[str, ...]] = {
    "is": ("person", "bool"),
    "same": ("person", "person"),
    "different": ("person", "person"),
    "any": ("person", "person", "bool"),
    "both": ("person", "person", "bool"),
    "if": ("person", "bool", "person", "bool"),
    "count": ("count",),
}


def _is_statement(statement: Any, n: int) -> bool:
    if not isinstance(statement, list) or not statement or statement[0] not in list(_SHAPES):
        return False
    shape = _SHAPES[statement[0]]
    if len(statement) != len(shape) + 1:
        return False
    for what, value in zip(shape, statement[1:], strict=True):
        if what == "bool" and type(value) is not bool:
            return False
        if what != "bool" and not (type(value) is int and 0 <= value < n + (what == "count")):
            return False
    return True


def _say(statement: Statement, speaker: int, people: Sequence[str], kinds: Sequence[str]) -> str:
    """Return the statement in the speaker's words."""
    form, *rest = statement

    def name(person: int) -> str:
        return "I" if person == speaker else people[person]

    def is_a(person: int, truthful: bool) -> str:
        return f"{name(person)} {'am' if person == speaker else 'is'} {_a(kinds[0 if truthful else 1])}"

    def pair() -> str:
        first, second = sorted(rest[:2], key=lambda person: person == speaker)
        return f"{name(first)} and {name(second)}"

    if form == "is":
        return f"{is_a(*rest)}."
    if form == "same":
        return f"{pair()} are of the same kind."
    if form == "different":
        return f"{pair()} are of different kinds."
    if form == "any":
        return f"Of {pair().replace(' I', ' me')}, at least one is {_a(kinds[0 if rest[2] else 1])}."
    if form == "both":
        return f"{pair()} are both {kinds[0 if rest[2] else 1]}s."
    if form == "if":
        return f"If {is_a(rest[0], rest[1])}, then {is_a(rest[2], rest[3])}."
    noun = f"is {_a(kinds[0])}" if rest[0] == 1 else f"are {kinds[0]}s"
    return f"Exactly {rest[0]} of the {len(people)} of us {noun}."


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"

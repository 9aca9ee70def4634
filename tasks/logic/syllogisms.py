"""`llm/Syllogisms-v0`: tell valid arguments about all, no and some from those that only look so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv, split_of
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, pick, sample, shuffled
from llm_envs.tasks.logic.assignments import read_assignment

__all__ = ["SyllogismsEnv", "follows", "forms"]

Proposition = list[Any]
"""[how, subject, predicate]: "all", "no", "some" or "some not"; or ["if" or "or", one of these, another]."""
Form = tuple[tuple[str, int, int], ...]
"""Premises and, last, the conclusion, about terms by number; the conclusion is about the first term and the last."""

_HOW = ("all", "no", "some", "some not")
_CONVERTIBLE = ("no", "some")
"""Propositions that mean the same with their terms exchanged."""
_OPPOSITE = {"all": "some not", "some not": "all", "no": "some", "some": "no"}
_VALIDITY = ("valid", "invalid")
_MOST_TERMS = 16
_MOST_CONDITIONS = 6
_KEPT = 12
"""Facts that the reader of `shortcuts` keeps. An expert argument has 13: eight links, three asides, and two links that
follow from a condition. So it forgets one at most, and fails because it does not go back."""
_TURNED = 12
"""How much likelier an invalid argument is one with a premise turned round than one with another premise. So who looks
only at "all", "no" and "some", or only at the terms' order, gets about three of four arguments right."""
_NOUNS = (
    *("bakers", "singers", "sailors", "gardeners", "painters", "dancers", "pilots", "poets", "jugglers", "farmers"),
    *("potters", "weavers", "archers", "bankers", "cooks", "clerks", "drummers", "hunters", "judges", "knitters"),
    *("masons", "miners", "nurses", "porters", "riders", "scholars", "skaters", "surgeons", "tailors", "teachers"),
    *("robins", "foxes", "beetles", "otters", "herons", "badgers", "lizards", "moths", "geese", "turtles"),
    *("blickets", "daxes", "wugs", "feps", "tomas", "zibs", "norps", "larks", "quorls", "vims"),
)


class SyllogismsEnv(SingleTurnEnv):
    """Decide which of several syllogisms are valid.

    ## Description
    Several arguments are given. Each has two premises (Aristotle's syllogisms, in all figures and moods), three or
    more; asides, which are premises about a kind that is named nowhere else; and a conclusion. Every invalid one
    differs from a valid one in a single premise, and half of the arguments with each kind of conclusion are valid, so
    that the conclusion tells nothing by itself. Nor do the nouns. At the expert level, two premises join two
    propositions with "if" or "or": one proposition is a link of a chain, the other is decided by a chain of three
    premises. One of these can be the second such premise. Teaches what follows from "all", "no" and "some", whatever
    one believes of the conclusion.

    ## Observation
    The rule and the arguments. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>1: valid, 2: invalid, 3: valid</answer>`: a verdict on each argument. Thinking in `<think>...</think>` is
    allowed before it.

    ## Reward
    `correct` (weight 1): 1 if all verdicts are right. `malformed` (weight -0.1): 1 for a reply without an answer, with
    broken tags, or whose answer does not have one verdict on each argument.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". No argument is in both, be it with other nouns or in another order: a table of the
      arguments of one split knows none of the other's.
    - `difficulty`: "easy" (default): five arguments of two premises and an aside; "medium": seven; "hard": seven of
      three premises and an aside; "expert": twelve of ten premises, two of them conditional, and three asides.
    - `reset(options={"problem": {"arguments": [{"premises": [["all", "a", "b"], ["some not", "c", "b"]], "conclusion":
      ["some not", "c", "a"]}]}})` asks for given arguments. A premise can also be `["if", ["all", "a", "b"], ["no",
      "b", "c"]]`, or the same with "or".

    ## Version History
    - v0: first version.
    """

    # Each argument is valid or not with probability 1/2, whatever the others are: a blind guess is right in 1 of 2**n.
    # The rates bound who looks only at "all", "no" and "some", and goes by what is likelier: 24%, 12%, 10% of 1,000;
    # and at the expert level who does not check conditions: 1.7% of 120.
    difficulties = {
        # n_problems: sets of forms, about as many as 10,000 draws find; names and nouns do not count.
        "easy": Difficulty(
            "five of two premises", 0.28, n_problems=600, settings={"arguments": 5, "premises": 2, "asides": 1}
        ),
        "medium": Difficulty(
            "seven of two premises", 0.15, n_problems=450, settings={"arguments": 7, "premises": 2, "asides": 1}
        ),
        "hard": Difficulty(
            "seven of three premises", 0.13, n_problems=900, settings={"arguments": 7, "premises": 3, "asides": 1}
        ),
        "expert": Difficulty(
            "twelve of ten premises with nested conditions",
            0.03,
            settings={"arguments": 12, "premises": 4, "conditions": 2, "condition_premises": 3, "asides": 3},
            expected_hard="Each verdict takes three chains among 13 premises in any order: what follows from one meets "
            "a condition of another, and a single premise of any chain or a condition may be wrong; at one wrong "
            "verdict in 18, half of the replies are right throughout.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "arguments are drawn until each is one of the split's"
    problem_fields = {"arguments": list}
    instructions = (
        "Decide for each argument whether its conclusion follows from its premises. The answer is the number of each "
        "argument with the word valid or invalid."
    )
    answer_example = "1: valid, 2: invalid, 3: valid"

    def generate(self) -> dict[str, Any]:
        """Draw the kind of each conclusion, whether it shall follow, and arguments of the split that are so."""
        random = self.np_random.random
        arguments = []
        for _ in range(self.settings["arguments"]):
            kind = pick(random, _HOW), random() < 0.5
            argument = self._draw_argument(*kind)
            while split_of(_shape(argument)) != self.split or self._has_other_verdict(argument, kind[1]):
                argument = self._draw_argument(*kind)
            arguments.append(argument)
        return {"arguments": arguments}

    def _draw_argument(self, how: str, is_valid: bool) -> dict[str, Any]:
        """Draw forms, nouns, and asides: they can always be true, and so change nothing.

        The first form is the argument's. The conclusion of each further one is the condition of an earlier premise. In
        an invalid argument one of the forms or one of the conditions is mistaken.
        """
        random, n_asides, n_conditions = self.np_random.random, self.settings["asides"], self._n_conditions
        sizes = [self.settings["premises"], *[self.settings.get("condition_premises", 0)] * n_conditions]
        n_terms = sum(sizes) + len(sizes)
        nouns = sample(random, _NOUNS, n_terms + n_asides)
        mistake = -1 if is_valid else int(random() * (2 * n_conditions + 1)) if n_conditions else 0
        premises: list[Proposition] = []
        conclusion: Proposition = []
        for i, size in enumerate(sizes):
            kind = pick(random, _HOW) if i else how
            start = sum(sizes[:i]) + i
            form = pick(random, forms(size)[kind, mistake != i])
            *links, end = ([word, nouns[start + a], nouns[start + b]] for word, a, b in form)
            if i:
                place = pick(random, [j for j, premise in enumerate(premises) if premise[0] in _HOW])
                premises[place] = _draw_condition(random, end, premises[place], mistake == n_conditions + i)
            else:
                conclusion = end
            premises += links
        for aside in nouns[n_terms:]:
            pair = shuffled(random, [nouns[int(random() * n_terms)], aside])
            premises.append([pick(random, _HOW), *pair])
        return {"premises": shuffled(random, premises), "conclusion": conclusion}

    @property
    def _n_conditions(self) -> int:
        return int(self.settings.get("conditions", 0))

    def _has_other_verdict(self, argument: Mapping[str, Any], is_valid: bool) -> bool:
        """Return whether a mistaken condition leaves the argument valid; without conditions, the form decides."""
        return self._n_conditions > 0 and follows(argument["premises"], argument["conclusion"]) != is_valid

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an argument that has the wrong form, or premises that cannot all be true."""
        if not 1 <= len(problem["arguments"]) <= 100:
            raise InvalidActionError("there must be 1 to 100 arguments")
        for argument in problem["arguments"]:
            if not isinstance(argument, dict) or argument.keys() != {"premises", "conclusion"}:
                raise InvalidActionError("an argument has premises and a conclusion")
            premises, conclusion = argument["premises"], argument["conclusion"]
            if not isinstance(premises, list) or not all(map(_is_premise, premises)) or not _is_proposition(conclusion):
                raise InvalidActionError(
                    f"a proposition is [how, subject, predicate], how being one of {_HOW}; a premise may also be "
                    '["if" or "or", proposition, proposition]'
                )
            if sum(premise[0] not in _HOW for premise in premises) > _MOST_CONDITIONS:
                raise InvalidActionError(f'an argument may have {_MOST_CONDITIONS} premises with "if" or "or"')
            if len(_terms([*premises, conclusion])) > _MOST_TERMS:
                raise InvalidActionError(f"an argument may have {_MOST_TERMS} terms")
            if not _are_possible(premises):
                raise InvalidActionError("premises contradict each other")

    def split_key(self, problem: Mapping[str, Any]) -> str:
        """Return one of the arguments, whatever its nouns and order: all that are drawn are of the split of each."""
        return min(_shape(argument) for argument in problem["arguments"])

    def begin(self) -> None:
        """Decide."""
        self._solution = {
            str(i): _VALIDITY[0 if follows(argument["premises"], argument["conclusion"]) else 1]
            for i, argument in enumerate(self.problem["arguments"], 1)
        }

    def prompt(self) -> str:
        """Return the rule and the arguments."""
        lines = [
            "There is at least one of each kind that is named. An argument is valid if its conclusion must be true"
        ]
        lines[0] += " whenever its premises are. Words mean nothing beyond what is said."
        if any(premise[0] == "if" for argument in self.problem["arguments"] for premise in argument["premises"]):
            lines[0] += ' "If X, then Y" is false when X is true and Y is false, and else true.'
        for i, argument in enumerate(self.problem["arguments"], 1):
            premises = " ".join(_say(premise) for premise in argument["premises"])
            lines.append(f"{i}. {premises} Therefore: {_say(argument['conclusion'])}")
        return "\n".join(lines)

    def solution(self) -> str:
        """Return all verdicts."""
        return ", ".join(f"{number}: {verdict}" for number, verdict in self._solution.items())

    def shortcuts(self) -> Mapping[str, str]:
        """Return, for arguments with conditions, the reply of a reader that never goes back, and of a credulous one.

        The first keeps 12 facts of an argument, and sees all that follows from them. It uses an "if" or "or" only if
        the facts kept when it reads this premise decide one side. The second does not check conditions: it takes each
        "if" and "or" for the side that makes the conclusion follow.
        """
        arguments = self.problem["arguments"]
        if all(premise[0] in _HOW for argument in arguments for premise in argument["premises"]):
            return {}
        ways = {f"reader({_KEPT})": _read_once, "conditions believed": _believe}
        return {
            name: self.write_answer(
                ", ".join(
                    f"{i}: {_VALIDITY[not way(argument['premises'], argument['conclusion'])]}"
                    for i, argument in enumerate(arguments, 1)
                )
            )
            for name, way in ways.items()
        }

    def is_correct(self, answer: str) -> bool:
        """Compare all verdicts."""
        return read_assignment(answer, list(self._solution), _VALIDITY) == self._solution


def follows(premises: Sequence[Proposition], conclusion: Proposition) -> bool:
    """Return whether the conclusion is true in every world in which the premises are, and all kinds have a member.

    What is to be refuted is the conclusion's contradictory together with the premises.
    """
    return not _are_possible([*premises, _opposite(conclusion)])


def _opposite(proposition: Proposition) -> Proposition:
    """Return the proposition that is true when the given one is false."""
    return [_OPPOSITE[proposition[0]], *proposition[1:]]


def _sides(premise: Proposition) -> list[Proposition]:
    """Return two propositions, at least one of them true, for "if" and "or"; otherwise the premise."""
    if premise[0] in _HOW:
        return [premise]
    return [_opposite(premise[1]) if premise[0] == "if" else premise[1], premise[2]]


def _terms(premises: Sequence[Proposition]) -> list[str]:
    return sorted({term for premise in premises for side in _sides(premise) for term in side[1:]})


def _draw_condition(random: Random, condition: Proposition, link: Proposition, is_mistaken: bool) -> Proposition:
    """Return a premise from which the link follows if the condition holds, or one of three that look like it."""
    sides = [_opposite(condition), link]
    if is_mistaken:
        turned = pick(random, ((True, False), (False, True), (True, True)))
        sides = [_opposite(side) if is_turned else side for side, is_turned in zip(sides, turned, strict=True)]
    first, second = shuffled(random, sides)
    return ["or", first, second] if random() < 0.5 else ["if", _opposite(first), second]


def _read_once(premises: Sequence[Proposition], conclusion: Proposition) -> bool:
    """Return whether the conclusion follows for a reader that keeps the last facts and never goes back."""
    kept: list[Proposition] = []
    for premise in premises:
        sides = _sides(premise)
        open_sides = [side for side in sides if len(sides) == 1 or not follows(kept, _opposite(side))]
        kept = [*kept, *open_sides][-_KEPT:] if len(open_sides) == 1 else kept
    return follows(kept, conclusion)


def _believe(premises: Sequence[Proposition], conclusion: Proposition) -> bool:
    """Return whether the conclusion follows from plain premises and some side of each other one."""
    choices = [_sides(premise) for premise in premises]
    return any(_are_possible(choice) and follows(choice, conclusion) for choice in product(*choices))


def _are_possible(propositions: Sequence[Proposition]) -> bool:
    """Return whether all propositions can be true at once while all terms have members."""
    terms = _terms(propositions)
    return any(_are_possible_sides(sides, terms) for sides in product(*map(_sides, propositions)))


def _are_possible_sides(propositions: Sequence[Proposition], terms: Sequence[str]) -> bool:
    """Return whether propositions without "if" and "or" can be true at once while all terms have members.

    A cell is what a thing can be: of some kinds and not of the others. "All" and "no" empty some cells. Whatever else
    is asked for wants some cell not to be empty, and is best served by a world in which all the others are filled.
    """
    has = dict(zip(terms, _cells(len(terms)), strict=True))
    filled = (1 << 2 ** len(terms)) - 1
    wanted = list(has.values())
    for how, subject, predicate in propositions:
        if how == "all":
            filled &= ~(has[subject] & ~has[predicate])
        elif how == "no":
            filled &= ~(has[subject] & has[predicate])
        elif how == "some":
            wanted.append(has[subject] & has[predicate])
        else:
            wanted.append(has[subject] & ~has[predicate])
    return all(filled & cells for cells in wanted)


@lru_cache(maxsize=32)
def _cells(n: int) -> list[int]:
    """Return, for each of n terms, the cells that have it: 2**term without it, 2**term with it, and so on."""
    return [((1 << 2**n) - 1) // ((1 << 2**term) + 1) << 2**term for term in range(n)]


@lru_cache(maxsize=4)
def forms(n_premises: int) -> dict[tuple[str, bool], list[Form]]:
    """Return all forms of arguments by the kind of the conclusion and by validity.

    The premises link the first term with the second, the second with the third and so on, in either direction. Of the
    invalid forms there are those that differ from a valid one in one premise, or in one premise's direction.
    """
    valid: set[Form] = set()
    for hows in product(_HOW, repeat=n_premises):
        for turned in product((False, True), repeat=n_premises):
            links = tuple(_link(how, i, is_turned) for i, (how, is_turned) in enumerate(zip(hows, turned, strict=True)))
            for how in _HOW:
                form = (*links, (how, 0, n_premises))
                if _is_valid(form):
                    valid.add(form)
    near: Counter[Form] = Counter()
    for form in valid:
        for i in range(n_premises):
            for how, is_turned in product(_HOW, (False, True)):
                # What only turns a premise round has the words of a valid argument: it is drawn more often.
                near[*form[:i], _link(how, i, is_turned), *form[i + 1 :]] += 1 if how != form[i][0] else _TURNED
    known: dict[tuple[str, bool], list[Form]] = {(how, is_valid): [] for how in _HOW for is_valid in (True, False)}
    for form in sorted(valid | near.keys()):
        known[form[-1][0], form in valid] += [form] if form in valid else [form] * near[form]
    return known


def _link(how: str, i: int, is_turned: bool) -> tuple[str, int, int]:
    return (how, i + 1, i) if is_turned else (how, i, i + 1)


def _is_valid(form: Form) -> bool:
    *premises, conclusion = ([how, str(subject), str(predicate)] for how, subject, predicate in form)
    return follows(premises, conclusion)


def _shape(argument: Mapping[str, Any]) -> str:
    """Return an argument with its nouns numbered, the same for any order of premises and of nouns after no and some.

    The two sides of an "if" or "or" count as premises: all ways to write it are alike.
    """
    how, first, last = argument["conclusion"]
    ends = [(first, last), (last, first)] if how in _CONVERTIBLE else [(first, last)]
    premises = [side for premise in argument["premises"] for side in _sides(premise)]
    return min(_numbered(premises, how, *pair) for pair in ends)


def _numbered(premises: Sequence[Proposition], how: str, first: str, last: str) -> str:
    """Return an argument with its nouns numbered from one of the conclusion's on; nouns that occur once are alike."""
    places = Counter([first, last, *(term for _, *terms in premises for term in terms)])
    names, queue = {first: "0"}, [first]
    for term in queue:
        for part in sorted(premises):
            others = [other for other in part[1:] if term in part[1:] and places[other] > 1 and other not in names]
            queue += others
            names |= {other: str(len(names) + i) for i, other in enumerate(others)}
    parts = []
    for kind, *terms in [*premises, [how, first, last]]:
        numbers = [names.get(term, "*") for term in terms]
        parts.append(" ".join([kind, *(sorted(numbers) if kind in _CONVERTIBLE else numbers)]))
    return "; ".join([parts.pop(), *sorted(parts)])


def _is_proposition(part: Any) -> bool:
    if not isinstance(part, list) or len(part) != 3 or not all(isinstance(word, str) and word for word in part):
        return False
    return part[0] in _HOW and part[1] != part[2]


def _is_premise(part: Any) -> bool:
    if isinstance(part, list) and len(part) == 3 and part[0] in ("if", "or"):
        return _is_proposition(part[1]) and _is_proposition(part[2])
    return _is_proposition(part)


def _say(part: Proposition) -> str:
    text = _clause(part)
    return f"{text[0].upper()}{text[1:]}."


def _clause(part: Proposition) -> str:
    how, first, second = part
    if how == "if":
        return f"if {_clause(first)}, then {_clause(second)}"
    if how == "or":
        return f"either {_clause(first)}, or {_clause(second)}, or both"
    return f"some {first} are not {second}" if how == "some not" else f"{how} {first} are {second}"

"""`llm/Units-v0`: convert between units, real and invented, by stated factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.arithmetic.word_problems import read_count
from llm_envs.tasks.draws import Random, between, pick, shuffled

__all__ = ["UnitsEnv"]

_USUAL: dict[str, Any] = {"ways": 1, "factors": (2, 12)}
"""Of most levels: how many units change, and the numbers in the facts about invented units."""
Fact = list[Any]
"""[larger unit, how many, smaller unit]: 1 mile = 8 furlongs."""

_REAL: tuple[tuple[Fact, ...], ...] = (
    (
        ["mile", 8, "furlong"],
        ["furlong", 10, "chain"],
        ["chain", 22, "yard"],
        ["yard", 3, "foot"],
        ["foot", 12, "inch"],
    ),
    (["week", 7, "day"], ["day", 24, "hour"], ["hour", 60, "minute"], ["minute", 60, "second"]),
    (["barrel", 36, "gallon"], ["gallon", 4, "quart"], ["quart", 2, "pint"], ["pint", 2, "cup"], ["cup", 16, "spoon"]),
    (["ton", 20, "hundredweight"], ["hundredweight", 8, "stone"], ["stone", 14, "pound"], ["pound", 16, "ounce"]),
    (["guinea", 21, "shilling"], ["shilling", 12, "penny"], ["penny", 4, "farthing"]),
)
_PLURALS = {"foot": "feet", "inch": "inches", "penny": "pence", "hundredweight": "hundredweight", "stone": "stone"}
_STARTS = ("bl", "dr", "fl", "gr", "k", "l", "m", "pl", "qu", "r", "sk", "t", "v", "w", "z")
_MIDDLES = ("a", "e", "i", "o", "u", "oo", "ee")
_ENDS = ("b", "d", "g", "lp", "m", "n", "ndle", "p", "rt", "sp", "v", "zzle")
_LARGEST = 10**40


class UnitsEnv(SingleTurnEnv):
    """Convert an amount or a rate from one unit to another.

    ## Description
    Facts such as "1 mile = 8 furlongs" are stated, of real units and of invented ones, in any order; some are not
    needed. An amount, or a rate such as 24 zarts per flunk, is to be told in other units. The result is always whole.
    Teaches to chain conversions, to tell multiplying from dividing, and to rely on what is stated.

    ## Observation
    The facts and the question. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>96</answer>`: the number, with or without its unit. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the right number. `malformed` (weight -0.1): 1 for a reply without an answer, with
    broken tags, or whose answer is not a whole number (a fraction, several numbers).

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "starter": an amount over one fact of two; "easy" (default): an amount over two facts, among four;
      "medium": over three or four, among six; "hard": a rate, whose both units change, among eight facts; "expert": a
      rate, over eight or nine facts for each unit, with numbers of two digits, among 36.
    - `reset(options={"problem": {"facts": [["mile", 8, "furlong"]], "amount": 3, "source": ["mile"],
      "target": ["furlong"]}})` asks for a given conversion; of a rate, `source` and `target` have two units.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound the share of the commonest answer (2.1%, 1.7%, 1.4%, 1.2%, below 0.1%) and of the best
    # blind pattern over the numbers of the text (the amount times the last factor, or any two: 28%, 7%, 0.6%, 0.4%,
    # 0%).
    difficulties = {
        "starter": Difficulty(
            "an amount over one fact", chance_rate=0.3, settings={"steps": (1, 1), "facts": 2} | _USUAL
        ),
        "easy": Difficulty(
            "an amount over two facts", chance_rate=0.08, settings={"steps": (2, 2), "facts": 4} | _USUAL
        ),
        "medium": Difficulty("an amount over three or four", 0.02, settings={"steps": (3, 4), "facts": 6} | _USUAL),
        "hard": Difficulty(
            "a rate, both units change", 0.02, settings={"steps": (2, 3), "facts": 8} | _USUAL | {"ways": 2}
        ),
        "expert": Difficulty(
            "a rate, over eight or nine facts for each unit",
            0.005,
            settings={"steps": (8, 9), "facts": 36, "ways": 2, "factors": (13, 97)},
            expected_hard="17 numbers of two digits are found among 36 facts, and multiplied or divided: some 400 "
            "products of digits on the way to numbers of 15 digits; at one slip in 500, 45% come out right.",
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"facts": list, "amount": int, "source": list, "target": list}
    instructions = "Convert with the stated facts. The answer is a whole number."
    answer_example = "1307"

    def generate(self) -> dict[str, Any]:
        """Draw one way between units, or two for a rate, an amount with a whole result, and facts not needed."""
        random, factors = self.np_random.random, self.settings["factors"]
        shortest, longest = self.settings["steps"]
        taken: set[str] = set()
        facts: list[Fact] = []
        source, target, ratio = [], [], Fraction(1)
        for i in range(self.settings["ways"]):
            way, ends = _way(random, between(random, shortest, longest), taken, factors, is_real=random() < 0.35)
            facts += way
            source.append(ends[0])
            target.append(ends[1])
            change = _ratio(way, ends[0], ends[1])
            assert change is not None
            ratio = ratio / change if i else ratio * change
        while len(facts) < self.settings["facts"]:
            near = pick(random, facts)[int(random() * 2) * 2]
            other = _new_unit(random, taken)
            number = between(random, *factors)
            facts.append([near, number, other] if random() < 0.5 else [other, number, near])
        amount = ratio.denominator * between(random, 2, 40)
        return {"facts": shuffled(random, facts), "amount": amount, "source": source, "target": target}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse what cannot be converted by the facts, or is not whole."""
        for fact in problem["facts"]:
            if not (isinstance(fact, list) and len(fact) == 3 and _is_fact(*fact)):
                raise InvalidActionError('each fact must be ["mile", 8, "furlong"], with a whole number up to 10**40')
        source, target = problem["source"], problem["target"]
        if len(source) != len(target) or len(source) not in (1, 2) or not 0 < problem["amount"] <= _LARGEST:
            raise InvalidActionError("source and target must have one unit each, or two, and the amount be 1 to 10**40")
        if not all(isinstance(unit, str) for unit in [*source, *target]):
            raise InvalidActionError("units must be texts")
        value = _convert(problem)
        if value is None or value.denominator != 1:
            raise InvalidActionError(
                f"the facts convert {problem['amount']} {source} to {value}, not to a whole number"
            )

    def split_key(self, problem: Mapping[str, Any]) -> list[Any]:
        """Return the facts' numbers, the amount and the result: other names do not make another problem."""
        return [problem["amount"], str(_convert(problem)), sorted(number for _, number, _ in problem["facts"])]

    def begin(self) -> None:
        """Convert."""
        value = _convert(self.problem)
        assert value is not None
        self._target = int(value)
        target = self.problem["target"]
        self._units = {"per", *target, *(word for unit in target for word in _plural(unit).split())}

    def prompt(self) -> str:
        """Return the facts and the question."""
        facts, amount = self.problem["facts"], self.problem["amount"]
        source, target = self.problem["source"], self.problem["target"]
        lines = [f"1 {larger} = {number} {_plural(smaller, number)}." for larger, number, smaller in facts]
        if len(source) == 1:
            question = f"How many {_plural(target[0])} are {amount} {_plural(source[0], amount)}?"
        else:
            rate = f"{amount} {_plural(source[0], amount)} per {source[1]}"
            question = f"How many {_plural(target[0])} per {target[1]} are {rate}?"
        return "\n".join([*lines, question])

    def solution(self) -> str:
        """Return the number."""
        return str(self._target)

    def is_correct(self, answer: str) -> bool:
        """Compare as whole numbers."""
        return read_count(answer, self._units) == self._target


def _way(
    random: Random, steps: int, taken: set[str], factors: tuple[int, int], *, is_real: bool
) -> tuple[list[Fact], tuple[str, str]]:
    """Draw facts that lead over `steps` units to another, and the first and the last of these units."""
    if is_real:
        system = pick(random, _REAL)
        start = int(random() * (len(system) - steps + 1))
        facts = [list(fact) for fact in system[start : start + steps]]
        units = {unit for fact in facts for unit in (fact[0], fact[2])}
        if len(facts) == steps and not units & taken:
            taken |= units
            ends = facts[0][0], facts[-1][2]
            return facts, ends if random() < 0.5 else ends[::-1]
    names = [_new_unit(random, taken) for _ in range(steps + 1)]
    facts = []
    for left, right in pairwise(names):
        is_down = random() < 0.5
        number = between(random, *factors)
        facts.append([left, number, right] if is_down else [right, number, left])
    return facts, (names[0], names[-1])


def _new_unit(random: Random, taken: set[str]) -> str:
    while True:
        name = pick(random, _STARTS) + pick(random, _MIDDLES) + pick(random, _ENDS)
        if name not in taken:
            taken.add(name)
            return name


def _convert(problem: Mapping[str, Any]) -> Fraction | None:
    """Return the amount in the target's units, or None if the facts do not say."""
    value = Fraction(problem["amount"])
    for i, (source, target) in enumerate(zip(problem["source"], problem["target"], strict=True)):
        ratio = _ratio(problem["facts"], source, target)
        if ratio is None:
            return None
        value = value / ratio if i else value * ratio
    return value


def _ratio(facts: Sequence[Fact], source: str, target: str) -> Fraction | None:
    """Return how many of the target unit one of the source unit is."""
    reached, waiting = {source: (1, 1)}, [source]
    while waiting:
        unit = waiting.pop()
        above, below = reached[unit]
        if unit == target:
            return Fraction(above, below)
        for larger, number, smaller in facts:
            if larger == unit and smaller not in reached:
                reached[smaller] = above * number, below
                waiting.append(smaller)
            elif smaller == unit and larger not in reached:
                reached[larger] = above, below * number
                waiting.append(larger)
    return None


def _is_fact(larger: Any, number: Any, smaller: Any) -> bool:
    return isinstance(larger, str) and isinstance(smaller, str) and type(number) is int and 0 < number <= _LARGEST


def _plural(unit: str, number: int = 2) -> str:
    return unit if number == 1 else _PLURALS.get(unit, f"{unit}s")

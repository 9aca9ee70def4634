"""`llm/BaseConversion-v0`: write numbers in other bases, and add in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.algorithmic.lists import check_length
from llm_envs.tasks.draws import between, pick

__all__ = ["BaseConversionEnv", "to_base"]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_MOST_DIGITS = 100
_PREFIXES = {2: "0b", 8: "0o", 16: "0x"}
_WITH_BASE = re.compile(r"(.+?)\s*(?:\(?\s*(?:in )?base[ -]?([0-9]{1,2})\s*\)?|_\{?([0-9]{1,2})\}?)", re.DOTALL)
_NAMES = {2: "binary", 8: "octal", 10: "decimal", 16: "hexadecimal"}
_SUBSCRIPTS = str.maketrans("\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089", "0123456789")


class BaseConversionEnv(SingleTurnEnv):
    """Convert a number from one base to another; at the top level the sum of two numbers.

    ## Description
    The number is written in a base from 2 to 36, with the letters a to z as digits from 10 to 35, and asked for in
    another base. Teaches place value, and carrying in any base.

    ## Observation
    The question. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>1f4</answer>`: the digits. Capitals, leading zeros, spaces between groups of digits, a prefix such as 0x
    and a base behind the digits ("1f4 (base 16)") do not matter. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the right digits. `malformed` (weight -0.1): 1 for a reply without an answer, with
    broken tags, or whose answer has characters that are not digits of the target's base.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "starter": 8 to 127 between the bases 2 and 10; "easy" (default): 16 to 999 between the bases 2, 8,
      10 and 16; "medium": 1000 to 20000 between the bases 2 to 16; "hard": the sum of two numbers up to 60000 between
      the bases 3 to 36; "expert": the sum of four numbers of 20 digits between the bases 7 to 36.
    - `reset(options={"problem": {"numbers": ["ff"], "source": 16, "target": 10}})` asks for a given conversion; of
      several numbers, for their sum.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound the share of the commonest string of digits: 0.9%, 0.4%, 0.02%, 0.01%, next to 0.
    difficulties = {
        "starter": Difficulty(
            "bases 2 and 10",
            chance_rate=0.02,
            n_problems=120,
            settings={"bases": (2, 10), "values": (8, 127), "count": 1},
        ),
        "easy": Difficulty(
            "bases 2, 8, 10, 16",
            chance_rate=0.005,
            n_problems=11_808,
            settings={"bases": (2, 8, 10, 16), "values": (16, 999), "count": 1},
        ),
        "medium": Difficulty(
            "bases 2 to 16",
            chance_rate=0.001,
            n_problems=3_990_210,
            settings={"bases": tuple(range(2, 17)), "values": (1_000, 20_000), "count": 1},
        ),
        "hard": Difficulty(
            "sums, bases 3 to 36",
            chance_rate=0.001,
            settings={"bases": tuple(range(3, 37)), "values": (1_000, 60_000), "count": 2},
        ),
        "expert": Difficulty(
            "four numbers of 20 digits, bases 7 to 36",
            chance_rate=0.001,
            settings={"bases": tuple(range(7, 37)), "digits": 20, "count": 4},
            expected_hard="After the sum, 20 digits are converted by some 20 divisions of a number of up to 30 "
            "digits: about 400 steps; at one slip in 500, 45% come out right.",
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"numbers": list, "source": int, "target": int}
    instructions = "Digits from 10 on are letters: a is 10, b is 11, ..., z is 35. The answer is the digits."
    answer_example = "1f4"

    def generate(self) -> dict[str, Any]:
        """Draw two bases and the numbers."""
        random, bases = self.np_random.random, self.settings["bases"]
        source, target = pick(random, bases), pick(random, bases)
        while target == source:
            target = pick(random, bases)
        numbers = [self._draw_number(source) for _ in range(self.settings["count"])]
        return {"numbers": numbers, "source": source, "target": target}

    def _draw_number(self, base: int) -> str:
        """Draw a number of the level by its digits, or by its value."""
        random, n_digits = self.np_random.random, self.settings.get("digits")
        if n_digits is None:
            return to_base(between(random, *self.settings["values"]), base)
        return pick(random, _DIGITS[1:base]) + "".join(pick(random, _DIGITS[:base]) for _ in range(n_digits - 1))

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse other bases, and texts that are not numbers of the base."""
        if not all(2 <= problem[key] <= 36 for key in ("source", "target")) or not problem["numbers"]:
            raise InvalidActionError("bases must be from 2 to 36, and there must be a number")
        for number in problem["numbers"]:
            if not isinstance(number, str) or not 0 < len(number) <= _MOST_DIGITS:
                raise InvalidActionError(f"numbers must be texts of 1 to {_MOST_DIGITS} digits")
            if not set(number) <= set(_DIGITS[: problem["source"]]):
                raise InvalidActionError(f"{number!r} has a digit that base {problem['source']} does not have")

    def split_key(self, problem: Mapping[str, Any]) -> list[Any]:
        """Return the values and the bases, whichever is the source: there and back is one problem."""
        values = sorted(int(number, problem["source"]) for number in problem["numbers"])
        return [values, sorted((problem["source"], problem["target"]))]

    def begin(self) -> None:
        """Add and convert."""
        value = sum(int(number, self.problem["source"]) for number in self.problem["numbers"])
        self._answer = to_base(value, self.problem["target"])

    def prompt(self) -> str:
        """Return the question."""
        numbers, source, target = self.problem["numbers"], self.problem["source"], self.problem["target"]
        if len(numbers) == 1:
            return f"The number {numbers[0]} is written in base {source}. Write it in base {target}."
        listed = f"{', '.join(numbers[:-1])} and {numbers[-1]}"
        return f"The numbers {listed} are written in base {source}. Write their sum in base {target}."

    def solution(self) -> str:
        """Return the digits."""
        return self._answer

    def is_correct(self, answer: str) -> bool:
        """Compare the digits."""
        base = self.problem["target"]
        question, equals, result = answer.partition("=")
        is_asked = bool(equals) and _bare_digits(question, self.problem["source"]) in self.problem["numbers"]
        digits = _bare_digits(result if is_asked else answer, base)  # 500 = 1f4
        if not digits or not set(digits) <= set(_DIGITS[:base]):
            raise InvalidActionError(f"the answer must be one number, written with the digits of base {base}")
        return (digits.lstrip("0") or "0") == self._answer


def _bare_digits(answer: str, base: int) -> str:
    """Return the digits of a number without a prefix, a base behind it and spaces between groups of digits."""
    check_length(answer)
    text = re.sub("[\u2080-\u2089]+", lambda found: "_" + found[0].translate(_SUBSCRIPTS), answer.strip().lower())
    if base in _NAMES:
        text = re.sub(rf"^{_NAMES[base]}:?\s+|\s*\(?(?:in )?{_NAMES[base]}\)?$", "", text)
    if (based := _WITH_BASE.fullmatch(text)) is not None:
        if int(based[2] or based[3]) != base:
            raise InvalidActionError(f"the answer is in base {based[2] or based[3]}; base {base} is asked for")
        text = based[1].strip()
    text = text[1:-1] if text[:1] + text[-1:] == "()" else text
    text = text.removeprefix(_PREFIXES.get(base, "0d"))
    first, *groups = re.split(r"[\s,_]+", text)
    # Words are digits, too, in the large bases. So spaces count only between groups of one size.
    if groups and (len(first) > len(groups[0]) or len(set(map(len, groups))) > 1 or (base > 16 and len(groups[0]) > 1)):
        raise InvalidActionError("the answer must be one number")
    return "".join([first, *groups])


def to_base(value: int, base: int) -> str:
    """Return the digits of a number from 0 in a base from 2 to 36."""
    digits = ""
    while value:
        value, digit = divmod(value, base)
        digits = _DIGITS[digit] + digits
    return digits or "0"

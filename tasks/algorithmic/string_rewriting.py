"""`llm/StringRewriting-v0`: apply rules to a string until none applies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations, product
from operator import itemgetter
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, pick, shuffled

__all__ = ["SHORTCUTS", "StringRewritingEnv", "rewrite"]

_ALPHABETS = tuple("".join(names) for letters in ("abc", "xyz", "pqr", "012") for names in permutations(letters))
_BLOCKS = tuple(map("".join, product("abcc", repeat=3)))
"""The parts of strings; half of their letters are c, which the last rule replaces."""
_LAST_SIDES = tuple("".join(letters) for n in (2, 3) for letters in product("ab", repeat=n))
_LEFT_SIDES = (*(4 * ("ac", "bc", "ca", "cb")), "aa", "ab", "ba", "bb")
_RIGHT_SIDES = (*(3 * ("", "a", "b")), "c", "aa", "ab", "ba", "bb", "ac", "bc", "ca", "cb", *_LAST_SIDES[4:])
_MOST_STEPS = 1_000
_LONGEST = 200


class StringRewritingEnv(SingleTurnEnv):
    """Rewrite a string by rules, step by step, to the end.

    ## Description
    In each step the first rule whose left side occurs in the string is applied to its leftmost occurrence; then the
    next step begins with the first rule again. It ends when no rule applies. Simpler procedures, such as to take the
    rules one after the other or to replace all occurrences at once, end in another string. Teaches to carry out a long
    deterministic process without a slip.

    ## Observation
    The order of application, the rules and the string. After the reply "Correct.", "Incorrect." or what was
    malformed.

    ## Action
    `<answer>abba</answer>`: the final string. Capitals and spaces in it do not matter. Of a chain "bbaa -> baba ->
    abba", the last string counts. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the final string. There is nothing for steps on the way. `malformed` (weight -0.1): 1
    for a reply without an answer, with broken tags, or whose answer has other characters than the string and the
    rules.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". Problems that differ only in letters are in the same split.
    - `difficulty`: "easy" (default): 3 rules, 9 letters, 4 to 9 steps; "medium": 4 rules, 12 letters, 7 to 14 steps;
      "hard": 4 rules, 15 letters, 11 to 22 steps; "expert": 4 rules, 27 letters, 20 to 55 steps.
    - `reset(options={"problem": {"rules": [["ba", "ab"], ["aa", "c"]], "string": "bbaa"}})` plays a given problem
      that ends within 1000 steps, with strings of at most 200 letters.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often a player wins who takes in each step any of the rules that fit: 7%, 2%, 2% and 2%
    # (of 400). The commonest final string has at most 0.6%.
    difficulties = {
        "easy": Difficulty("3 rules, 4 to 9 steps", 0.1, settings={"rules": 3, "blocks": 3, "steps": (4, 9)}),
        "medium": Difficulty("4 rules, 7 to 14 steps", 0.05, settings={"rules": 4, "blocks": 4, "steps": (7, 14)}),
        "hard": Difficulty("4 rules, 11 to 22 steps", 0.05, settings={"rules": 4, "blocks": 5, "steps": (11, 22)}),
        "expert": Difficulty(
            "4 rules, 20 to 55 steps",
            0.03,
            settings={"rules": 4, "blocks": 9, "steps": (20, 55)},
            expected_hard="Each of some 35 steps looks for up to four left sides in about 27 letters and copies them; "
            "at one slip in 50 such steps, 49% of the final strings are right.",
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"rules": list, "string": str}
    instructions = "Carry out the rewriting to the end. The answer is the final string."
    answer_example = "abbabba"

    def generate(self) -> dict[str, Any]:
        """Draw rules and strings until one takes the wanted number of steps and no shortcut gives its final string."""
        random, n_rules, n_blocks = self.np_random.random, self.settings["rules"], self.settings["blocks"]
        fewest, most = self.settings["steps"]
        while True:
            rules, n_strings = _draw_rules(random, n_rules), 2
            for n_tried in range(12):
                if n_tried == n_strings:
                    break
                string = "".join([pick(random, _BLOCKS) for _ in range(n_blocks)])
                final, used = rewrite(rules, string, most + 1)
                if len(used) > most:
                    break  # with these rules few strings come to an end
                if len(used) < fewest or len(set(used)) < n_rules or len(final) < 3 or len(set(final)) == 1:
                    continue
                if not any(shortcut(rules, string, 3 * most) == final for shortcut in SHORTCUTS):
                    names = str.maketrans("abc", pick(random, _ALPHABETS))
                    return {
                        "rules": [[side.translate(names) for side in rule] for rule in rules],
                        "string": string.translate(names),
                    }
                n_strings += 3  # these rules are better than others

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse rules that have the wrong form, and a rewriting that does not end."""
        rules, string = problem["rules"], problem["string"]
        if not all(
            isinstance(rule, list) and len(rule) == 2 and all(isinstance(x, str) for x in rule) for rule in rules
        ):
            raise InvalidActionError('rules must be pairs of texts, such as ["ba", "ab"]')
        if not all(rule[0] for rule in rules) or not re.fullmatch(r"[a-z0-9]*", string + "".join(map("".join, rules))):
            raise InvalidActionError("left sides may not be empty, and there may be small letters and digits only")
        if not 1 <= len(string) <= _LONGEST or any(len(side) > _LONGEST for rule in rules for side in rule):
            raise InvalidActionError(f"strings must have 1 to {_LONGEST} letters, and sides of rules no more")
        final, used = rewrite(rules, string, _MOST_STEPS + 1)
        if len(used) > _MOST_STEPS or len(final) > _LONGEST or not final:
            raise InvalidActionError(f"it must end within {_MOST_STEPS} steps in 1 to {_LONGEST} letters")

    def split_key(self, problem: Mapping[str, Any]) -> list[Any]:
        """Return the rules and the string with the letters by their first place in them."""
        text = "|".join([problem["string"], *(f"{left}>{right}" for left, right in problem["rules"])])
        names = {letter: str(i) for i, letter in enumerate(dict.fromkeys(re.sub(r"[|>]", "", text)))}
        return [names.get(letter, letter) for letter in text]

    def shortcuts(self) -> dict[str, str]:
        """Return where simpler procedures end."""
        rules, string = self.problem["rules"], self.problem["string"]
        return {
            shortcut.__name__.strip("_").replace("_", " "): self.write_answer(shortcut(rules, string, _MOST_STEPS))
            for shortcut in SHORTCUTS
        }

    def begin(self) -> None:
        """Rewrite."""
        self._final, _ = rewrite(self.problem["rules"], self.problem["string"], _MOST_STEPS)
        self._letters = set(self.problem["string"]).union(*map("".join, self.problem["rules"]))

    def prompt(self) -> str:
        """Return the order of application, the rules and the string."""
        lines = [
            "In each step, go through the rules from the top and take the first one whose left side occurs in the "
            "string. Replace the leftmost occurrence by the right side. Repeat until no rule applies.",
            "Rules:",
        ]
        for i, (left, right) in enumerate(self.problem["rules"], 1):
            lines.append(f"{i}. {left} -> {right or '(nothing)'}")
        lines.append(f"String: {self.problem['string']}")
        return "\n".join(lines)

    def solution(self) -> str:
        """Return the final string."""
        return self._final

    def is_correct(self, answer: str) -> bool:
        """Compare the strings."""
        *_, last = re.split(r"->|=>|[\u2192\u21d2]", answer)
        text = re.sub(r"[\s,'\"`*-]", "", last).lower()
        if not text or not set(text) <= self._letters:
            raise InvalidActionError(f"the answer may only have the letters {', '.join(sorted(self._letters))}")
        return text == self._final


def rewrite(rules: Sequence[Sequence[str]], string: str, limit: int) -> tuple[str, list[int]]:
    """Return the final string and the rule used in each step, by its place; stop after `limit` steps or if it grows."""
    used: list[int] = []
    numbered = [(i, left, right) for i, (left, right) in enumerate(rules)]
    while len(used) < limit and len(string) <= 10 * _LONGEST:
        for i, left, right in numbered:
            if left in string:
                string = string.replace(left, right, 1)
                used.append(i)
                break
        else:
            break
    return string, used


def _draw_rules(random: Random, n: int) -> list[list[str]]:
    """Draw rules for the letters a, b and c: of two letters at the left, the last one of one.

    The last rule makes what the others wait for, so that much depends on which rule is applied first.
    """
    right = pick(random, _LAST_SIDES)
    lefts = {f"{right[-1]}c": ""} if random() < 0.5 else {f"c{right[0]}": ""}
    while len(lefts) < n - 1:
        lefts[pick(random, _LEFT_SIDES)] = ""
    rules = []
    for left in shuffled(random, tuple(lefts)):
        other = pick(random, _RIGHT_SIDES)
        rules.append([left, other if other != left else ""])
    return [*rules, ["c", right]]


def _rightmost(rules: Sequence[Sequence[str]], string: str, limit: int) -> str:
    """Replace the rightmost occurrence instead of the leftmost."""
    for _ in range(limit):
        for left, right in rules:
            if (place := string.rfind(left)) >= 0:
                string = string[:place] + right + string[place + len(left) :]
                break
        else:
            break
    return string


def _leftmost_place(rules: Sequence[Sequence[str]], string: str, limit: int) -> str:
    """Apply the rule that fits furthest to the left instead of the first one."""
    for _ in range(limit):
        fitting = [(place, left, right) for left, right in rules if (place := string.find(left)) >= 0]
        if not fitting:
            break
        place, left, right = min(fitting, key=itemgetter(0))
        string = string[:place] + right + string[place + len(left) :]
    return string


def _all_at_once(rules: Sequence[Sequence[str]], string: str, limit: int) -> str:
    """Replace every occurrence at once instead of the leftmost."""
    for _ in range(limit):
        for left, right in rules:
            if left in string:
                string = string.replace(left, right)
                break
        else:
            break
        if len(string) > _LONGEST:
            break
    return string


def _in_turn(rules: Sequence[Sequence[str]], string: str, limit: int) -> str:
    """Apply the rules once each in turn instead of beginning again with the first."""
    for _ in range(limit):
        before = string
        for left, right in rules:
            string = string.replace(left, right, 1)
        if string == before or len(string) > _LONGEST:
            break
    return string


def _one_after_the_other(rules: Sequence[Sequence[str]], string: str, limit: int, n_rounds: int = 1) -> str:
    """Apply each rule as often as it fits, then the next one, instead of beginning again with the first."""
    for _ in range(n_rounds):
        before = string
        for left, right in rules:
            for _ in range(limit):
                if left not in string or len(string) > _LONGEST:
                    break
                string = string.replace(left, right, 1)
        if string == before:
            break
    return string


def _in_rounds(rules: Sequence[Sequence[str]], string: str, limit: int) -> str:
    """Do the same in rounds, until no rule fits."""
    return _one_after_the_other(rules, string, limit, limit)


def _backwards(rules: Sequence[Sequence[str]], string: str, limit: int) -> str:
    """Go through the rules from the bottom instead of the top."""
    return rewrite(rules[::-1], string, limit)[0]


SHORTCUTS: tuple[Callable[[Sequence[Sequence[str]], str, int], str], ...] = (
    _all_at_once,
    _in_rounds,
    _rightmost,
    _in_turn,
    _leftmost_place,
    _backwards,
    _one_after_the_other,
)
"""Simpler procedures, each with another order than the right one: `(rules, string, limit of steps)` to a final string.
None gives the right one."""

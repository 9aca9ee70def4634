"""`llm/StringRewriting-v0`: apply rules to a string until none applies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, between, pick

__all__ = ["StringRewritingEnv", "rewrite"]

_ALPHABETS = ("abc", "xyz", "pqr", "012")
_MOST_STEPS = 1_000
_LONGEST = 200


class StringRewritingEnv(SingleTurnEnv):
    """Rewrite a string by rules, step by step, to the end.

    ## Description
    In each step the first rule whose left side occurs in the string is applied to its leftmost occurrence; then the
    next step begins with the first rule again. It ends when no rule applies. Teaches to carry out a long
    deterministic process without a slip.

    ## Observation
    The order of application, the rules and the string. After the reply "Correct.", "Incorrect." or what was
    malformed.

    ## Action
    The final string as the final answer, `<answer>abba</answer>`; spaces in it do not matter. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the final string. There is nothing for steps on the way. `malformed` (weight -0.1): 1
    for a reply without an answer, with broken tags, or whose answer has other characters than the string and the
    rules.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". Problems that differ only in letters are in the same split.
    - `difficulty`: "easy" (default): 2 rules, 6 letters, 3 to 5 steps; "medium": 3 rules, 8 letters, 6 to 10 steps;
      "hard": 4 rules, 11 letters, 11 to 20 steps.
    - `reset(options={"problem": {"rules": [["ba", "ab"], ["aa", "c"]], "string": "bbaa"}})` plays a given problem
      that ends within 1000 steps, with strings of at most 200 letters.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound the share of the commonest final string (0.6%, 0.4%, 0.4%) and how often the letters of the
    # string in alphabetic order are right (2.2%, 1.3%, 0).
    difficulties = {
        "easy": Difficulty("2 rules, 3 to 5 steps", 0.03, settings={"rules": 2, "length": 6, "steps": (3, 5)}),
        "medium": Difficulty("3 rules, 6 to 10 steps", 0.02, settings={"rules": 3, "length": 8, "steps": (6, 10)}),
        "hard": Difficulty("4 rules, 11 to 20 steps", 0.01, settings={"rules": 4, "length": 11, "steps": (11, 20)}),
    }
    default_difficulty = "easy"
    problem_fields = {"rules": list, "string": str}
    instructions = "Carry out the rewriting. Reply with the final string as <answer>...</answer>."

    def generate(self) -> dict[str, Any]:
        """Draw rules and a string until it takes the wanted number of steps, and every rule is used."""
        random, (fewest, most) = self.np_random.random, self.settings["steps"]
        alphabet = pick(random, _ALPHABETS)
        while True:
            string = "".join(pick(random, alphabet) for _ in range(self.settings["length"]))
            rules = _draw_rules(random, alphabet, self.settings["rules"], string)
            final, used = rewrite(rules, string, most + 1)
            if (
                fewest <= len(used) <= most
                and len(set(used)) == self.settings["rules"]
                and len(set(final)) > 1
                and len(final) > 2
            ):
                return {"rules": rules, "string": string}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse what are no rules, or does not end."""
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
        text = "".join(answer.split()).lower()
        if not set(text) <= self._letters:
            raise InvalidActionError(f"the answer may only have the letters {', '.join(sorted(self._letters))}")
        return text == self._final


def rewrite(rules: Sequence[Sequence[str]], string: str, limit: int) -> tuple[str, list[int]]:
    """Return the final string and the rule used in each step, by its place; stop after `limit` steps or if it grows."""
    used: list[int] = []
    while len(used) < limit and len(string) <= 10 * _LONGEST:
        for i, (left, right) in enumerate(rules):
            if left in string:
                string = string.replace(left, right, 1)
                used.append(i)
                break
        else:
            break
    return string, used


def _draw_rules(random: Random, alphabet: str, n: int, string: str) -> list[list[str]]:
    """Draw rules with different left sides, parts of the string (fewer, if it has too few).

    About a third exchange two letters, the others replace letters by at most as many.
    """
    rules: list[list[str]] = []
    for _ in range(4 * n):
        if len(rules) == n:
            break
        start = int(random() * (len(string) - 2))
        left = string[start : start + (2 if random() < 0.75 else 3)]
        if random() < 0.8 and left[0] > left[1]:
            left, right = left[:2], left[1::-1]
        else:
            right = "".join(pick(random, alphabet) for _ in range(between(random, 0, len(left))))
        if left != right and all(left != other for other, _ in rules):
            rules.append([left, right])
    return rules

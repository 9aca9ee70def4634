"""`llm/Regex-v0`: write a short regular expression that tells some texts from others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, between, pick, sample
from llm_envs.tasks.language.patterns import Pattern
from llm_envs.tasks.replies import without_fence

__all__ = ["RegexEnv"]


_MARKED = re.compile(r"\A(\*\*|\$)(.+)\1\Z", re.DOTALL)
"""Bold or a formula: no pattern begins with these signs."""


def _without_marks(answer: str) -> str:
    return _MARKED.sub(r"\2", without_fence(answer))


class RegexEnv(SingleTurnEnv):
    r"""Write a short regular expression that tells some texts from others.

    ## Description
    Some texts must match the pattern wholly, the others must not; they are near misses. The pattern may not be much
    longer than the one that made the texts, so that it cannot list them. Every pattern that fits is right.
    Teaches to find the rule behind examples, and to write it down exactly.

    ## Observation
    The two lists, the greatest length, and what a pattern may consist of. After the reply "Correct.", "Incorrect." or
    the reason why it is malformed.

    ## Action
    The pattern in the final answer, `<answer>[A-F]{2}\d+</answer>`, perhaps in backticks. `^` before it, `$` behind it
    and the `?:` of groups are ignored. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for a pattern that fits. `malformed` (weight -0.1): 1 for a reply without an answer, with
    broken tags, or whose answer is not a pattern, or too long.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): patterns of two parts; "medium": three; "hard": four; "expert":
      seven.
    - `reset(options={"problem": {"pattern": "a+b", "match": ["ab", "aab"], "reject": ["b", "abb"]}})` gives a pattern
      and texts that it matches and rejects.

    ## Version History
    - v0: first version.
    """

    # Measured: the best of 400 fixed patterns fits 0.3%, 0%, 0.3% and 0% of the problems.
    difficulties = {
        "easy": Difficulty("two parts", chance_rate=0.01, settings={"n_parts": 2, "n_texts": 6}),
        "medium": Difficulty("three parts", chance_rate=0.005, settings={"n_parts": 3, "n_texts": 8}),
        "hard": Difficulty("four parts", chance_rate=0.005, settings={"n_parts": 4, "n_texts": 10}),
        "expert": Difficulty("seven parts", chance_rate=0.005, settings={"n_parts": 7, "n_texts": 10}),
    }
    default_difficulty = "easy"
    problem_fields = {"pattern": str, "match": list, "reject": list}
    instructions = "Write one regular expression, and nothing else in the answer."
    clause_reasons = {
        "refuses_neighbouring_numbers": "Every pattern that fits the shown texts is right, and several numbers may fit."
    }
    answer_example = r"item-\d{3,5}"
    plain_answer = staticmethod(_without_marks)
    has_natural_form = False

    def generate(self) -> dict[str, Any]:
        """Draw a pattern with texts that it matches, and spoil some until it does not."""
        random, n = self.np_random.random, self.settings["n_texts"]
        parts = [pick(random, _PARTS)(random) for _ in range(self.settings["n_parts"])]
        source = "".join(part for part, _ in parts)
        pattern = _compiled(source)
        match: list[str] = []
        reject: list[str] = []
        for _ in range(60):
            text = "".join(draw(random) for _, draw in parts)
            if len(match) < n and text not in match:
                match.append(text)
            spoilt = _spoilt(random, text)
            if len(reject) < n and spoilt and spoilt not in reject and not pattern.matches(spoilt):
                reject.append(spoilt)
            if len(match) == n and len(reject) == n:
                return {"pattern": source, "match": match, "reject": reject}
        return self.generate()

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a pattern that does not fit its texts."""
        if not all(isinstance(text, str) for text in [*problem["match"], *problem["reject"]]):
            raise InvalidActionError("the texts must be texts")
        if not _fits(Pattern(problem["pattern"]), problem):
            raise InvalidActionError("its pattern does not fit its texts")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the pattern: other texts do not make another problem."""
        return problem["pattern"]

    def prompt(self) -> str:
        """Return the two lists and the rules."""
        return (
            "These texts must match, each as a whole (^ and $ are not needed):\n"
            f"{_listed(self.problem['match'])}\n"
            f"These texts must not match:\n{_listed(self.problem['reject'])}\n"
            f"The pattern may have at most {self._most()} characters. It may use literal characters, . [a-z] [^a-z] "
            "\\d \\w ( ) | ? * + {m} {m,n}, and a backslash before a sign that is meant literally."
        )

    def solution(self) -> str:
        """Return the pattern that the texts were made with."""
        return str(self.problem["pattern"])

    def is_correct(self, answer: str) -> bool:
        """Match every text."""
        pattern = _GROUP.sub("(", answer).removeprefix("^")
        if pattern.endswith("$") and not pattern.endswith("\\$"):
            pattern = pattern[:-1]
        if len(pattern) > self._most():
            raise InvalidActionError(f"the pattern has {len(pattern)} characters, over {self._most()}")
        return _fits(Pattern(pattern), self.problem)

    def _most(self) -> int:
        return len(self.problem["pattern"]) + 4


_GROUP = re.compile(r"(?<!\\)\(\?:")


def _fits(pattern: Pattern, problem: Mapping[str, Any]) -> bool:
    return all(map(pattern.matches, problem["match"])) and not any(map(pattern.matches, problem["reject"]))


@lru_cache(maxsize=4096)
def _compiled(source: str) -> Pattern:
    return Pattern(source)


def _listed(texts: Sequence[str]) -> str:
    return "\n".join(f"  {text}" for text in texts)


_SMALL, _DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
Part = tuple[str, Callable[[Random], str]]


def _repeat(random: Random, unit: str, draw: Callable[[Random], str]) -> Part:
    """Return a unit with a number of repetitions, and what draws texts of it."""
    kind, low = int(random() * 4), between(random, 1, 3)
    high = low + between(random, 1, 2)
    signs, least, most = (
        (f"{{{low + 1}}}", low + 1, low + 1),
        (f"{{{low},{high}}}", low, high),
        ("+", 1, 4),
        ("", 1, 1),
    )[kind]
    return unit + signs, lambda r: "".join(draw(r) for _ in range(between(r, least, most)))


def _range_part(random: Random) -> Part:
    letters = pick(random, (_SMALL, _SMALL.upper(), _DIGITS))
    first = between(random, 0, len(letters) - 4)
    last = between(random, first + 2, min(first + 6, len(letters) - 1))
    return _repeat(random, f"[{letters[first]}-{letters[last]}]", lambda r: letters[between(r, first, last)])


def _digits_part(random: Random) -> Part:
    return _repeat(random, "\\d", lambda r: pick(r, _DIGITS))


def _set_part(random: Random) -> Part:
    signs = "".join(sorted(sample(random, _SMALL + _DIGITS, 3)))
    return _repeat(random, f"[{signs}]", lambda r: pick(r, signs))


def _choice_part(random: Random) -> Part:
    words = ["".join(pick(random, _SMALL) for _ in range(between(random, 2, 3))) for _ in range(2)]
    return f"({words[0]}|{words[1]})", lambda r: pick(r, words)


def _literal_part(random: Random) -> Part:
    sign = pick(random, "-_:#@/=")
    return sign, lambda r: sign


def _optional_part(random: Random) -> Part:
    sign = pick(random, "-_:#" + _SMALL)
    return f"{sign}?", lambda r: sign if r() < 0.5 else ""


_PARTS: tuple[Callable[[Random], Part], ...] = (
    *(_range_part, _range_part, _digits_part, _set_part),
    *(_choice_part, _literal_part, _optional_part),
)


def _spoilt(random: Random, text: str) -> str:
    """Return a text with one small change."""
    if not text:
        return ""
    place = int(random() * len(text))
    before, sign, after = text[:place], text[place], text[place + 1 :]
    kind = int(random() * 4)
    if kind == 0:
        return before + after
    if kind == 1:
        return before + sign + sign + after
    if kind == 2:
        return before + pick(random, _SMALL + _DIGITS + _SMALL.upper() + "-_:") + after
    return after + before if before else before + sign.swapcase() + after

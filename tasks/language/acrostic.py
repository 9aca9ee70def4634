"""`llm/Acrostic-v0`: lines whose first letters spell a word, under further conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import between, pick, sample
from llm_envs.tasks.language.english import english_words
from llm_envs.tasks.language.vocabulary import BY_FIRST, BY_LAST, KEYWORDS, VOCABULARY

__all__ = ["AcrosticEnv", "find_fault"]

_WORD = re.compile(r"[A-Za-z]{3,}")
_PUNCTUATION = " ,.;:!?-"
_MARKDOWN = re.compile(r"[*_`]")
_MARKER = re.compile(r"^\s*(?:[-+\u2022]|\d{1,2}[.):])\s+")


class AcrosticEnv(SingleTurnEnv):
    r"""Write lines whose first letters spell a word, under further conditions.

    ## Description
    The number of lines follows from the word. Each line has a given number of English words, some words must occur, and
    no word may occur twice. From the hard level on the last letters of the lines spell a second word, and at the expert
    level the number of letters of each line is given, too. The text need not make sense. Teaches to plan a text before
    writing it, and to mind letters and counts at once.

    ## Observation
    The word and the conditions. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    The lines in the final answer, `<answer>Morning milk\nOld owl</answer>` (with a line break). Capitals, bold letters,
    list markers, and commas or full stops between words do not matter. Thinking in `<think>...</think>` is allowed
    before it.

    ## Reward
    `correct` (weight 1): 1 if every condition is met; English words are those of `tasks/language/english_words.txt`,
    78,000 with all their endings, in British and American spelling. `malformed` (weight -0.1): 1 for a reply without an
    answer, with broken tags, or with anything but words of at least three letters and punctuation in a line.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): four lines of two words, one word given; "medium": six lines of three, two given;
      "hard": five lines of four, two given, the last letters spell another word; "expert": six lines of five, three
      given, the last letters spell another word, and each line has a given number of letters.
    - `reset(options={"problem": {"first": "mo", "last": "", "words": 2, "given": ["milk"], "letters": [11, 6],
      "example": "morning milk\nold owl"}})` gives the conditions, and an example that meets them. There is no condition
      on the last letters or on their number where `last` or `letters` is empty.

    ## Version History
    - v0: first version.
    """

    # Another word's lines begin with other letters: the chance of a fixed text is that of its word, one in 74, 69 and
    # 114 * 14, and of the given words.
    difficulties = {
        "easy": Difficulty("four lines of two words", chance_rate=0.015, settings={"lines": 4, "words": 2, "given": 1}),
        "medium": Difficulty("six lines of three", chance_rate=0.005, settings={"lines": 6, "words": 3, "given": 2}),
        "hard": Difficulty("five of four, both ends", chance_rate=0.001, settings={"lines": 5, "words": 4, "given": 2}),
        "expert": Difficulty(
            "six of five, both ends, counted",
            chance_rate=0.001,
            settings={"lines": 6, "words": 5, "given": 3},
            expected_hard="Six lines must each have their first and last letter, five words and an exact number of "
            "letters, which tokens do not show, and three given words besides; at one line in nine amiss, 49% are "
            "right.",
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"first": str, "last": str, "words": int, "given": list, "letters": list, "example": str}
    instructions = "Write the lines that the user asks for, each on its own line. They do not have to make sense."
    answer_example = "Morning milk\nOld owl"
    has_natural_form = False

    def generate(self) -> dict[str, Any]:
        """Draw the words that are spelt, then lines that spell them, then the words that must occur."""
        random, n_words = self.np_random.random, self.settings["words"]
        n_lines = self.settings["lines"]
        first = pick(random, _FIRST[n_lines])
        last = pick(random, _LAST[n_lines]) if self.difficulty in ("hard", "expert") else ""
        used: set[str] = set()
        lines = []
        for i, letter in enumerate(first):
            line = [_unused(random, BY_FIRST[letter], used)]
            end = _unused(random, BY_LAST[last[i]], used) if last else _unused(random, VOCABULARY, used)
            line += [_unused(random, VOCABULARY, used) for _ in range(n_words - 2)]
            lines.append([*line, end])
        candidates = [word for line in lines for word in line if word in _KEYWORDS]
        if len(candidates) < self.settings["given"]:
            return self.generate()
        given = sorted(sample(random, candidates, self.settings["given"]))
        example = "\n".join(" ".join(line) for line in lines)
        letters = [sum(map(len, line)) for line in lines] if self.difficulty == "expert" else []
        return {
            "first": first,
            "last": last,
            "words": n_words,
            "given": given,
            "letters": letters,
            "example": example,
        }

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse conditions that the example does not meet."""
        first, last = problem["first"], problem["last"]
        if not first.isascii() or not first.islower() or (last and (len(last) != len(first) or not last.islower())):
            raise InvalidActionError("first must be small letters, and last as many or none")
        if problem["words"] < 1 or not all(isinstance(word, str) for word in problem["given"]):
            raise InvalidActionError("words must be at least 1, and given must be texts")
        if problem["letters"] and list(map(type, problem["letters"])) != [int] * len(first):
            raise InvalidActionError("letters must be a number for each line, or empty")
        if fault := find_fault(problem["example"], problem):
            raise InvalidActionError(f"its example does not meet the conditions: {fault}")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the conditions: another example does not make another problem."""
        return {name: value for name, value in problem.items() if name != "example"}

    def prompt(self) -> str:
        """Return the conditions."""
        problem = self.problem
        n = len(problem["first"])
        conditions = [
            f"The first letters of the lines, from top to bottom, spell {problem['first'].upper()}.",
            *([f"The last letters of the lines spell {problem['last'].upper()}."] if problem["last"] else []),
            f"Each line has exactly {problem['words']} word{'s' * (problem['words'] != 1)}.",
            f"These words occur: {', '.join(problem['given'])}." if problem["given"] else "",
            f"The lines have {', '.join(map(str, problem['letters']))} letters, from top to bottom, without the spaces."
            if problem["letters"]
            else "",
            "Every word is an English word of at least three letters and no proper name, and no word occurs twice.",
        ]
        return "\n".join([f"Write {n} lines:", *(f"- {condition}" for condition in conditions if condition)])

    def solution(self) -> str:
        """Return the example."""
        return str(self.problem["example"])

    def is_correct(self, answer: str) -> bool:
        """Look at every condition."""
        lines = [_MARKER.sub("", line) for line in _MARKDOWN.sub("", answer).splitlines()]
        for line in lines:
            for word in line.split():
                if word.strip(_PUNCTUATION) and not _WORD.fullmatch(word.strip(_PUNCTUATION)):
                    raise InvalidActionError(f"{word[:30]!r} is not a word of at least three letters, a to z")
        return find_fault("\n".join(lines), self.problem) is None


def find_fault(text: str, problem: Mapping[str, Any]) -> str | None:
    """Return which condition a text does not meet, or None.

    Args:
        text: Lines of words.
        problem: The conditions; see `AcrosticEnv`.
    """
    lines = [words for line in text.lower().splitlines() if (words := _words(line))]
    if len(lines) != len(problem["first"]):
        return f"there are {len(lines)} lines"
    if any(len(words) != problem["words"] for words in lines):
        return "a line has another number of words"
    if problem["letters"] and [sum(map(len, words)) for words in lines] != problem["letters"]:
        return "a line has another number of letters"
    if "".join(words[0][0] for words in lines) != problem["first"]:
        return "the first letters spell something else"
    if problem["last"] and "".join(words[-1][-1] for words in lines) != problem["last"]:
        return "the last letters spell something else"
    everything = [word for words in lines for word in words]
    if not all(_WORD.fullmatch(word) for word in everything) or len(set(everything)) < len(everything):
        return "a word is too short, or occurs twice"
    if unknown := [word for word in everything if word not in english_words()]:
        return f"{unknown[0]} is not an English word"
    missing = [word for word in problem["given"] if word not in everything]
    return f"{missing[0]} does not occur" if missing else None


def _words(line: str) -> list[str]:
    return [stripped for word in line.split() if (stripped := word.strip(_PUNCTUATION))]


def _unused(random: Any, words: Sequence[str], used: set[str]) -> str:
    """Return one of the words that has not been drawn yet; there are always some left."""
    start = between(random, 0, len(words) - 1)
    for i in range(len(words)):
        word = words[(start + i) % len(words)]
        if word not in used:
            used.add(word)
            return word
    raise RuntimeError("the vocabulary is too small")


_KEYWORDS = frozenset(KEYWORDS)


def _spellable(n_letters: int, by_letter: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the words of a length for each of whose letters there are words enough."""
    return tuple(word for word in VOCABULARY if len(word) == n_letters and all(len(by_letter[c]) >= 6 for c in word))


_FIRST = {n: _spellable(n, BY_FIRST) for n in (4, 5, 6)}
"""Words that the first letters may spell, by length."""
_LAST = {n: _spellable(n, BY_LAST) for n in (5, 6)}
"""Words that the last letters may spell."""

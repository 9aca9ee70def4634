"""`llm/SpellNth-v0`: find words by their places, and take them apart into letters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.algorithmic.lists import read_items
from llm_envs.tasks.draws import between, pick, sample

__all__ = ["SpellNthEnv"]

_WORDS = (
    *("anchor", "apple", "arrow", "autumn", "banana", "barrel", "basket", "beacon", "blossom", "bottle"),
    *("branch", "breeze", "bridge", "bronze", "bucket", "butter", "button", "cabbage", "candle", "canyon"),
    *("carpet", "castle", "cherry", "circle", "clover", "cobweb", "copper", "corner", "cotton", "cradle"),
    *("crystal", "curtain", "dragon", "drawer", "eagle", "ember", "engine", "fabric", "falcon", "feather"),
    *("fiddle", "flower", "forest", "fossil", "fountain", "garden", "garlic", "ginger", "glacier", "goblet"),
    *("granite", "hammer", "harbour", "harvest", "helmet", "hollow", "honey", "island", "jacket", "jigsaw"),
    *("jungle", "kettle", "kitchen", "ladder", "lantern", "lemon", "letter", "lizard", "locket", "magnet"),
    *("mantle", "marble", "meadow", "melody", "mirror", "mitten", "monkey", "mountain", "muffin", "needle"),
    *("nutmeg", "oyster", "paddle", "parcel", "parrot", "pebble", "pencil", "pepper", "piano", "pillow"),
    *("planet", "pocket", "pumpkin", "puzzle", "rabbit", "raven", "ribbon", "river", "rocket", "saddle"),
    *("sailor", "sandal", "scarlet", "shadow", "shovel", "silver", "spider", "spiral", "stable", "sunset"),
    *("tailor", "temple", "thimble", "thunder", "timber", "tunnel", "turnip", "valley", "velvet", "violin"),
    *("walnut", "wander", "whistle", "willow", "window", "winter", "wizard"),
)
_CONSONANTS, _VOWELS = "bcdfghjklmnpqrstvwxz", "aeiouy"
_MOST_WORDS = 100
_COUNT = re.compile(
    r"(?:([A-Za-z])\s*(?:[:=]|\bis\b|\boccurs\b|->)?\s*)?([0-9]{1,9})(?:\.0|\s*times)?|([0-9]{1,9})\s*([A-Za-z])(?:s)?"
)
"""A number, perhaps with its letter: "3", "a: 3", "3 a"."""


class SpellNthEnv(SingleTurnEnv):
    """Spell, reverse and count letters of words that are named by their places.

    ## Description
    A list of words is given, and a question about letters: spell two words; spell two backwards, counted from the end;
    take the k-th letter of each word, or the last letter of every other word; count some letters in a part of the list.
    Letters are to be written one by one. Teaches to see the letters within words, and to count places.

    ## Observation
    The list and the question. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>k-i-t-e</answer>`: letters one by one, with hyphens, commas or spaces between them; or numbers in order,
    `<answer>3, 0, 2</answer>`, with or without their letters ("a: 3, b: 0, c: 2"). Thinking in `<think>...</think>` is
    allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the right letters or numbers. `malformed` (weight -0.1): 1 for a reply without an
    answer, with broken tags, or whose answer has letters that are not apart, or is not as many whole numbers as were
    asked for.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "starter": spell two of 4 words; "easy" (default): spell the n-th and the m-th of 12 words;
      "medium": all kinds of questions over 14 words; "hard": all but spelling, over 18 words without meaning; "expert":
      the k-th letters, or counts, over 100 long words without meaning.
    - `reset(options={"problem": {"kind": "spell", "words": ["kite", "sun"], "numbers": [2, 1], "letters": ""}})` asks a
      given question. Kinds: "spell" and "backwards" (two places), "column" (one place in each word), "ends" (every how
      many words), "count" (from which word to which, and the letters).

    ## Version History
    - v0: first version.
    """

    # Of the spelled words any two in order are equally likely: 1 of 12, 1 of 132. The chance rates bound the share of
    # the commonest answer otherwise, which is one of "count": 0.8%, 0.5%; next to 0 of 100 words.
    difficulties = {
        "starter": Difficulty("spell two words of four", 0.1, settings={"words": 4, "kinds": ("spell",), "real": True}),
        "easy": Difficulty("spell two words", 0.008, settings={"words": 12, "kinds": ("spell",), "real": True}),
        "medium": Difficulty(
            "all kinds",
            0.015,
            settings={"words": 14, "kinds": ("spell", "backwards", "column", "ends", "count"), "real": True},
        ),
        "hard": Difficulty(
            "words without meaning",
            0.01,
            settings={"words": 18, "kinds": ("backwards", "column", "ends", "count"), "real": False, "length": (5, 9)},
        ),
        "expert": Difficulty(
            "100 long words without meaning",
            0.005,
            settings={"words": 100, "kinds": ("column", "count"), "real": False, "length": (12, 20)},
            expected_hard="100 words of 12 to 20 letters, whose tokens do not show the letters, are to be taken "
            "apart: 800 to 1,600 letters to count, or 100 places; at one slip in 1,500 letters, 45% come out right.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "at the expert level some 1,600 letters are drawn"
    problem_fields = {"kind": str, "words": list, "numbers": list, "letters": str}
    instructions = (
        "If the question asks for letters, write them one by one, with hyphens between them. If it asks for numbers, "
        "the answer is the numbers in order, such as 3, 0, 2, 1."
    )
    answer_example = "k-i-t-e"

    def generate(self) -> dict[str, Any]:
        """Draw words and a question."""
        random, n = self.np_random.random, self.settings["words"]
        kind = pick(random, self.settings["kinds"])
        words = sample(random, _WORDS, n) if self.settings["real"] else [self._no_word() for _ in range(n)]
        letters, numbers = "", []
        if kind in ("spell", "backwards"):
            numbers = sample(random, range(1, n + 1), 2)
        elif kind == "column":
            numbers = [between(random, 2, min(map(len, words)))]
        elif kind == "ends":
            numbers = [between(random, 2, 3)]
        else:
            first = between(random, 1, n // 3)
            numbers = [first, between(random, first + n // 2, n)]
            letters = "".join(sample(random, sorted(set("".join(words[numbers[0] - 1 : numbers[1]]))), 4))
        return {"kind": kind, "words": words, "numbers": numbers, "letters": letters}

    def _no_word(self) -> str:
        """Draw some letters, mostly consonants."""
        random, length = self.np_random.random, between(self.np_random.random, *self.settings["length"])
        return "".join([pick(random, _VOWELS if random() < 0.3 else _CONSONANTS) for _ in range(length)])

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse texts that are not words, and places beyond the words."""
        kind, words, numbers, letters = (problem[key] for key in ("kind", "words", "numbers", "letters"))
        if not 1 <= len(words) <= _MOST_WORDS or not all(
            isinstance(w, str) and re.fullmatch("[a-z]{1,40}", w) for w in words
        ):
            raise InvalidActionError(f"there must be 1 to {_MOST_WORDS} words of 1 to 40 small letters")
        if kind not in _KINDS or len(numbers) != _KINDS[kind][0] or not all(type(n) is int and n >= 1 for n in numbers):
            raise InvalidActionError(
                f"kinds and how many numbers from 1 each needs: { {k: v[0] for k, v in _KINDS.items()} }"
            )
        highest = min(map(len, words)) if kind == "column" else len(words)
        if max(numbers) > highest or (kind == "count" and numbers[0] > numbers[1]):
            raise InvalidActionError(f"the numbers {numbers} go beyond {highest}, or are not in order")
        if (
            bool(letters) != (kind == "count")
            or not re.fullmatch("[a-z]*", letters)
            or len(set(letters)) < len(letters)
        ):
            raise InvalidActionError('different small letters are needed for "count", and none otherwise')

    def begin(self) -> None:
        """Work the answer out."""
        _, ask, work_out = _KINDS[self.problem["kind"]]
        words, numbers, letters = self.problem["words"], self.problem["numbers"], self.problem["letters"]
        self._question = ask(numbers, letters)
        self._answer: str | list[int] = work_out(words, numbers, letters)

    def prompt(self) -> str:
        """Return the list and the question."""
        return f"Words: {', '.join(self.problem['words'])}\n{self._question}"

    def solution(self) -> str:
        """Return the letters or the numbers."""
        return "-".join(self._answer) if isinstance(self._answer, str) else ", ".join(map(str, self._answer))

    def is_correct(self, answer: str) -> bool:
        """Compare letter by letter, or number by number."""
        items = read_items(answer)
        if isinstance(self._answer, str):
            items = [re.sub(r"^[A-Za-z]{2,40}:\s*", "", item) for item in items]  # kite: k-i-t-e
            items = [item for item in items if item not in ("and", "then")]
            parts = [part for item in items for part in re.split(r"[-\u2013\s]+", item) if part]
            if not parts or not all(len(part) == 1 and part.isalpha() for part in parts):
                raise InvalidActionError("the letters must be written one by one: a-b-c")
            return "".join(parts).lower() == self._answer
        labels, numbers = [], []
        for item in items:
            match = _COUNT.fullmatch(item)
            if match is None:
                raise InvalidActionError(f"{item[:40]!r} is not a whole number")
            labels.append((match[1] or match[4] or "").lower())
            numbers.append(int(match[2] or match[3]))
        if len(numbers) != len(self._answer):
            raise InvalidActionError(f"the answer must be {len(self._answer)} whole numbers: 1, 2, 3")
        letters = list(self.problem["letters"])
        if any(labels) and labels != letters:
            if sorted(labels) != sorted(letters):
                raise InvalidActionError(f"the numbers must be those of the letters {', '.join(letters)}")
            numbers = [numbers[labels.index(letter)] for letter in letters]
        return numbers == self._answer


def _place(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _count(words: Sequence[str], numbers: Sequence[int], letters: str) -> list[int]:
    part = "".join(words[numbers[0] - 1 : numbers[1]])
    return [part.count(letter) for letter in letters]


_KINDS: Mapping[str, tuple[int, Callable[..., str], Callable[..., Any]]] = {
    "spell": (
        2,
        lambda n, x: f"Spell the {_place(n[0])} word, and then the {_place(n[1])} word.",
        lambda words, n, x: words[n[0] - 1] + words[n[1] - 1],
    ),
    "backwards": (
        2,
        lambda n, x: (
            f"Counted from the end of the list (the last word is the 1st), spell the {_place(n[0])} word backwards, "
            f"and then the {_place(n[1])} word, also backwards."
        ),
        lambda words, n, x: words[-n[0]][::-1] + words[-n[1]][::-1],
    ),
    "column": (
        1,
        lambda n, x: f"Write the {_place(n[0])} letter of each word, in the order of the list.",
        lambda words, n, x: "".join(word[n[0] - 1] for word in words),
    ),
    "ends": (
        1,
        lambda n, x: f"Write the last letter of every {_place(n[0])} word, beginning with the {_place(n[0])}.",
        lambda words, n, x: "".join(word[-1] for word in words[n[0] - 1 :: n[0]]),
    ),
    "count": (
        2,
        lambda n, x: (
            f"How often does each of the letters {', '.join(x)} occur in the words from the {_place(n[0])} to the "
            f"{_place(n[1])}, both included, taken together? Give the numbers in this order."
        ),
        _count,
    ),
}
"""Of each kind of question how many numbers it has, its words, and how it is worked out."""

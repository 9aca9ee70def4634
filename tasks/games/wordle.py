"""`llm/Wordle-v0`: find a hidden word of five letters from marks on each letter of a guess."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.game import GameEnv, in_words
from llm_envs.tasks.games.words import FIVE_LETTER_WORDS

__all__ = ["WordleEnv", "marks"]

_N_CANDIDATES = 30
_GUESS = re.compile(
    r"(?:i(?: will| would|'ll)? )?(?:(?:try|guess|say)(?: the word)? |the word |word )?"
    r"[\"'*]*([a-z](?:[ ,-]{0,2}[a-z]){4})[\"'*]*[.!?]?"
)


class WordleEnv(GameEnv):
    """Find a hidden word of five letters; each letter of a guess is marked.

    ## Description
    Teaches to narrow down by constraints from every guess so far, and to choose guesses that tell much. At the easy
    level the words that it can be are listed; at the others it is any of some 1,700 common English words, which the
    agent is not shown. At the expert level it is told only how many letters have each mark, not which. Any five letters
    may be guessed, words or not.

    ## Observation
    First the rules. After a guess its letters with a mark below each: G for the right letter in the right place, Y for
    a letter that the word has in another place, "-" for a letter that it does not have (any more often). A letter that
    stands in the guess more often than in the word is marked G or Y only as often as the word has it: first where it is
    in the right place, then from the left. At the expert level it is only told how many letters are marked G and Y.

    ## Action
    `<answer>crane</answer>`: five letters; "C-R-A-N-E" is understood, too. Thinking in `<think>...</think>` is
    allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the hidden word. `malformed` (weight -0.1): 1 for each reply without five letters in
    `<answer>`. Marks earn nothing.

    ## Episode End
    Terminates when the word is found. Truncated after `max_turns` replies; a malformed one counts.

    ## Arguments
    - `split`: "train" or "test". At the easy level no list is in both, whichever of its words is hidden. At the others
      both draw from all words: with divided words, knowing the split would narrow down the hidden word, and a player
      trained on one split would learn never to guess the other's words.
    - `difficulty`: "easy" (default): one of 30 listed words, 5 guesses; "medium": any common word, 8 guesses; "hard":
      any common word, 6 guesses; "expert": any common word, only the numbers of marks, 8 guesses.
    - `max_turns`: the number of guesses, if it is to be another than the level's. With fewer, the oracle can lose.
    - `reset(options={"problem": {"word": "crane", "candidates": []}})` hides a given word. `candidates` are the words
      that are listed (the word among them), or none.

    ## Version History
    - v0: first version.
    """

    # Guessing without looking at the marks finds one of n words in k different guesses with probability k/n.
    difficulties = {
        "easy": Difficulty("one of 30 listed words, 5 guesses", chance_rate=5 / 30, settings={"turns": 5}),
        "medium": Difficulty(
            "any common word, 8 guesses",
            chance_rate=8 / len(FIVE_LETTER_WORDS),
            n_problems=len(FIVE_LETTER_WORDS),
            disjoint_splits=False,
            settings={"turns": 8},
        ),
        "hard": Difficulty(
            "any common word, 6 guesses",
            chance_rate=6 / len(FIVE_LETTER_WORDS),
            n_problems=len(FIVE_LETTER_WORDS),
            disjoint_splits=False,
            settings={"turns": 6},
        ),
        "expert": Difficulty(
            "any common word, the marks only counted, 8 guesses",
            chance_rate=8 / len(FIVE_LETTER_WORDS),
            n_problems=len(FIVE_LETTER_WORDS),
            disjoint_splits=False,
            settings={"turns": 8, "are_counted": True},
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 6
    problem_fields = {"word": str, "candidates": list}
    instructions = "Find the hidden word. In each reply, answer with one guess: a word of five letters."
    answer_example = "crane"

    def generate(self) -> dict[str, Any]:
        """Draw the word, and at the easy level the list in which it stands."""
        random, words = self.np_random.random, FIVE_LETTER_WORDS
        if self.difficulty != "easy":
            return {"word": words[int(random() * len(words))], "candidates": []}
        chosen: dict[str, None] = {}
        while len(chosen) < _N_CANDIDATES:
            chosen[words[int(random() * len(words))]] = None
        candidates = list(chosen)
        return {"word": candidates[int(random() * len(candidates))], "candidates": candidates}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a word that the oracle does not know."""
        word, candidates = problem["word"], problem["candidates"]
        if any(candidate not in _known() for candidate in candidates):
            raise InvalidActionError("its candidates must be of the list llm_envs.tasks.games.words.FIVE_LETTER_WORDS")
        if word not in (candidates or _known()):
            raise InvalidActionError("its word must be one of the candidates, or of FIVE_LETTER_WORDS without any")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the list, which is shown, and not the hidden word."""
        return sorted(problem["candidates"])

    def begin(self) -> None:
        """Remember the marks so far, for the oracle."""
        self._word: str = self.problem["word"]
        self._are_counted: bool = self.settings.get("are_counted", False)
        self._history: tuple[tuple[str, str], ...] = ()

    def prompt(self) -> str:
        """Return the rules, and the list where there is one."""
        told = "After each guess every letter of it is marked:"
        if self._are_counted:
            told = "After each guess I mark every letter of it, and say how many have each mark, but not which:"
        text = (
            f"I am thinking of a common English word of five letters. You have {in_words(self.max_turns, 'guess')}, "
            f"one a reply; any five letters may be guessed. {told} G if it is right and in "
            "the right place, Y if the word has it in another place, - if the word does not have it. A letter that "
            "the guess has more often than the word is marked G or Y only as often as the word has it (first where "
            "it is in the right place, then from the left), and - beyond that."
        )
        candidates = self.problem["candidates"]
        return f"{text}\nThe word is one of: {', '.join(candidates)}." if candidates else text

    def move(self, answer: str) -> Outcome:
        """Mark the guess."""
        named = _GUESS.fullmatch(" ".join(answer.lower().split()))
        parts = [] if named is None else re.split(r"[ ,-]+", named[1])
        if len(parts) not in (1, 5):
            raise InvalidActionError("a guess is five letters from a to z")
        guess = "".join(parts)
        if guess == self._word:
            return self.win("Correct.")
        shown = marks(guess, self._word)
        if self._are_counted:
            shown = "".join(sorted(shown))
        self._history += ((guess, shown),)
        if self._are_counted:
            return self.go_on(f"{' '.join(guess)}: {shown.count('G')} G, {shown.count('Y')} Y.")
        return self.go_on(f"{' '.join(guess)}\n{' '.join(shown)}")

    def next_action(self) -> str:
        """Guess what leaves the fewest possible words in the worst case."""
        words = tuple(self.problem["candidates"]) or FIVE_LETTER_WORDS
        return self.write_answer(_best_guess(_possible(words, self._history, self._are_counted), self._are_counted))


def marks(guess: str, word: str) -> str:
    """Return the marks of a guess as five characters of "G", "Y" and "-"."""
    left = [letter for letter, right in zip(word, guess, strict=True) if letter != right]
    shown = []
    for letter, right in zip(guess, word, strict=True):
        if letter == right:
            shown.append("G")
        elif letter in left:
            left.remove(letter)
            shown.append("Y")
        else:
            shown.append("-")
    return "".join(shown)


@lru_cache(maxsize=1)
def _known() -> Mapping[str, int]:
    """Return the place of each word in the list."""
    return {word: place for place, word in enumerate(FIVE_LETTER_WORDS)}


@lru_cache(maxsize=4096)
def _possible(
    words: tuple[str, ...], history: tuple[tuple[str, str], ...], are_counted: bool = False
) -> tuple[str, ...]:
    """Return those of the words that agree with all marks, which are sorted where they are only counted."""
    if not history:
        return words
    guess, shown = history[-1]
    before = _possible(words, history[:-1], are_counted)
    if are_counted:
        return tuple([word for word in before if "".join(sorted(marks(guess, word))) == shown])
    return tuple([word for word in before if marks(guess, word) == shown])


@lru_cache(maxsize=1)
def _marks_of_all() -> npt.NDArray[np.uint8]:
    """Return the marks of each word as a guess (row) against each word (column) as numbers below 3**5."""
    letters = np.frombuffer("".join(FIVE_LETTER_WORDS).encode(), dtype=np.uint8).reshape(-1, 5)
    n = len(letters)
    is_green = np.stack([letters[:, None, place] == letters[None, :, place] for place in range(5)])
    codes = np.zeros((n, n), dtype=np.uint8)
    for place in range(5):
        letter = letters[:, place]
        spare = np.zeros((n, n), dtype=np.int8)
        for other in range(5):
            spare += (letter[:, None] == letters[None, :, other]) & ~is_green[other]
        for earlier in range(place):
            spare -= (letter == letters[:, earlier])[:, None] & ~is_green[earlier]
        codes = codes * 3 + np.where(is_green[place], 2, (spare > 0).astype(np.uint8)).astype(np.uint8)
    return codes


@lru_cache(maxsize=1)
def _counts_of_all() -> npt.NDArray[np.uint8]:
    """Return the same for marks that are only counted: six times the number of G and the number of Y."""
    digits = np.arange(243)[:, None] // 3 ** np.arange(5) % 3
    counts = ((digits == 2).sum(1) * 6 + (digits == 1).sum(1)).astype(np.uint8)
    return counts[_marks_of_all()]


@lru_cache(maxsize=4096)
def _best_guess(possible: Sequence[str], are_counted: bool = False) -> str:
    """Return the word that leaves the fewest in the worst case; then the fewest on average, then a possible one."""
    if len(possible) <= 2:
        return possible[0]
    places = np.array([_known()[word] for word in possible])
    codes = (_counts_of_all() if are_counted else _marks_of_all())[:, places].astype(np.intp)
    n_words = len(codes)
    rows = np.arange(n_words)[:, None] * 243
    counts = np.bincount((codes + rows).ravel(), minlength=n_words * 243).reshape(n_words, 243)
    is_impossible = np.ones(n_words, dtype=bool)
    is_impossible[places] = False
    order = np.lexsort((is_impossible, (counts**2).sum(1), counts.max(1)))
    return FIVE_LETTER_WORDS[int(order[0])]

"""`llm/Mastermind-v0`: break a code of letters from counts of how much of a guess is right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.game import COLUMNS, GameEnv, in_words

__all__ = ["MastermindEnv", "feedback"]

_MAX_CODES = 50_000
_BETWEEN_LETTERS = re.compile(r"[\s,;|.()\[\]\"'-]+")
_N_TRIED = 60
"""Guesses that the oracle compares in a turn. With these it needs at most 5, 6, 8 and 8 guesses at the four levels."""


class MastermindEnv(GameEnv):
    """Break a hidden code of letters; each guess is answered by two counts.

    ## Description
    Teaches to combine counts that do not say which letter they are about, and to keep every guess consistent with all
    answers so far. Letters may be repeated in the code.

    ## Observation
    First the rules. After a guess: how many of its letters are right and in the right place, and how many more letters
    of it are in the code in another place (each letter of the code counts for one letter of the guess only).

    ## Action
    `<answer>A A B C</answer>`: a code of the right length, with or without spaces or commas. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the code. `malformed` (weight -0.1): 1 for each reply without a readable code. Counts
    earn nothing.

    ## Episode End
    Terminates when the code is found. Truncated after `max_turns` replies; a malformed one counts.

    ## Arguments
    - `split`: "train" or "test". Both draw from all codes: with divided codes, knowing the split would narrow down the
      hidden code.
    - `difficulty`: "easy" (default): 3 places, letters A to D, 6 guesses; "medium": 4 places, A to F, 8 guesses;
      "hard": 5 places, A to G, 10 guesses; "expert": 6 places, A to F, 9 guesses.
    - `max_turns`: the number of guesses, if it is to be another than the level's. With fewer, the oracle can lose.
    - `reset(options={"problem": {"letters": 6, "code": "AABC"}})` hides a given code of the first so many letters.

    ## Version History
    - v0: first version.
    """

    # Guessing without looking at the counts finds one of n codes in k different guesses with probability k/n.
    difficulties = {
        "easy": Difficulty(
            "3 places, 4 letters, 6 guesses",
            chance_rate=6 / 4**3,
            n_problems=4**3,
            disjoint_splits=False,
            settings={"places": 3, "letters": 4, "turns": 6},
        ),
        "medium": Difficulty(
            "4 places, 6 letters, 8 guesses",
            chance_rate=8 / 6**4,
            n_problems=6**4,
            disjoint_splits=False,
            settings={"places": 4, "letters": 6, "turns": 8},
        ),
        "hard": Difficulty(
            "5 places, 7 letters, 10 guesses",
            chance_rate=10 / 7**5,
            n_problems=7**5,
            disjoint_splits=False,
            settings={"places": 5, "letters": 7, "turns": 10},
        ),
        "expert": Difficulty(
            "6 places, 6 letters, 9 guesses",
            chance_rate=9 / 6**6,
            n_problems=6**6,
            disjoint_splits=False,
            settings={"places": 6, "letters": 6, "turns": 9},
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"letters": int, "code": str}
    instructions = "Break the hidden code. In each reply, answer with one guess: as many letters as the code has."
    answer_example = "A B C"

    def generate(self) -> dict[str, Any]:
        """Draw a code."""
        random, n_letters = self.np_random.random, self.settings["letters"]
        code = "".join([COLUMNS[int(random() * n_letters)] for _ in range(self.settings["places"])])
        return {"letters": n_letters, "code": code}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a code of other letters, and one among too many for the oracle."""
        n_letters, code = problem["letters"], problem["code"]
        if not 1 <= n_letters <= len(COLUMNS) or not code or set(code) - set(COLUMNS[:n_letters]):
            raise InvalidActionError("its code must be of the first so many letters of A to Z")
        if len(code) > 15 or n_letters ** len(code) > _MAX_CODES:
            raise InvalidActionError(f"there may be at most {_MAX_CODES} codes of its length and letters")

    def begin(self) -> None:
        """Remember the answers so far, for the oracle."""
        self._code: str = self.problem["code"]
        self._history: tuple[tuple[str, int, int], ...] = ()

    def written_instructions(self) -> str:
        """Return the system prompt, with an example as long as the code."""
        letters = COLUMNS[: self.problem["letters"]]
        example = " ".join([letters[-1 - place % len(letters)] for place in range(len(self.problem["code"]))])
        return f"{self.instructions} Answer in this form: {self.write_answer(example)}"

    def prompt(self) -> str:
        """Return the rules."""
        letters = ", ".join(COLUMNS[: self.problem["letters"]])
        return (
            f"I have a code of {in_words(len(self._code), 'letter')}, each one of {letters}; a letter can stand in it "
            f"more than once. You have {in_words(self.max_turns, 'guess')}, one a reply. After each guess I say how "
            "many of its letters are right and in the right place, and how many more are in the code but in another "
            "place (each letter of the code counts for only one letter of the guess)."
        )

    def move(self, answer: str) -> Outcome:
        """Compare the guess with the code."""
        guess, letters = _BETWEEN_LETTERS.sub("", answer.upper()), COLUMNS[: self.problem["letters"]]
        if len(guess) != len(self._code) or any(letter not in letters for letter in guess):
            raise InvalidActionError(f"a guess is {in_words(len(self._code), 'letter')} from A to {letters[-1]}")
        if guess == self._code:
            return self.win("Correct.")
        placed, misplaced = feedback(guess, self._code)
        self._history += ((guess, placed, misplaced),)
        return self.go_on(f"{' '.join(guess)}: {placed} in the right place, {misplaced} in another place.")

    def next_action(self) -> str:
        """Guess a possible code that leaves the fewest in the worst case, of those compared."""
        guess = _best_guess(len(self._code), self.problem["letters"], self._history)
        return self.write_answer(" ".join(guess))


def feedback(guess: str, code: str) -> tuple[int, int]:
    """Return how many letters are right and in place, and how many more are right but elsewhere."""
    placed = sum(left == right for left, right in zip(guess, code, strict=True))
    common = sum(min(guess.count(letter), code.count(letter)) for letter in set(guess))
    return placed, common - placed


@lru_cache(maxsize=4)
def _all_codes(n_places: int, n_letters: int) -> npt.NDArray[np.int64]:
    return np.array(list(product(range(n_letters), repeat=n_places)), dtype=np.int64)


@lru_cache(maxsize=1024)
def _possible(n_places: int, n_letters: int, history: tuple[tuple[str, int, int], ...]) -> npt.NDArray[np.int64]:
    """Return the codes, one a row, that agree with all answers."""
    if not history:
        return _all_codes(n_places, n_letters)
    codes = _possible(n_places, n_letters, history[:-1])
    guess, placed, misplaced = history[-1]
    numbers = np.array([COLUMNS.index(letter) for letter in guess])
    return codes[_answers(numbers, codes, n_letters) == placed * (n_places + 1) + misplaced]


def _answers(guess: npt.NDArray[np.int64], codes: npt.NDArray[np.int64], n_letters: int) -> npt.NDArray[np.int64]:
    """Return the two counts of a guess against each code as one number."""
    placed = (codes == guess).sum(1)
    common = np.zeros(len(codes), dtype=np.int64)
    for letter in range(n_letters):
        common += np.minimum((codes == letter).sum(1), (guess == letter).sum())
    return placed * (codes.shape[1] + 1) + common - placed


@lru_cache(maxsize=1024)
def _best_guess(n_places: int, n_letters: int, history: tuple[tuple[str, int, int], ...]) -> str:
    if not history:  # AAB, AABB, AABBC: as good as any for these sizes, and all codes are possible
        return "".join(COLUMNS[min(place // 2, n_letters - 1)] for place in range(n_places))
    codes = _possible(n_places, n_letters, history)
    tried = codes[:: -(-len(codes) // _N_TRIED)]
    worst = [np.bincount(_answers(guess, codes, n_letters)).max() for guess in tried]
    return "".join(COLUMNS[number] for number in tried[int(np.argmin(worst))])

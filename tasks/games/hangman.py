"""`llm/Hangman-v0`: find a hidden word letter by letter, with few wrong guesses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import ascii_lowercase
from typing import Any

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.game import GameEnv, in_words
from llm_envs.tasks.games.words import WORDS

__all__ = ["HangmanEnv"]

_BY_LENGTH: dict[int, tuple[str, ...]] = {
    length: tuple(sorted(word for word in WORDS if len(word) == length)) for length in range(4, 9)
}


_GUESS = re.compile(
    r"(?:i(?: will| would|'ll)? )?(?:(?:try|guess|say) )?"
    r"(?:(?:the |an? )?(?:letter |(?:whole )?word )|an? (?=[\"'a-z]{1,3}$))?"
    r"[\"'*]*([a-z]+|[a-z](?:[ -][a-z])+)[\"'*]*[.!?]?"
)


class HangmanEnv(GameEnv):
    """Find a hidden word by guessing letters, or the word itself; few guesses may be wrong.

    ## Description
    Teaches to use what is known of English words: which letters are likely given those that stand and those that are
    ruled out, and when to name the word. The word is one of some 300 common ones of its length, which the agent is not
    shown.

    ## Observation
    First the rules and the length. After a guess the word with an underscore for each letter that is not found, the
    wrong guesses so far, and how many more may be wrong before the game is lost.

    ## Action
    `<answer>e</answer>`: a letter, or `<answer>elephant</answer>`: the whole word. Thinking in `<think>...</think>` is
    allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the word. `malformed` (weight -0.1): 1 for each reply that is neither a letter nor a
    word of the right length, or that was guessed before; it does not count as a wrong guess. Single letters earn
    nothing.

    ## Episode End
    Terminates when every letter is found or the word is named, and, lost, with the last wrong guess allowed. Truncated
    after `max_turns` replies (30).

    ## Arguments
    - `split`: "train" or "test". Both draw from all words of the length: with divided words, knowing the split would
      narrow down the hidden word, and a player trained on one split would learn never to guess the other's words.
    - `difficulty`: "easy" (default): 8 letters, lost with the 8th wrong guess; "medium": 7 letters, the 6th; "hard": 6
      letters, the 6th; "expert": 4 letters, the 5th, of the words that the oracle finds in time.
    - `max_turns`: the number of replies, if it is to be another than 30.
    - `reset(options={"problem": {"word": "elephant"}})` hides a given word of `llm_envs.tasks.games.words.WORDS`. Of
      one of another length than the level's the oracle can lose.

    ## Version History
    - v0: first version.
    """

    # The most that was found for players who do not look at the word: naming letters from the most frequent to the
    # least wins 0.32, 0.15, 0.1 of all words of these lengths; letters at random 0.005, 0.002, 0.003. Measured.
    difficulties = {
        "easy": Difficulty(
            "8 letters, lost with the 8th wrong guess",
            chance_rate=0.35,
            n_problems=len(_BY_LENGTH[8]),
            disjoint_splits=False,
            settings={"length": 8, "lives": 8, "turns": 30},
        ),
        "medium": Difficulty(
            "7 letters, lost with the 6th wrong guess",
            chance_rate=0.16,
            n_problems=len(_BY_LENGTH[7]),
            disjoint_splits=False,
            settings={"length": 7, "lives": 6, "turns": 30},
        ),
        "hard": Difficulty(
            "6 letters, lost with the 6th wrong guess",
            chance_rate=0.12,
            n_problems=len(_BY_LENGTH[6]),
            disjoint_splits=False,
            settings={"length": 6, "lives": 6, "turns": 30},
        ),
        "expert": Difficulty(
            "4 letters, lost with the 5th wrong guess",
            chance_rate=0.1,
            n_problems=108,
            disjoint_splits=False,
            settings={"length": 4, "lives": 5, "turns": 30, "are_found": True},
            expected_hard="A player who knows all 2,733 English words of four letters, but not which of them are "
            "common, wins 32% by the oracle's way of guessing; only who knows the very list wins all. A model is "
            "between them.",
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 30
    problem_fields = {"word": str}
    instructions = (
        "Play hangman. In each reply, answer with one guess: one letter, such as e, or the whole word, such as "
        "elephant."
    )
    answer_example = "e"

    def generate(self) -> dict[str, Any]:
        """Draw a word."""
        words = _BY_LENGTH[self.settings["length"]]
        if self.settings.get("are_found"):
            words = _found_in_time(self.settings["length"], self.settings["lives"])
        return {"word": words[int(self.np_random.random() * len(words))]}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a word that the oracle does not know."""
        if problem["word"] not in _BY_LENGTH.get(len(problem["word"]), ()):
            raise InvalidActionError("its word must be one of llm_envs.tasks.games.words.WORDS")

    def begin(self) -> None:
        """Start with nothing guessed."""
        self._word: str = self.problem["word"]
        self._shown = "_" * len(self._word)
        self._guessed: set[str] = set()
        self._wrong: list[str] = []
        self._lives: int = self.settings["lives"]

    def prompt(self) -> str:
        """Return the rules and the length."""
        return (
            f"I am thinking of a common English word of {len(self._word)} letters. Guess one letter a reply, and I "
            "show everywhere it stands, or guess the whole word. A letter that the word does not have is a wrong guess,"
            f" and so is a wrong word; with the {self._lives}th wrong guess you lose. You have "
            f"{in_words(self.max_turns, 'reply')}.\n"
            f"{' '.join(self._shown)}"
        )

    def move(self, answer: str) -> Outcome:
        """Show where the letter stands, or compare the word."""
        named = _GUESS.fullmatch(" ".join(answer.lower().split()))
        guess = "" if named is None else re.sub("[ -]", "", named[1])
        if len(guess) not in (1, len(self._word)):
            raise InvalidActionError(f"a guess is one letter from a to z, or a word of {len(self._word)} letters")
        if guess in self._guessed:
            raise InvalidActionError(f"{guess!r} was guessed before")
        if guess == self._word:
            return self.win(f"Correct: the word is {self._word}.")
        self._guessed.add(guess)
        if len(guess) == 1 and guess in self._word:
            self._shown = "".join(letter if letter in self._guessed else "_" for letter in self._word)
            if self._shown == self._word:
                return self.win(f"Correct: the word is {self._word}.")
            return self.go_on(self._state())
        self._wrong.append(guess)
        if len(self._wrong) >= self._lives:
            return self.lose(f"Wrong guesses: {', '.join(self._wrong)}. You lose. The word was {self._word}.")
        return self.go_on(self._state())

    def _state(self) -> str:
        left = self._lives - len(self._wrong)
        return (
            f"{' '.join(self._shown)}\nWrong guesses: {', '.join(self._wrong) or 'none'}. You lose after {left} more."
        )

    def legal_answers(self) -> Sequence[str]:
        """Return the letters that were not guessed."""
        return [letter for letter in ascii_lowercase if letter not in self._guessed]

    def next_action(self) -> str:
        """Name the word if it is the only possible one, else the letter that is wrong for the fewest."""
        letters = frozenset(guess for guess in self._guessed if len(guess) == 1)
        words = frozenset(self._guessed) - letters
        return self.write_answer(_best_guess(self._shown, letters, words))


@lru_cache(maxsize=8)
def _found_in_time(length: int, lives: int) -> tuple[str, ...]:
    """Return the words of a length that the oracle finds before it has lost."""
    found = []
    for word in _BY_LENGTH[length]:
        shown, letters, n_wrong = "_" * length, frozenset[str](), 0
        while "_" in shown and len(guess := _best_guess(shown, letters, frozenset())) == 1:
            letters |= {guess}
            n_wrong += guess not in word
            shown = "".join(letter if letter in letters else "_" for letter in word)
        if n_wrong < lives:
            found.append(word)
    return tuple(found)


@lru_cache(maxsize=4096)
def _best_guess(shown: str, letters: frozenset[str], words: frozenset[str]) -> str:
    possible = [word for word in _BY_LENGTH[len(shown)] if word not in words and _agrees(word, shown, letters)]
    if len(possible) == 1:
        return possible[0]
    return min(sorted(set("".join(possible)) - letters), key=lambda letter: _cost(letter, possible))


def _agrees(word: str, shown: str, letters: frozenset[str]) -> bool:
    """Return whether the letters named so far would show exactly this of the word."""
    return all(seen == (letter if letter in letters else "_") for letter, seen in zip(word, shown, strict=True))


def _cost(letter: str, possible: Sequence[str]) -> tuple[int, int]:
    """Return how many words do not have the letter, and the most that have it in the same places."""
    patterns = Counter(tuple(place for place, other in enumerate(word) if other == letter) for word in possible)
    return patterns.pop((), 0), max(patterns.values())

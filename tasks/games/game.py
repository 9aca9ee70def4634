"""What the games share: a turn of one answer, moves in words, and boards as text."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from llm_envs.env import Outcome, TextEnv
from llm_envs.errors import InvalidActionError

__all__ = [
    "COLUMNS",
    "DIRECTIONS",
    "GameEnv",
    "cell_name",
    "draw_board",
    "in_words",
    "read_cell",
    "read_moves",
]

COLUMNS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

DIRECTIONS: Mapping[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Name of a move: change of (row, column); row 0 is the topmost."""

_SHORT = {"u": "up", "d": "down", "l": "left", "r": "right"}
_CELL = re.compile(r"([A-Za-z])\s*([0-9]{1,2})")


class GameEnv(TextEnv):
    """A game of several turns: each reply has one `<answer>`, which `move` plays.

    A reply that cannot be read or is against the rules is answered by an error, costs `malformed` and one of the
    episode's turns, and changes nothing else. The number of turns is the level's setting "turns".

    A game writes `generate`, `prompt`, `move`, `next_action`, and `instructions`; and `refuse`, where it has other
    reward components than `correct` and `malformed`.
    """

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        answer_form: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode, answer_form)
        if max_turns is None:
            self.max_turns = self.settings["turns"]

    @abstractmethod
    def move(self, answer: str) -> Outcome:
        """Play the answer; raise `InvalidActionError`, readably and with nothing changed, if that is not possible."""

    def play(self, action: str) -> Outcome:
        """Play the reply's answer, or say what is wrong with it."""
        try:
            return self.judge(self.read(action), self.move)
        except InvalidActionError as refusal:
            return self.refuse(str(refusal))

    def refuse(self, problem: str) -> Outcome:
        """Return the answer to a reply that could not be played."""
        return Outcome(f"Error: {problem}. {self.turns_left()}", {"correct": 0.0, "malformed": 1.0})

    def go_on(self, observation: str, *, is_illegal: bool = False) -> Outcome:
        """Return an outcome after which the game goes on."""
        return Outcome(f"{observation}\n{self.turns_left()}", {"correct": 0.0, "malformed": float(is_illegal)})

    def win(self, observation: str) -> Outcome:
        """Return the outcome of a game that is won."""
        return Outcome(observation, {"correct": 1.0, "malformed": 0.0}, True, True)

    def lose(self, observation: str, *, is_illegal: bool = False) -> Outcome:
        """Return the outcome of a game that is lost."""
        return Outcome(observation, {"correct": 0.0, "malformed": float(is_illegal)}, True, False)

    def turns_left(self) -> str:
        """Return a sentence on the replies that are left."""
        left = self.max_turns - self.n_turns
        return f"{left} {'reply' if left == 1 else 'replies'} left."

    def shuffled(self, items: Sequence[str]) -> list[str]:
        """Return the items in random order."""
        random, result = self.np_random.random, list(items)
        for last in range(len(result) - 1, 0, -1):
            other = int(random() * (last + 1))
            result[last], result[other] = result[other], result[last]
        return result


def read_moves(answer: str, names: Mapping[str, tuple[int, int]] = DIRECTIONS, *, limit: int) -> list[str]:
    """Read moves separated by spaces, commas or line breaks; case and the short forms u, d, l, r are understood.

    Raises:
        InvalidActionError: If one is unknown, there is none, or there are more than `limit`.
    """
    words = answer.lower().replace(",", " ").split()
    moves = [_SHORT.get(word, word) for word in words]
    for move in moves:
        if move not in names:
            raise InvalidActionError(f"{move[:20]!r} is no move; moves are {', '.join(names)}")
    if not moves:
        raise InvalidActionError("the answer has no move")
    if len(moves) > limit:
        raise InvalidActionError(f"the answer has {len(moves)} moves; at most {limit} are allowed now")
    return moves


def read_cell(text: str, n_rows: int, n_columns: int) -> tuple[int, int]:
    """Read a cell such as "C4" (column C, row 4) as (row, column), both counted from 0.

    Raises:
        InvalidActionError: If it is none of the board's.
    """
    match = _CELL.fullmatch(text.strip())
    if match is not None:
        column, row = COLUMNS.index(match[1].upper()), int(match[2]) - 1
        if 0 <= row < n_rows and column < n_columns:
            return row, column
    raise InvalidActionError(
        f"{text.strip()[:20]!r} is no cell of the board; cells are A1 to {COLUMNS[n_columns - 1]}{n_rows}, the letter "
        "for the column and the number for the row"
    )


def draw_board(rows: Sequence[Sequence[str]], *, top: int = 0, left: int = 0) -> str:
    """Return a board as text: a space between cells, above it the columns' letters, before each row its number.

    Args:
        rows: What to show.
        top: Index of the first row shown, 0 for the whole board.
        left: Likewise, of the first column.
    """
    width = len(str(top + len(rows)))
    head = " " * width + " " + " ".join(COLUMNS[left : left + len(rows[0])])
    return "\n".join([head, *[f"{number:>{width}} {' '.join(row)}" for number, row in enumerate(rows, top + 1)]])


def cell_name(row: int, column: int) -> str:
    """Return the name of a cell, both counted from 0: (3, 2) is "C4"."""
    return f"{COLUMNS[column]}{row + 1}"


def in_words(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun: "1 move", "3 moves"."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"

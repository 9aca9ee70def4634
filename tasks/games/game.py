"""The base class of the games, readers of moves and cells, and boards as text."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from llm_envs.env import Outcome, TextEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.wording import in_words

__all__ = [
    "COLUMNS",
    "DIRECTIONS",
    "GameEnv",
    "cell_name",
    "draw_board",
    "in_words",
    "read_cell",
    "read_cells",
    "read_moves",
]

COLUMNS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

DIRECTIONS: Mapping[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Name of a move: change of (row, column); row 0 is the topmost."""

_MAX_CHARACTERS = 10_000
"""Characters of an answer: 20 for each of the most moves that a game allows, and more."""

_SHORT = {"u": "up", "d": "down", "l": "left", "r": "right"}
_ARROWS = {"\u2191": " up ", "\u2193": " down ", "\u2190": " left ", "\u2192": " right "}
_LIST_MARKER = re.compile(r"(?<!\S)(?:[0-9]{1,3}[.)]|[-*\u2022])(?=\s)")
_BETWEEN_MOVES = re.compile(
    r"->|=>|[\s,;|/.>\[\]()\"'\u2192-]|\b(?:first|then|and|next|finally|moves?|go|walk|step|push)\b"
)
_REPEATED = re.compile(
    r"\b([a-z]+)\s*(?:\(?[x\u00d7*]\s?([0-9]{1,3})\)?|\(?([0-9]{1,3})(?:\s?(?:times|cells?|steps?))?\)?)(?![a-z0-9])"
)
_CELL = re.compile(
    r"\(?(?:COLUMN |COL\.? ?)?([A-Z])(?: ?[,:/-] ?| ?)(?:AND )?(?:ROW )?([0-9]{1,2})\)?(?![0-9A-Z])"
    r"|\(?([0-9]{1,2})([A-Z])\)?(?![0-9A-Z])"
    r"|\(?ROW ([0-9]{1,2}) ?,? ?(?:AND )?(?:COLUMN |COL\.? ?)([A-Z])\)?(?![0-9A-Z])"
)
_BEFORE_CELL = re.compile(
    r"(?:I(?: WILL|'LL| WOULD)? )?(?:(?:OPEN|REVEAL|MARK|PLACE|PUT|PLAY|CHOOSE|PICK|TAKE)(?:(?: AN?)? [XO])? )?"
    r"(?:(?:IN|AT|ON|INTO) )?(?:THE )?(?:(?:CELLS?|SQUARES?|POSITION):? )?"
)
_BETWEEN_CELLS = re.compile(r"(?:[\s,;|.&\[\]\"']|AND\b|(?<!\S)(?:[0-9]{1,3}[.)]|[-*\u2022])(?=\s))+")


class GameEnv(TextEnv):
    """A game of several turns: each reply has one `<answer>`, which `move` plays.

    If a reply cannot be read or breaks the rules, the observation is an error, `malformed` is 1, and the reply counts
    as one of the episode's turns. Nothing else changes. The number of turns is the level's setting "turns".

    A game writes `generate`, `prompt`, `move`, `next_action`, `instructions` and `answer_example`. It also writes
    `refuse` if it has other reward components than `correct` and `malformed`.
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
        """Play the answer; if that is not possible, change nothing and raise a readable `InvalidActionError`."""

    def play(self, action: str) -> Outcome:
        """Play the reply's answer, or return an error."""
        try:
            return self.judge(self.read(action), self._move)
        except InvalidActionError as refusal:
            return self.refuse(str(refusal))

    def _move(self, answer: str) -> Outcome:
        """Play an answer of a readable length."""
        if len(answer) > _MAX_CHARACTERS:
            raise InvalidActionError(f"the answer has over {_MAX_CHARACTERS} characters")
        return self.move(answer)

    def refuse(self, problem: str) -> Outcome:
        """Return the answer to a reply that could not be played."""
        return Outcome(f"Error: {problem}. {self.turns_left()}", {"correct": 0.0, "malformed": 1.0})

    def go_on(self, observation: str, *, is_illegal: bool = False) -> Outcome:
        """Return an outcome after which the game continues."""
        return Outcome(f"{observation}\n{self.turns_left()}", {"correct": 0.0, "malformed": float(is_illegal)})

    def win(self, observation: str) -> Outcome:
        """Return the outcome of a game that is won."""
        return Outcome(observation, {"correct": 1.0, "malformed": 0.0}, True, True)

    def lose(self, observation: str, *, is_illegal: bool = False) -> Outcome:
        """Return the outcome of a game that is lost."""
        return Outcome(observation, {"correct": 0.0, "malformed": float(is_illegal)}, True, False)

    def turns_left(self) -> str:
        """Return a sentence with the number of replies left."""
        return f"{in_words(self.max_turns - self.n_turns, 'reply')} left."

    def shuffled(self, items: Sequence[str]) -> list[str]:
        """Return the items in random order."""
        random, result = self.np_random.random, list(items)
        for last in range(len(result) - 1, 0, -1):
            other = int(random() * (last + 1))
            result[last], result[other] = result[other], result[last]
        return result


def read_moves(answer: str, names: Mapping[str, tuple[int, int]] = DIRECTIONS, *, limit: int) -> list[str]:
    """Read moves such as "up up right", "Up, then right", "UUR", "up x2", "up 2" or a list with one move a line.

    Raises:
        InvalidActionError: If a move is unknown, the answer has no move, or it has more than `limit`.
    """
    text = _LIST_MARKER.sub(" ", answer.lower())
    if not any(letter.isalpha() for letter in text):
        text = "".join([_ARROWS.get(mark, mark) for mark in text])
    text = _REPEATED.sub(lambda match: f"{match[1]} " * min(int(match[2] or match[3]), limit + 1), text)
    moves: list[str] = []
    for word in _BETWEEN_MOVES.sub(" ", text).split():
        moves += [_SHORT[letter] for letter in word] if set(word) <= _SHORT.keys() else [word]
    for move in moves:
        if move not in names:
            raise InvalidActionError(f"{move[:20]!r} is not a move; moves are {', '.join(names)}")
    if not moves:
        raise InvalidActionError("the answer has no move")
    if len(moves) > limit:
        raise InvalidActionError(f"the answer has {len(moves)} moves; at most {limit} are allowed now")
    return moves


def read_cell(text: str, n_rows: int, n_columns: int) -> tuple[int, int]:
    """Read a cell such as "C4", "c 4" or "column C, row 4" as (row, column), both counted from 0.

    Raises:
        InvalidActionError: If it is not one cell of the board.
    """
    upper = " ".join(text.upper().split())
    start = _BEFORE_CELL.match(upper)
    match = _CELL.fullmatch(upper, 0 if start is None else start.end())
    return _place(match, text.strip(), n_rows, n_columns)


def read_cells(text: str, n_rows: int, n_columns: int) -> list[tuple[int, int]]:
    """Read cells such as "B3 C4", "B3 and C4" or a list with one cell a line; see `read_cell`.

    Raises:
        InvalidActionError: If there is anything else, or no cell.
    """
    upper = " ".join(text.upper().split())
    start = _BEFORE_CELL.match(upper)
    place, cells = 0 if start is None else start.end(), []
    while True:
        between = _BETWEEN_CELLS.match(upper, place)
        place = place if between is None else between.end()
        if place == len(upper):
            break
        match = _CELL.match(upper, place)
        cells.append(_place(match, re.split(r"[\s,;]", upper[place:], maxsplit=1)[0], n_rows, n_columns))
        place = place if match is None else match.end()
    if not cells:
        raise InvalidActionError("the answer names no cell")
    return cells


def _place(match: re.Match[str] | None, text: str, n_rows: int, n_columns: int) -> tuple[int, int]:
    """Return the row and the column of a cell that was read."""
    if match is not None:
        column = COLUMNS.index(match[1] or match[4] or match[6])
        row = int(match[2] or match[3] or match[5]) - 1
        if 0 <= row < n_rows and column < n_columns:
            return row, column
    raise InvalidActionError(
        f"{text[:20]!r} is not a cell of the board; cells are A1 to {COLUMNS[n_columns - 1]}{n_rows}, the letter for "
        "the column and the number for the row"
    )


def draw_board(rows: Sequence[Sequence[str]], *, top: int = 0, left: int = 0) -> str:
    """Return a board as text: a space between cells, above it the columns' letters, before each row its number.

    Args:
        rows: The cells to show.
        top: Index of the first row shown, 0 for the whole board.
        left: Likewise, of the first column.
    """
    width = len(str(top + len(rows)))
    head = " " * width + " " + " ".join(COLUMNS[left : left + len(rows[0])])
    return "\n".join([head, *[f"{number:>{width}} {' '.join(row)}" for number, row in enumerate(rows, top + 1)]])


def cell_name(row: int, column: int) -> str:
    """Return the name of a cell, both counted from 0: (3, 2) is "C4"."""
    return f"{COLUMNS[column]}{row + 1}"

"""`llm/Minesweeper-v0`: open every cell without a mine, by reasoning from the numbers of mines nearby."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.game import GameEnv, cell_name, draw_board, in_words, read_cell, read_cells
from llm_envs.tasks.games.minesweeper_solver import Field, safe_cells, safest_cell
from llm_envs.tasks.games.symmetry import canonical_board

__all__ = ["MinesweeperEnv"]


class MinesweeperEnv(GameEnv):
    """Open every cell that has no mine; a number counts the mines in the cells around it.

    ## Description
    Teaches to reason from several constraints at once about what cannot be seen. Every board can be opened to the end
    without guessing, by two rules: a number whose mines are all known makes the rest around it safe (and one with as
    many closed cells as missing mines makes these mines); and of two numbers, where the closed cells of one are all
    among those of the other, the difference tells about the rest.

    ## Observation
    First the rules and the board, a part of it opened. After each reply the board and the replies that are
    left.

    ## Action
    `<answer>B3 C4</answer>`: the cells to open, one or more. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 when all cells without a mine are open. `malformed` (weight -0.1): 1 for a reply without
    readable cells, or with one that is open already; it is not played. Single cells earn nothing.

    ## Episode End
    Terminates when all cells without a mine are open, and, lost, when a mine is opened. Truncated after `max_turns`
    replies.

    ## Arguments
    - `split`: "train" or "test": no first view of a board is in both, be it turned or mirrored. The hidden mines do not
      decide the split, so that knowing the split tells nothing about them.
    - `difficulty`: "easy" (default): 5 by 5 cells with 4 mines, 15 replies; "medium": 6 by 6 with 7, 20 replies;
      "hard": 8 by 8 with 13, 30 replies, where two numbers must be compared at least once; "expert": 10 by
      10 with 20, 45 replies, at least four times.
    - `max_turns`: the number of replies, if it is to be another than the level's. With fewer, the oracle can lose.
    - `reset(options={"problem": {"rows": ["...", "..*"], "first": "A1"}})` plays a given field, "*" for a
      mine; the cell `first` is open at the start. The oracle knows the mines where a player would have to guess.

    ## Version History
    - v0: first version.
    """

    # Measured on 3,000 fields each: opening closed cells at random wins 0.025, 0.0003, 0. A player that never compares
    # two numbers, and opens the cell that seems safest where one number shows none, wins 0.88, 0.75, 0.43, 0.23.
    difficulties = {
        "easy": Difficulty(
            "5 by 5 cells, 4 mines",
            chance_rate=0.04,
            n_problems=313,
            settings={"size": 5, "mines": 4, "closed": 5, "turns": 15},
        ),
        "medium": Difficulty(
            "6 by 6 cells, 7 mines", chance_rate=0.005, settings={"size": 6, "mines": 7, "closed": 10, "turns": 20}
        ),
        "hard": Difficulty(
            "8 by 8 cells, 13 mines",
            chance_rate=0.001,
            settings={"size": 8, "mines": 13, "closed": 20, "comparisons": 1, "turns": 30},
        ),
        "expert": Difficulty(
            "10 by 10 cells, 20 mines",
            chance_rate=0.001,
            settings={"size": 10, "mines": 20, "closed": 40, "comparisons": 4, "turns": 45},
            expected_hard="More than 40 cells are opened one deduction after the other, on a board of text, and the "
            "first mine ends the game; at one wrong deduction in 60, half of the boards are solved. At four "
            "points or more, no number by itself shows a safe cell.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "every field is solved before it is shown, since many cannot be without guessing"
    problem_fields = {"rows": list, "first": str}
    instructions = "Open all cells without a mine. In each reply, answer with one or more cells to open next."
    answer_example = "B3 C4"

    def generate(self) -> dict[str, Any]:
        """Draw fields until one can be opened without guessing, and not all at once."""
        random, size, n_mines = self.np_random.random, self.settings["size"], self.settings["mines"]
        while True:
            first = int(random() * size * size)
            field = Field(size, size, 0)
            cells = [cell for cell in range(size * size) if not (field.around[first] | 1 << first) >> cell & 1]
            mines = 0
            for draw in random(n_mines).tolist():
                mines |= 1 << cells.pop(int(draw * len(cells)))
            field = Field(size, size, mines)
            opened = field.opened_with(first, 0)
            if (field.safe & ~opened).bit_count() < self.settings["closed"]:
                continue
            n_comparisons = field.n_comparisons(opened)
            if n_comparisons is not None and n_comparisons >= self.settings.get("comparisons", 0):
                text = "".join(["*" if mines >> cell & 1 else "." for cell in range(size * size)])
                rows = [text[start : start + size] for start in range(0, size * size, size)]
                return {"rows": rows, "first": cell_name(*divmod(first, size))}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse anything but a field, and a first cell that has a mine or leaves nothing to open."""
        rows = problem["rows"]
        if not (1 <= len(rows) <= 26 and all(isinstance(row, str) and len(row) == len(rows[0]) for row in rows)):
            raise InvalidActionError("its rows must be 1 to 26 texts of one length")
        if not 1 <= len(rows[0]) <= 26 or set("".join(rows)) - set(".*"):
            raise InvalidActionError('its rows must have 1 to 26 of "." and "*"')
        row, column = read_cell(problem["first"], len(rows), len(rows[0]))
        field = _read(rows)
        if rows[row][column] == "*" or field.opened_with(row * len(rows[0]) + column, 0) == field.safe:
            raise InvalidActionError("its first cell must have no mine and leave something to open")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the board as it is shown at first, the same for its eight views."""
        field, opened = _read(problem["rows"]), _opened_at_first(problem)
        text = "".join(
            [str(number) if opened >> cell & 1 else "?" for cell, number in enumerate(field.numbers)],
        )
        width = len(problem["rows"][0])
        return canonical_board([text[start : start + width] for start in range(0, len(text), width)])

    def begin(self) -> None:
        """Open the first cell."""
        rows = self.problem["rows"]
        self._n_rows, self._n_columns = len(rows), len(rows[0])
        self._field = _read(rows)
        self._opened = _opened_at_first(self.problem)

    def prompt(self) -> str:
        """Return the rules and the board."""
        return (
            f"Open every cell of this field that has no mine; {in_words(self._field.mines.bit_count(), 'cell')} of it "
            f"{'has' if self._field.mines.bit_count() == 1 else 'have'} one. ? is a closed cell; a number is an open "
            "cell and counts the mines in the up to 8 cells around it, diagonally too; opening a cell with 0 "
            'opens all cells around it, too. A reply names the cells to open, such as "B3" or "B3 C4": the letter is '
            "the column, the number the row. Opening a mine loses. "
            f"You have {in_words(self.max_turns, 'reply')}.\n"
            f"{self._board()}"
        )

    def _board(self) -> str:
        return draw_board(
            [
                [self._mark(row * self._n_columns + column) for column in range(self._n_columns)]
                for row in range(self._n_rows)
            ]
        )

    def _mark(self, cell: int) -> str:
        return str(self._field.numbers[cell]) if self._opened >> cell & 1 else "?"

    def move(self, answer: str) -> Outcome:
        """Open the cells in their order, until a mine."""
        named = read_cells(answer, self._n_rows, self._n_columns)
        if len(named) > self._n_rows * self._n_columns:
            raise InvalidActionError("the answer names more cells than there are")
        cells = [row * self._n_columns + column for row, column in named]
        for cell in cells:
            if self._opened >> cell & 1:
                raise InvalidActionError(f"{cell_name(*divmod(cell, self._n_columns))} is open already")
        for cell in cells:
            if self._field.mines >> cell & 1:
                return self.lose(f"{cell_name(*divmod(cell, self._n_columns))} has a mine. You lose.")
            self._opened = self._field.opened_with(cell, self._opened)
        if self._opened == self._field.safe:
            return self.win(f"{self._board()}\nAll cells without a mine are open.")
        return self.go_on(self._board())

    def next_action(self) -> str:
        """Open all cells that the rules show to be safe; where they show none, one that seems so."""
        safe = safe_cells(self._field, self._opened) or safest_cell(self._field, self._opened)
        cells = [cell for cell in range(self._n_rows * self._n_columns) if safe >> cell & 1]
        return self.write_answer(" ".join(cell_name(*divmod(cell, self._n_columns)) for cell in cells))


def _read(rows: list[str]) -> Field:
    text = "".join(rows)
    return Field(len(rows), len(rows[0]), sum(1 << cell for cell, mark in enumerate(text) if mark == "*"))


def _opened_at_first(problem: Mapping[str, Any]) -> int:
    """Return the cells that are open when the game begins, as bits."""
    rows = problem["rows"]
    row, column = read_cell(problem["first"], len(rows), len(rows[0]))
    return _read(rows).opened_with(row * len(rows[0]) + column, 0)

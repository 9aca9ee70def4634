"""`llm/Sudoku-v0`: complete a grid of 4×4, 6×6 or 9×9 cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.algorithmic.lists import check_length, without_markers
from llm_envs.tasks.draws import between
from llm_envs.tasks.logic.sudoku_grids import (
    BOXES,
    N_FULL,
    box_numbers,
    count_solutions,
    full_grid,
    hide,
    thin,
    turn,
)

__all__ = ["SudokuEnv"]

_FEWEST_CLUES = {4: 4, 6: 8, 9: 17}
"""Fewer never have only one solution."""
_DECORATION = re.compile("[\\s|,;+\\-\\[\\](){}\"'*`\u2013\u2014\u2500-\u257f]")
_ROW_END = re.compile(r"[\])}]\s*,\s*(?=[\[({])|(?<=[0-9])\s*/\s*(?=[0-9])")
_LABEL = re.compile(
    r"^\W*(?:row|r)\s*[0-9]\s*[:.)]"
    r"|^\W*(?:the )?(?:final |full |completed? |solved )?(?:grid|solution|sudoku|answer)(?: is)?:\W*$",
    re.IGNORECASE,
)


class SudokuEnv(SingleTurnEnv):
    """Fill the empty cells of a grid.

    ## Description
    Each row, each column and each box has each digit once. There is exactly one solution. Up to the hard level it
    can be found cell by cell without trying out: the generator empties a cell only if what is left forces its digit.
    Teaches to keep many constraints in view, and to do the forced step first.

    ## Observation
    The rules and the grid, a row a line, with dots for empty cells. After the reply "Correct.", "Incorrect." or what
    was malformed.

    ## Action
    The full grid, with one row on each line: `<answer>1234
    3412
    2143
    4321</answer>`. Spaces, commas, brackets and the lines of a frame (`|`, `+`, `-`) do not matter. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the solution. There is nothing for cells that are right: the given ones would be paid
    for. `malformed` (weight -0.1): 1 for a reply without an answer, with broken tags, or whose answer is not a full
    grid of that size.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". Grids that are turned or renamed into each other are in the same split.
    - `difficulty`: "starter": 4×4 with 9 to 11 digits given; "easy" (default): 4×4 with 5 to 7; "medium": 6×6 with 12
      to 16; "hard": 9×9 with 30 to 36, now and then a few more; "expert": 9×9 with fewer, which cannot be completed by
      forced digits.
    - `reset(options={"problem": {"rows": ["1...", "..1.", ".2..", "...4"]}})` plays a given grid with one solution.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often filling each row with its missing digits in random order is right: 18% at the
    # starter level, 0.9% and 2e-7 at the next ones. n_problems: split keys, about as many as 20,000 draws find.
    difficulties = {
        "starter": Difficulty(
            "4x4, more than half given", chance_rate=0.2, n_problems=1_500, settings={"size": 4, "clues": (9, 11)}
        ),
        "easy": Difficulty("4x4", chance_rate=0.02, n_problems=1_000, settings={"size": 4, "clues": (5, 7)}),
        "medium": Difficulty("6x6", chance_rate=1e-5, settings={"size": 6, "clues": (12, 16)}),
        "hard": Difficulty("9x9", chance_rate=1e-9, settings={"size": 9, "clues": (30, 36)}),
        "expert": Difficulty(
            "9x9, with trying out",
            chance_rate=1e-9,
            settings={"size": 9, "clues": (26, 28), "needs_search": True},
            expected_hard="Where no digit is forced any more, some 40 cells are still open, and digits must be tried "
            "and taken back, with all that followed from them: some 500 steps; at one slip in 700, 49% are right.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "at the expert level a grid is solved anew for each cell that is emptied"
    problem_fields = {"rows": list}
    instructions = "Solve the Sudoku. The answer is the full grid, with one row of digits on each line."
    answer_example = "1234\n3412\n2143\n4321"
    has_natural_form = False

    def generate(self) -> dict[str, Any]:
        """Turn one of many full grids, and empty cells."""
        random, size = self.np_random.random, self.settings["size"]
        grid = turn(full_grid(size, int(random() * N_FULL)), size, random)
        n_clues = between(random, *self.settings["clues"])
        left = hide(grid, size, random, n_clues)
        while self.settings.get("needs_search") and (left := thin(left, size, random) or []) == []:
            left = hide(grid, size, random, n_clues)
        problem = {"rows": _write(left, size)}
        self._drawn = problem, grid
        return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse rows that are not a grid, or a grid that does not have exactly one solution."""
        rows = problem["rows"]
        size = len(rows)
        if size not in BOXES or not all(isinstance(row, str) and len(row) == size for row in rows):
            raise InvalidActionError("rows must be 4, 6 or 9 texts of as many characters")
        if set("".join(rows)) - set(".123456789"[: size + 1]):
            raise InvalidActionError(f"the grid may have dots and the digits 1 to {size}")
        grid = _read(rows)
        n_clues = sum(map(bool, grid))
        if n_clues < _FEWEST_CLUES[size] or len(count_solutions(grid, size)) != 1:
            raise InvalidActionError(f"the grid of {n_clues} given digits has not exactly one solution")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return with how many others each given digit shares its lines: turning and renaming do not change it."""
        grid, size = _read(problem["rows"]), len(problem["rows"])
        given = [(cell, cell // size, cell % size, box) for cell, box in enumerate(box_numbers(size)) if grid[cell]]
        rows, columns = Counter(row for _, row, _, _ in given), Counter(column for _, _, column, _ in given)
        boxes, digits = Counter(box for _, _, _, box in given), Counter(grid)
        is_square = BOXES[size][0] == BOXES[size][1]
        profile = []
        for cell, row, column, box in given:
            lines = rows[row], columns[column]
            first, second = sorted(lines) if is_square else lines
            profile.append(((first * 10 + second) * 10 + boxes[box]) * 10 + digits[grid[cell]])
        return sorted(profile)

    def begin(self) -> None:
        """Take the grid that was drawn, or solve a given one."""
        drawn, grid = getattr(self, "_drawn", (None, []))
        rows = self.problem["rows"]
        self._solution = grid if drawn is self.problem else count_solutions(_read(rows), len(rows), 1)[0]

    def prompt(self) -> str:
        """Return the rules and the grid."""
        size = len(self.problem["rows"])
        height, width = BOXES[size]
        rule = (
            f"Fill in the dots so that each row, each column and each of the {size} boxes of {height} rows and {width} "
            f"columns has each digit from 1 to {size} once."
        )
        return "\n".join([rule, *self.problem["rows"]])

    def solution(self) -> str:
        """Return the full grid."""
        return "\n" + "\n".join(_write(self._solution, len(self.problem["rows"]))) + "\n"

    def is_correct(self, answer: str) -> bool:
        """Compare all cells."""
        size = len(self.problem["rows"])
        check_length(answer)
        lines = [line.strip() for line in _ROW_END.sub("\n", answer).splitlines() if line.strip()]
        lines = [_LABEL.sub("", line) for line in without_markers(lines)]
        rows = [row for line in lines if (row := _DECORATION.sub("", line))]
        if len(rows) == 1 and len(rows[0]) == size * size:
            rows = [rows[0][start : start + size] for start in range(0, size * size, size)]
        if len(rows) != size or not all(len(row) == size and set(row) <= set("123456789"[:size]) for row in rows):
            raise InvalidActionError(f"the answer is not a full grid: {size} lines of {size} digits from 1 to {size}")
        return _read(rows) == self._solution


def _read(rows: Sequence[str]) -> list[int]:
    return [0 if character == "." else int(character) for row in rows for character in row]


def _write(grid: Sequence[int], size: int) -> list[str]:
    text = "".join(str(digit) if digit else "." for digit in grid)
    return [text[start : start + size] for start in range(0, size * size, size)]

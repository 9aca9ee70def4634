"""Boards in a text, and the one form that all rotations and mirror images of a text with a board share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

__all__ = ["canonical_board_text"]

_CELL_NAME = re.compile(r"(?<![\w\"'])([A-Z])(\d{1,2})(?![\w\"'])")

_Rows = tuple[tuple[str, ...], ...]


def canonical_board_text(text: str) -> str:
    """Return the smallest form of a text under rotations and mirror images of its board; unchanged without a board.

    A board is the longest run of at least three lines with the same number of cells. Labels of rows and columns keep
    their places. Names of cells outside the board ("B3") move with it, except in quotation marks.
    """
    lines = text.split("\n")
    start, rows = _board(lines)
    if not rows:
        return text
    before, after = "\n".join(lines[:start]), "\n".join(lines[start + len(rows) :])
    body, has_names = _without_labels(rows)
    height, width = len(body), len(body[0])
    forms = []
    for turn in _SYMMETRIES:
        if turn(height - 1, width - 1, height, width) is None:
            continue
        forms.append(f"{_moved(before, turn, height, width) if has_names else before}\0{_turned(body, turn)}\0"
                     f"{_moved(after, turn, height, width) if has_names else after}")  # fmt: skip
    return min(forms)


_Symmetry = Callable[[int, int, int, int], "tuple[int, int] | None"]


def _square(turn: Callable[[int, int, int, int], tuple[int, int]]) -> _Symmetry:
    return lambda row, column, height, width: turn(row, column, height, width) if height == width else None


_SYMMETRIES: tuple[_Symmetry, ...] = (
    lambda row, column, height, width: (row, column),
    lambda row, column, height, width: (height - 1 - row, column),
    lambda row, column, height, width: (row, width - 1 - column),
    lambda row, column, height, width: (height - 1 - row, width - 1 - column),
    _square(lambda row, column, height, width: (column, row)),
    _square(lambda row, column, height, width: (width - 1 - column, row)),
    _square(lambda row, column, height, width: (column, height - 1 - row)),
    _square(lambda row, column, height, width: (width - 1 - column, height - 1 - row)),
)
"""The new position of a cell (row, column) of a board of some height and width; None if the board's shape changes."""


def _board(lines: Sequence[str]) -> tuple[int, _Rows]:
    """Return the first line and the cells of the longest board in a text; no cells without a board."""
    split = [_cells(line) for line in lines]
    best: tuple[int, int] = (0, 0)
    start = 0
    while start < len(lines):
        end = start + 1
        while end < len(lines) and len(split[end]) == len(split[start]):
            end += 1
        if len(split[start]) >= 3 and end - start >= 3 and end - start > best[1] - best[0]:
            best = start, end
        start = end
    # A header line of labels is shorter, because it has no row label.
    first, last = best
    return first, tuple(tuple(row) for row in split[first:last])


def _cells(line: str) -> list[str]:
    """Return the cells of a line: words of at most two characters between spaces, or the characters of one word."""
    words = line.split()
    if len(words) == 1 and len(words[0]) > 2 and not words[0].isalpha():
        return list(words[0])
    return words if all(len(word) <= 2 for word in words) else []


def _without_labels(rows: _Rows) -> tuple[_Rows, bool]:
    """Return the rows without a first column of row numbers, and whether there was one."""
    if [row[0] for row in rows] == [str(i + 1) for i in range(len(rows))]:
        return tuple(row[1:] for row in rows), True
    return rows, False


def _turned(rows: _Rows, turn: _Symmetry) -> str:
    height, width = len(rows), len(rows[0])
    cells = {turn(i, j, height, width): cell for i, row in enumerate(rows) for j, cell in enumerate(row)}
    return " ".join(cells[place] for place in sorted(cells))  # type: ignore[type-var]  # no None among them


def _moved(text: str, turn: _Symmetry, height: int, width: int) -> str:
    def moved(name: re.Match[str]) -> str:
        row, column = int(name[2]) - 1, ord(name[1]) - ord("A")
        if not (0 <= row < height and 0 <= column < width):
            return name[0]
        place = turn(row, column, height, width)
        assert place is not None
        return f"{chr(ord('A') + place[1])}{place[0] + 1}"

    return _CELL_NAME.sub(moved, text)

"""Boards in a text, and the one form that all rotations and mirror images of a text with a board share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt

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
    cells, forms = [cell for row in body for cell in row], []
    places = np.arange(height * width).reshape(height, width)
    for side, turns in product((places, places[:, ::-1]), range(4)):
        if (turned := np.rot90(side, turns)).shape != places.shape:
            continue
        move = partial(_moved, np.argsort(turned, axis=None), height, width)
        texts = [_CELL_NAME.sub(move, text) if has_names else text for text in (before, after)]
        forms.append(f"{texts[0]}\0{' '.join(cells[place] for place in turned.flat)}\0{texts[1]}")
    return min(forms)


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


def _moved(new_place: npt.NDArray[np.intp], height: int, width: int, name: re.Match[str]) -> str:
    """Return the name of a cell after its board has moved: the new place of each cell, counted along the rows."""
    row, column = int(name[2]) - 1, ord(name[1]) - ord("A")
    if not (0 <= row < height and 0 <= column < width):
        return name[0]
    row, column = divmod(int(new_place[row * width + column]), width)
    return f"{chr(ord('A') + column)}{row + 1}"

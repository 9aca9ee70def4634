"""The view of an agent of MiniGrid in words: every visible cell, exactly, from where the agent stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["ACTIONS", "DIRECTIONS", "describe", "name_of"]

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
"""In the order of MiniGrid's numbers."""
DIRECTIONS = ("east", "south", "west", "north")
"""Likewise."""
_TYPES = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
_COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
_STATES = ("open", "closed", "locked")
_PLAIN = {("wall", "grey"): "wall", ("goal", "green"): "goal", ("lava", "red"): "lava"}
_LAST = ("wall", "unseen")
"""Listed after everything else."""

Run = tuple[int, int]
"""First and last column of neighbouring cells; negative columns are on the left."""


def name_of(cell: Sequence[int]) -> str:
    """Return the name of a cell of MiniGrid's view, such as "red ball" or "blue door (locked)"; "" for a free one.

    Args:
        cell: Numbers of the type, the colour and the state.
    """
    kind, colour = _TYPES[cell[0]], _COLOURS[cell[1]]
    if kind in ("empty", "unseen"):
        return "" if kind == "empty" else kind
    name = _PLAIN.get((kind, colour), f"{colour} {kind}")
    return f"{name} ({_STATES[cell[2]]})" if kind == "door" else name


def describe(image: Any, direction: int) -> str:
    """Return a view as text, from which the view can be drawn again.

    Args:
        image: MiniGrid's view, of shape (columns, rows, 3): the agent is in the middle of the last row, and what it
            carries is shown in its place.
        direction: Number of the direction that it faces.
    """
    n_columns, n_rows, _ = image.shape
    middle = n_columns // 2
    names = [[name_of(image[column, n_rows - 1 - row]) for column in range(n_columns)] for row in range(n_rows)]
    carried, names[0][middle] = names[0][middle], ""
    front = names[1][middle] or "nothing"
    lines = [f"You face {DIRECTIONS[direction]} and carry {carried or 'nothing'}. In front of you: {front}."]
    there = sorted({name for row in names for name in row if name}, key=lambda name: (name in _LAST, name))
    for name in there:
        runs = [tuple(_runs([cell == name for cell in row], middle)) for row in names]
        lines.append(f"{name}: {'; '.join(_places(runs))}")
    return "\n".join(lines)


def _runs(is_there: Sequence[bool], middle: int) -> Iterator[Run]:
    """Yield the runs of neighbouring cells of a row."""
    start = None
    for column, here in enumerate([*is_there, False]):
        if here and start is None:
            start = column
        elif not here and start is not None:
            yield start - middle, column - 1 - middle
            start = None


def _places(rows: Sequence[tuple[Run, ...]]) -> Iterator[str]:
    """Yield places such as "rows 0 to 4, 3 left"; neighbouring rows with equal runs are one place."""
    first = 0
    for row in range(1, len(rows) + 1):
        if row < len(rows) and rows[row] == rows[first]:
            continue
        if rows[first]:
            where = f"row {first}" if row - 1 == first else f"rows {first} to {row - 1}"
            yield f"{where}, {' and '.join(map(_run_in_words, rows[first]))}"
        first = row


def _run_in_words(run: Run) -> str:
    first, last = run
    return _column(first) if first == last else f"{_column(first)} to {_column(last)}"


def _column(column: int) -> str:
    return "middle" if column == 0 else f"{abs(column)} {'left' if column < 0 else 'right'}"

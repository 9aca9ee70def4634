"""Steps of programs on coloured grids: keep some objects, recolour, move, draw around them, arrange the grid.

A grid is a list of rows of digits; 0 is the background. An object is a group of cells of one colour that touch along
edges. Sets of cells are the bits of a whole number: cell (row, column) is bit `row * (width + 1) + column`, so that the
column behind the last one is always free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = [
    "ARRANGE",
    "DRAW",
    "MOVE",
    "RECOLOUR",
    "SELECT",
    "Board",
    "Grid",
    "Thing",
    "moved",
    "read_grid",
    "recoloured",
]

Grid = list[list[int]]


@dataclass(frozen=True, slots=True)
class Board:
    """The size of a grid, with its cells as bits."""

    height: int
    width: int
    all: int
    down: int
    """By how much a bit moves from a row to the next."""

    def column(self, place: int) -> int:
        """Return the cells of a column."""
        return sum(1 << row * self.down + place for row in range(self.height))


@lru_cache(maxsize=256)
def board(height: int, width: int) -> Board:
    """Return the board of a size."""
    row = (1 << width) - 1
    return Board(height, width, sum(row << y * (width + 1) for y in range(height)), width + 1)


@dataclass(frozen=True, slots=True)
class Thing:
    """An object, as it is in the input."""

    mask: int
    colour: int
    size: int
    has_hole: bool
    at_border: bool
    is_symmetric: bool
    """Its own mirror image, left to right."""
    height: int
    width: int


def read_grid(grid: Grid) -> tuple[Board, list[Thing]]:
    """Return the board and the objects of a grid, the first in reading order first."""
    here = board(len(grid), len(grid[0]))
    by_colour: dict[int, int] = {}
    for y, row in enumerate(grid):
        for x, colour in enumerate(row):
            if colour:
                by_colour[colour] = by_colour.get(colour, 0) | 1 << y * here.down + x
    things = []
    for colour, left in by_colour.items():
        while left:
            mask = _grown(left & -left, left, here.down)
            left &= ~mask
            things.append(_thing(mask, colour, here))
    return here, sorted(things, key=lambda thing: thing.mask & -thing.mask)


def _grown(seed: int, within: int, down: int) -> int:
    before = 0
    while seed != before:
        before = seed
        seed |= (seed << 1 | seed >> 1 | seed << down | seed >> down) & within
    return seed


def _thing(mask: int, colour: int, here: Board) -> Thing:
    top, bottom, left, right = box = bounds(mask, here.down)
    at_border = top == 0 or left == 0 or bottom == here.height - 1 or right == here.width - 1
    is_symmetric = flipped(mask, here, "across") == mask
    return Thing(
        mask, colour, mask.bit_count(), holes(mask, here) != 0, at_border, is_symmetric, *_extent(box)
    )  # fmt: skip


def _extent(box: tuple[int, int, int, int]) -> tuple[int, int]:
    top, bottom, left, right = box
    return bottom - top + 1, right - left + 1


@lru_cache(maxsize=4096)
def bounds(mask: int, down: int) -> tuple[int, int, int, int]:
    """Return the first and last row, and the first and last column, of some cells."""
    columns, rows = 0, mask
    row = (1 << down) - 1
    while rows:
        columns |= rows & row
        rows >>= down
    first, last = (mask & -mask).bit_length() - 1, mask.bit_length() - 1
    return first // down, last // down, (columns & -columns).bit_length() - 1, columns.bit_length() - 1


@lru_cache(maxsize=4096)
def box_of(mask: int, here: Board) -> int:
    """Return the cells of the smallest rectangle around some cells."""
    top, bottom, left, right = bounds(mask, here.down)
    row = ((1 << right - left + 1) - 1) << left
    return sum(row << y * here.down for y in range(top, bottom + 1))


@lru_cache(maxsize=4096)
def holes(mask: int, here: Board) -> int:
    """Return the cells that an object encloses: no way along edges leads from them out of its rectangle."""
    free = box_of(mask, here) & ~mask
    top, bottom, left, right = bounds(mask, here.down)
    rim = here.column(left) | here.column(right)
    rim |= ((1 << here.width) - 1) << top * here.down | ((1 << here.width) - 1) << bottom * here.down
    return free & ~_grown(free & rim, free, here.down)


@lru_cache(maxsize=4096)
def flipped(mask: int, here: Board, how: str) -> int:
    """Return an object mirrored ("across": left to right, "upside down") or turned by half ("half") in its place."""
    top, bottom, left, right = bounds(mask, here.down)
    cells, rest = 0, mask
    while rest:
        bit = rest & -rest
        rest ^= bit
        y, x = divmod(bit.bit_length() - 1, here.down)
        y = y if how == "across" else top + bottom - y
        x = x if how == "upside down" else left + right - x
        cells |= 1 << y * here.down + x
    return cells


# Which objects stay.


def _extreme(things: Sequence[Thing], sign: int) -> list[Thing]:
    most = max(sign * thing.size for thing in things)
    return [thing for thing in things if sign * thing.size == most]


def _by_colour(things: Sequence[Thing], sign: int) -> list[Thing]:
    counts = Counter(thing.colour for thing in things)
    most = max(sign * count for count in counts.values())
    return [thing for thing in things if sign * counts[thing.colour] == most]


SELECT: Mapping[str, Callable[[Sequence[Thing]], list[Thing]]] = {
    "the largest": lambda things: _extreme(things, 1),
    "the smallest": lambda things: _extreme(things, -1),
    "with a hole": lambda things: [thing for thing in things if thing.has_hole],
    "without a hole": lambda things: [thing for thing in things if not thing.has_hole],
    "at the border": lambda things: [thing for thing in things if thing.at_border],
    "not at the border": lambda things: [thing for thing in things if not thing.at_border],
    "of the commonest colour": lambda things: _by_colour(things, 1),
    "of the rarest colour": lambda things: _by_colour(things, -1),
    "symmetric": lambda things: [thing for thing in things if thing.is_symmetric],
    "not symmetric": lambda things: [thing for thing in things if not thing.is_symmetric],
    "taller than wide": lambda things: [thing for thing in things if thing.height > thing.width],
    "wider than tall": lambda things: [thing for thing in things if thing.width > thing.height],
}
"""Which objects a program keeps; the others vanish. Several are largest (or of the commonest colour) if they tie."""


# Their colours.

_SOME: Mapping[str, Callable[[Sequence[Thing]], list[Thing]]] = {
    "all": list,
    "the largest": SELECT["the largest"],
    "the smallest": SELECT["the smallest"],
    "with a hole": SELECT["with a hole"],
    "at the border": SELECT["at the border"],
    "symmetric": SELECT["symmetric"],
    "taller than wide": SELECT["taller than wide"],
}
RECOLOUR: Mapping[str, int] = {
    **dict.fromkeys(_SOME, 1),
    **{"from to": 2, "swap": 2, "like the largest": 0, "like the smallest": 0},
}
"""How a program changes the colours of what it keeps, with the number of colours that the step names."""


def recoloured(things: Sequence[Thing], how: str, colours: Sequence[int]) -> list[int]:
    """Return the new colours of objects."""
    old = [thing.colour for thing in things]
    if how in _SOME:
        chosen = {thing.mask for thing in _SOME[how](things)}
        return [colours[0] if thing.mask in chosen else thing.colour for thing in things]
    if how.startswith("like"):
        models = SELECT[how.removeprefix("like ")](things)
        return [models[0].colour] * len(old) if len({model.colour for model in models}) == 1 else old
    new = {colours[0]: colours[1], colours[1]: colours[0] if how == "swap" else colours[1]}
    return [new.get(colour, colour) for colour in old]


# Their places.

_FALLS = ("down", "up", "left", "right")
MOVE = (*_FALLS, "across", "upside down", "half")
"""How a program moves what it keeps, each object as a whole: to the edge or another one, or in its place."""


def _shift(mask: int, way: str, here: Board) -> int:
    """Return cells one step further, without those that leave the board."""
    if way in ("down", "up"):
        return (mask << here.down if way == "down" else mask >> here.down) & here.all
    return (mask >> 1 if way == "left" else mask << 1) & here.all


@lru_cache(maxsize=4096)
def moved(masks: tuple[int, ...], how: str, here: Board) -> tuple[int, ...]:
    """Return where objects are after a move."""
    if how not in _FALLS:
        return tuple([flipped(mask, here, how) for mask in masks])
    now, is_new = list(masks), True
    while is_new:
        is_new = False
        for i, mask in enumerate(now):
            others = 0
            for j, other in enumerate(now):
                others |= other if j != i else 0
            n_cells = mask.bit_count()
            while (further := _shift(now[i], how, here)).bit_count() == n_cells and not further & others:
                now[i], is_new = further, True
    return tuple(now)


# What is drawn around them.


def _halo(mask: int, here: Board) -> int:
    wide = mask | mask << 1 & here.all | mask >> 1 & here.all
    return wide | wide << here.down & here.all | wide >> here.down


def _corners(mask: int, here: Board) -> int:
    top, bottom, left, right = bounds(mask, here.down)
    cells = 0
    for y in (top - 1, bottom + 1):
        for x in (left - 1, right + 1):
            if 0 <= y < here.height and 0 <= x < here.width:
                cells |= 1 << y * here.down + x
    return cells


_AROUND: Mapping[str, Callable[[int, Board], int]] = {
    "holes": holes,
    "box": box_of,
    "halo": _halo,
    "corners": _corners,
}
DRAW = (*_AROUND, *(f"rays {way}" for way in _FALLS))
"""The ways to draw for each object, on the background: it fills its holes, or the rest of its rectangle; surrounds
it, or sets the four cells diagonally outside its rectangle; or draws a shadow as far as the edge or the next object."""


@lru_cache(maxsize=4096)
def drawn(masks: tuple[int, ...], how: str, here: Board) -> int:
    """Return the cells that are drawn."""
    taken = 0
    for mask in masks:
        taken |= mask
    if not how.startswith("rays"):
        cells = 0
        for mask in masks:
            cells |= _AROUND[how](mask, here)
        return cells & ~taken
    cells, front = 0, taken
    while front := _shift(front, how.removeprefix("rays "), here) & ~taken:
        cells |= front
    return cells


# The whole grid.

_Turn = Callable[[Grid], Grid]
_TURNS: Mapping[str, tuple[_Turn, str]] = {
    "quarter turn right": (lambda g: [list(row) for row in zip(*g[::-1], strict=True)], "quarter turn left"),
    "quarter turn left": (lambda g: [list(row) for row in zip(*g, strict=True)][::-1], "quarter turn right"),
    "half turn": (lambda g: [row[::-1] for row in g[::-1]], "half turn"),
    "mirror left to right": (lambda g: [row[::-1] for row in g], "mirror left to right"),
    "mirror upside down": (lambda g: g[::-1], "mirror upside down"),
    "transpose": (lambda g: [list(row) for row in zip(*g, strict=True)], "transpose"),
}
"""Turns of a grid, each with the name of the one that undoes it."""


def _crop(grid: Grid) -> Grid:
    rows = [y for y, row in enumerate(grid) if any(row)]
    columns = [x for x, column in enumerate(zip(*grid, strict=True)) if any(column)]
    if not rows:
        return grid
    return [row[columns[0] : columns[-1] + 1] for row in grid[rows[0] : rows[-1] + 1]]


_BUILDS: Mapping[str, Callable[[Grid, int], Grid]] = {
    "append the mirror image at the right": lambda g, n: [row + row[::-1] for row in g],
    "append the mirror image below": lambda g, n: g + g[::-1],
    "append both mirror images": lambda g, n: [row + row[::-1] for row in g + g[::-1]],
    "double the size": lambda g, n: [[c for c in row for _ in (0, 1)] for row in g for _ in (0, 1)],
    "once for each object, to the right": lambda g, n: [row * n for row in g],
    "once for each object, downwards": lambda g, n: g * n,
}
"""Larger grids that are made of copies, given how many objects were kept; the upper left part, or every second cell, is
the grid before."""

ARRANGE = (*_TURNS, "crop", *_BUILDS)
"""The ways to change the whole grid at the end."""


def arranged(grid: Grid, how: str, n: int) -> Grid:
    """Return a grid that holds `n` objects after the last step."""
    if how in _TURNS:
        return _TURNS[how][0](grid)
    return _crop(grid) if how == "crop" else _BUILDS[how](grid, n)


def disarranged(grid: Grid, how: str, here: Board) -> tuple[Grid, int] | None:
    """Return the grid of a given size from which a step made this one, and for how many objects (0: for any).

    None if no grid does. Not for "crop", which cannot be undone.
    """
    if how in _TURNS:
        before = _TURNS[_TURNS[how][1]][0](grid)
        return (before, 0) if (len(before), len(before[0])) == (here.height, here.width) else None
    by_y, rest_y = divmod(len(grid), here.height)
    by_x, rest_x = divmod(len(grid[0]), here.width)
    if rest_y or rest_x or (by_x, by_y) == (1, 1):
        return None
    step = 2 if how == "double the size" else 1
    before = [row[: here.width * step : step] for row in grid[: here.height * step : step]]
    n = max(by_x, by_y)
    if _BUILDS[how](before, n) != grid:
        return None
    return before, n if how.startswith("once") else 0

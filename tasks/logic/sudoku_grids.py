"""Sudoku grids: filling, hiding, turning and solving them. A grid is a list of n*n digits, 0 for an empty cell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random as Generator

from llm_envs.tasks.draws import Random, shuffled

__all__ = ["BOXES", "count_solutions", "full_grid", "hide", "needs_search", "thin", "turn"]

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}
"""Height and width of a box, by the size of the grid."""
N_FULL = 300
"""Full grids of each size that are turned and renamed into others, in n! and many more ways each."""


@lru_cache(maxsize=4)
def box_numbers(size: int) -> list[int]:
    """Return the box of each cell."""
    height, width = BOXES[size]
    return [row // height * height + column // width for row in range(size) for column in range(size)]


@lru_cache(maxsize=3 * N_FULL)
def full_grid(size: int, number: int) -> tuple[int, ...]:
    """Return one of `N_FULL` full grids of a size, each filled at random: always the same one for the same number."""
    found = _search([0] * (size * size), size, Generator(number).random, limit=1)
    return tuple(found[0])


def turn(grid: Sequence[int], size: int, random: Random) -> list[int]:
    """Return the grid with digits renamed, rows and columns exchanged within and with their bands, perhaps mirrored."""
    height, width = BOXES[size]
    names = [0, *shuffled(random, range(1, size + 1))]
    rows = _exchange(random, size, height)
    columns = _exchange(random, size, width)
    turned = [names[grid[row * size + column]] for row in rows for column in columns]
    if height == width and random() < 0.5:
        return [turned[column * size + row] for row in range(size) for column in range(size)]
    return turned


def _exchange(random: Random, size: int, band: int) -> list[int]:
    starts = shuffled(random, range(0, size, band))
    return [line for start in starts for line in shuffled(random, range(start, start + band))]


def hide(grid: Sequence[int], size: int, random: Random, n_clues: int) -> list[int]:
    """Empty cells in random order, down to `n_clues` or as far as it goes, and keep the grid the only solution.

    A cell is emptied only if what is left forces its digit at once: no other digit fits there, or the digit fits
    nowhere else in its row, column or box. So every solution of what is left has that digit there, and is a solution of
    what was there before: by induction, the grid is the only one.
    """
    boxes = box_numbers(size)
    left, n_left = list(grid), size * size
    rows, columns, squares = ([(1 << size) - 1] * size for _ in range(3))
    for cell in shuffled(random, range(size * size)):
        if n_left <= n_clues:
            break
        row, column, box = cell // size, cell % size, boxes[cell]
        bit = 1 << (left[cell] - 1)
        rows[row] ^= bit
        columns[column] ^= bit
        squares[box] ^= bit
        digit, left[cell] = left[cell], 0
        taken = rows[row] | columns[column] | squares[box]
        if taken.bit_count() == size - 1 or _is_forced(left, size, cell, bit, rows, columns, squares):
            n_left -= 1
        else:
            left[cell] = digit
            rows[row] |= bit
            columns[column] |= bit
            squares[box] |= bit
    return left


def _is_forced(
    left: list[int], size: int, cell: int, bit: int, rows: list[int], columns: list[int], squares: list[int]
) -> bool:
    """Return whether a digit fits into an empty cell but nowhere else in its row, in its column, or in its box."""
    boxes = box_numbers(size)
    for unit in _units(size)[cell]:
        for other in unit:
            if not left[other] and not (rows[other // size] | columns[other % size] | squares[boxes[other]]) & bit:
                break
        else:
            return True
    return False


def thin(grid: Sequence[int], size: int, random: Random) -> list[int] | None:
    """Empty more cells in random order, each if the grid keeps one solution, until it needs a search.

    Returns:
        The grid, or None if it never needs a search.
    """
    left = list(grid)
    for cell in shuffled(random, [cell for cell, digit in enumerate(left) if digit]):
        digit = left[cell]
        if any(_with(left, cell, other, size) for other in range(1, size + 1) if other != digit):
            continue
        left[cell] = 0
        if needs_search(left, size):
            return left
    return None


def _with(grid: Sequence[int], cell: int, digit: int, size: int) -> bool:
    """Return whether a grid with this digit in a cell has a solution."""
    changed = list(grid)
    changed[cell] = digit
    return bool(count_solutions(changed, size, 1))


def needs_search(grid: Sequence[int], size: int) -> bool:
    """Return whether filling in digits that are forced, one after the other, leaves cells empty.

    A digit is forced if no other fits into its cell, or if it fits nowhere else in its row, column or box.
    """
    left, boxes, units = list(grid), box_numbers(size), _units(size)
    lines: list[list[int]] = [[0] * size for _ in range(3)]

    def fill(cell: int, bit: int) -> None:
        left[cell] = bit.bit_length()
        for line, place in zip(lines, (cell // size, cell % size, boxes[cell]), strict=True):
            line[place] |= bit

    for cell, digit in enumerate(grid):
        if digit:
            fill(cell, 1 << digit - 1)
    every, is_new = (1 << size) - 1, True
    while is_new:
        is_new = False
        fitting = [
            0 if left[cell] else every & ~(lines[0][cell // size] | lines[1][cell % size] | lines[2][boxes[cell]])
            for cell in range(size * size)
        ]
        for cell, bits in enumerate(fitting):
            forced = bits if bits & (bits - 1) == 0 else 0
            for unit in units[cell]:
                elsewhere = 0
                for other in unit:
                    elsewhere |= fitting[other]
                forced = forced or bits & ~elsewhere
            if forced:
                fill(cell, forced)
                is_new = True
    return not all(left)


@lru_cache(maxsize=4)
def _units(size: int) -> list[list[list[int]]]:
    """Return, for each cell, the other cells of its row, of its column and of its box."""
    boxes, cells = box_numbers(size), range(size * size)
    return [
        [
            [other for other in cells if other != cell and other // size == cell // size],
            [other for other in cells if other != cell and other % size == cell % size],
            [other for other in cells if other != cell and boxes[other] == boxes[cell]],
        ]
        for cell in cells
    ]


def count_solutions(grid: Sequence[int], size: int, limit: int = 2) -> list[list[int]]:
    """Return the solutions of a grid, at most `limit` of them; none if a digit is there twice."""
    return _search(list(grid), size, None, limit)


def _search(grid: list[int], size: int, random: Random | None, limit: int) -> list[list[int]]:
    """Fill the cell for which fewest digits are left, with each of them in turn (in random order, if asked for)."""
    boxes = box_numbers(size)
    rows, columns, squares = ([0] * size for _ in range(3))
    for cell, digit in enumerate(grid):
        if digit:
            bit = 1 << (digit - 1)
            if (rows[cell // size] | columns[cell % size] | squares[boxes[cell]]) & bit:
                return []
            rows[cell // size] |= bit
            columns[cell % size] |= bit
            squares[boxes[cell]] |= bit
    every, found = (1 << size) - 1, []

    def fill() -> None:
        best, fewest, fitting = -1, size + 1, 0
        for cell, digit in enumerate(grid):
            if not digit:
                bits = every & ~(rows[cell // size] | columns[cell % size] | squares[boxes[cell]])
                if bits.bit_count() < fewest:
                    best, fewest, fitting = cell, bits.bit_count(), bits
                    if fewest < 2:
                        break
        if best < 0:
            found.append(grid.copy())
            return
        row, column, box = best // size, best % size, boxes[best]
        digits = [digit for digit in range(1, size + 1) if fitting >> (digit - 1) & 1]
        for digit in digits if random is None else shuffled(random, digits):
            bit = 1 << (digit - 1)
            grid[best] = digit
            rows[row] |= bit
            columns[column] |= bit
            squares[box] |= bit
            fill()
            rows[row] ^= bit
            columns[column] ^= bit
            squares[box] ^= bit
            if len(found) >= limit:
                break
        grid[best] = 0

    fill()
    return found

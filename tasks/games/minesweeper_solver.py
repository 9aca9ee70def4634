"""A mine field as bits, and what two rules of reasoning show about its closed cells."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["Field", "safe_cells", "safest_cell"]


class Field:
    """A field of `n_rows` by `n_columns` cells; cell `row * n_columns + column` is bit 1 << cell of `mines`."""

    def __init__(self, n_rows: int, n_columns: int, mines: int) -> None:
        self.mines = mines
        self.safe = ((1 << n_rows * n_columns) - 1) & ~mines
        self.around = _around(n_rows, n_columns)
        self.numbers = [(mines & around).bit_count() for around in self.around]

    def opened_with(self, cell: int, opened: int) -> int:
        """Return the open cells after opening one more, which has no mine; a cell with 0 opens those around it."""
        opened |= 1 << cell
        queue = [cell]
        for current in queue:
            if self.numbers[current] == 0:
                fresh = self.around[current] & ~opened
                opened |= fresh
                while fresh:
                    lowest = fresh & -fresh
                    queue.append(lowest.bit_length() - 1)
                    fresh ^= lowest
        return opened

    def n_comparisons(self, opened: int) -> int | None:
        """Return how often two numbers must be compared to open all cells without a mine; None if that is not enough.

        Everything that single numbers show is opened first, then everything that one round of comparing shows.
        """
        n = 0
        while opened != self.safe:
            safe = safe_cells(self, opened, compares=False)
            if not safe:
                n, safe = n + 1, safe_cells(self, opened)
            if not safe:
                return None
            while safe:
                lowest = safe & -safe
                opened = self.opened_with(lowest.bit_length() - 1, opened)
                safe &= ~opened
        return n


def safe_cells(field: Field, opened: int, *, compares: bool = True) -> int:
    """Return the closed cells that the rules show to have no mine, as bits.

    Each open number is a constraint: so many mines in its closed cells. (1) None in a constraint: its cells are safe;
    as many as cells: they are mines. (2) The cells of one constraint all lie in another: the cells that only the latter
    has, have the difference. Mines that are found are taken out of the constraints until nothing new follows.

    Args:
        field: The field.
        opened: The open cells, as bits.
        compares: Whether to use rule 2. Without it, each number is looked at by itself.
    """
    constraints = _constraints(field, opened)
    while True:
        safe = mines = 0
        for cells, n_mines in constraints.items():
            if n_mines == 0:
                safe |= cells
            elif n_mines == cells.bit_count():
                mines |= cells
        if safe:
            return safe
        reduced: dict[int, int] = {}
        for cells, n_mines in constraints.items():
            if left := cells & ~mines:
                reduced[left] = n_mines - (cells & mines).bit_count()
        found = {
            larger & ~smaller: n_larger - n_smaller
            for smaller, n_smaller in (reduced if compares else {}).items()
            for larger, n_larger in reduced.items()
            if smaller & ~larger == 0 and smaller != larger and larger & ~smaller not in reduced
        }
        if not found and mines == 0:
            return 0
        constraints = reduced | found


def safest_cell(field: Field, opened: int) -> int:
    """Return, as a bit, the closed cell that the open numbers around it give the smallest share of mines."""
    n_cells = len(field.around)
    constraints = _constraints(field, opened)
    overall = field.mines.bit_count() / max(1, n_cells - opened.bit_count())
    risks = {
        cell: max((n / cells.bit_count() for cells, n in constraints.items() if cells >> cell & 1), default=overall)
        for cell in range(n_cells)
        if not opened >> cell & 1
    }
    return 1 << min(risks, key=risks.__getitem__)


def _constraints(field: Field, opened: int) -> dict[int, int]:
    """Return the closed cells around each open number, as bits, with how many of them have a mine."""
    constraints = {}
    left = opened
    while left:
        lowest = left & -left
        cell = lowest.bit_length() - 1
        if cells := field.around[cell] & ~opened:
            constraints[cells] = field.numbers[cell]
        left ^= lowest
    return constraints


@lru_cache(maxsize=64)
def _around(n_rows: int, n_columns: int) -> tuple[int, ...]:
    """Return the up to 8 neighbours of each cell as bits."""
    masks = []
    for row in range(n_rows):
        for column in range(n_columns):
            mask = 0
            for other_row in range(max(0, row - 1), min(n_rows, row + 2)):
                for other_column in range(max(0, column - 1), min(n_columns, column + 2)):
                    if (other_row, other_column) != (row, column):
                        mask |= 1 << other_row * n_columns + other_column
            masks.append(mask)
    return tuple(masks)

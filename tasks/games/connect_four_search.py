"""Connect Four positions as bits, and a search of limited depth.

Column c, row r (0 at the bottom) is bit 7 * c + r; the seventh bit of each column stays free, so that lines do not run
over from one column into the next.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["N_COLUMNS", "N_ROWS", "Position", "best_columns"]

N_COLUMNS, N_ROWS = 7, 6
_HEIGHT = N_ROWS + 1
_COLUMN = (1 << N_ROWS) - 1
_BOTTOM = sum(1 << column * _HEIGHT for column in range(N_COLUMNS))
_BOARD = _BOTTOM * _COLUMN
_MIDDLE = _COLUMN << (N_COLUMNS // 2) * _HEIGHT
_ORDER = sorted(range(N_COLUMNS), key=lambda column: abs(column - N_COLUMNS // 2))
_WON = 1_000
"""Value of a won position, and more the fewer discs it takes; no estimate comes near it."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where the discs are. `own` are those of the side whose turn it is."""

    own: int = 0
    mask: int = 0
    """All discs, as bits."""

    def n_discs(self) -> int:
        """Return the number of discs."""
        return self.mask.bit_count()

    def columns(self) -> list[int]:
        """Return the columns that are not full, from the left."""
        return [column for column in range(N_COLUMNS) if not self.mask >> (column * _HEIGHT + N_ROWS - 1) & 1]

    def after(self, column: int) -> Position:
        """Return the position after a disc, seen by the other side."""
        disc = (self.mask + (1 << column * _HEIGHT)) & (_COLUMN << column * _HEIGHT)
        return Position(self.own ^ self.mask, self.mask | disc)

    def mirrored(self) -> Position:
        """Return the position with the columns in the opposite order."""
        return Position(_mirrored(self.own), _mirrored(self.mask))

    def has_lost(self) -> bool:
        """Return whether the side that has just moved has four in a row."""
        return _has_four(self.own ^ self.mask)

    def is_over(self) -> bool:
        """Return whether there are four in a row, or no free place."""
        return self.mask == _BOARD or self.has_lost()

    def winning_columns(self) -> list[int]:
        """Return the columns that give the side whose turn it is four in a row."""
        return self._completing(self.own)

    def blocking_columns(self) -> list[int]:
        """Return the columns that would give the other side four in a row, if it were its turn."""
        return self._completing(self.own ^ self.mask)

    def _completing(self, discs: int) -> list[int]:
        places = _completing_places(discs, self.mask) & (self.mask + _BOTTOM)
        return [column for column in range(N_COLUMNS) if places >> column * _HEIGHT & _COLUMN]


def _mirrored(discs: int) -> int:
    """Return discs with the columns in the opposite order."""
    found = 0
    for column in range(N_COLUMNS):
        found = found << _HEIGHT | (discs >> column * _HEIGHT & _COLUMN)
    return found


def best_columns(position: Position, depth: int) -> list[int]:
    """Return the columns of the best value by a search of so many discs, for the side whose turn it is.

    The search is negamax with alpha-beta pruning; where it ends, a position is estimated by the places that would
    complete a four, and by discs in the middle column.
    """
    seen: dict[tuple[int, int, int], tuple[int, int]] = {}
    values: dict[int, int] = {}
    for column in _ORDER:
        if column in position.columns():
            after = position.after(column)
            values[column] = -_search(after.own, after.mask, depth - 1, -_WON * 2, _WON * 2, seen)
    best = max(values.values())
    return sorted(column for column, value in values.items() if value == best)


def _search(
    own: int, mask: int, depth: int, alpha: int, beta: int, seen: dict[tuple[int, int, int], tuple[int, int]]
) -> int:
    """Return the value for the side whose turn it is, exact between alpha and beta, else a bound of it."""
    other = own ^ mask
    if _has_four(other):
        return -_WON - depth
    free = (mask + _BOTTOM) & _BOARD
    if not free:
        return 0
    if depth == 0:
        return _estimate(own, mask)
    if _completing_places(own, mask) & free:
        return _WON + depth - 1
    forced = _completing_places(other, mask) & free
    if forced:
        free = forced if forced & (forced - 1) == 0 else forced & -forced  # two cannot both be met: it is lost anyway
    key = (own, mask, depth)
    low, high = seen.get(key, (-_WON * 2, _WON * 2))
    if low >= beta or low == high:
        return low
    if high <= alpha:
        return high
    alpha_before, best = alpha, -_WON * 2
    for column in _ORDER:
        disc = free & (_COLUMN << column * _HEIGHT)
        if disc:
            value = -_search(other, mask | disc, depth - 1, -beta, -alpha, seen)
            best = max(best, value)
            alpha = max(alpha, value)
            if alpha >= beta:
                break
    seen[key] = (best if best > alpha_before else low, best if best < beta else high)
    return best


def _estimate(own: int, mask: int) -> int:
    other = own ^ mask
    threats = _completing_places(own, mask).bit_count() - _completing_places(other, mask).bit_count()
    return 8 * threats + 2 * ((own & _MIDDLE).bit_count() - (other & _MIDDLE).bit_count())


def _has_four(discs: int) -> bool:
    for step in (1, _HEIGHT - 1, _HEIGHT, _HEIGHT + 1):
        pairs = discs & discs >> step
        if pairs & pairs >> 2 * step:
            return True
    return False


def _completing_places(discs: int, mask: int) -> int:
    """Return the free places, reachable now or not, where one more disc makes four in a row."""
    places = discs << 1 & discs << 2 & discs << 3
    for step in (_HEIGHT - 1, _HEIGHT, _HEIGHT + 1):
        pairs = discs << step & discs << 2 * step
        places |= pairs & discs << 3 * step
        places |= pairs & discs >> step
        pairs = discs >> step & discs >> 2 * step
        places |= pairs & discs >> 3 * step
        places |= pairs & discs << step
    return places & _BOARD & ~mask

"""Solving zebra puzzles: which houses are still possible for each value, as a set of bits.

A value is a pair (attribute, number); a clue is (kind, value, value) or (kind, value, house). Houses count from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

__all__ = ["BETWEEN_VALUES", "OF_A_HOUSE", "Clue", "Possible", "Value", "narrow", "nothing_known", "solve", "tells"]

Value = tuple[int, int]
Clue = tuple[str, Value, Value] | tuple[str, Value, int]
Possible = list[list[int]]
"""Of each attribute and number, the houses that are possible: bit h for house h."""

BETWEEN_VALUES: Mapping[str, Callable[[int, int], bool]] = {
    "same": lambda house, other: house == other,
    "other": lambda house, other: house != other,
    "left": lambda house, other: house + 1 == other,
    "next": lambda house, other: abs(house - other) == 1,
    "before": lambda house, other: house < other,
}
"""For each kind of clue, its condition on the houses of its two values."""
OF_A_HOUSE: Mapping[str, Callable[[int, int], bool]] = {
    "at": lambda house, number: house == number,
    "not at": lambda house, number: house != number,
}


def nothing_known(n_houses: int, n_attributes: int) -> Possible:
    """Return what is possible without a clue: everything."""
    return [[(1 << n_houses) - 1] * n_houses for _ in range(n_attributes)]


def narrow(possible: Possible, clues: Sequence[Clue]) -> bool:
    """Remove houses that a clue, or another value of the same attribute, rules out, until nothing changes.

    Nothing that fits all clues is removed. So if one house is left for each value, there is no other solution; if none
    is left for some value, which is when False is returned, there is no solution.
    """
    changed = True
    while changed:
        changed = False
        for kind, (attribute, number), other in clues:
            mine = possible[attribute][number]
            if isinstance(other, int):
                left = mine & 1 << other if kind == "at" else mine & ~(1 << other)
            else:
                theirs = possible[other[0]][other[1]]
                left, left_too = _both(kind, mine, theirs)
                if left_too != theirs:
                    possible[other[0]][other[1]] = left_too
                    changed = True
                if not left_too:
                    return False
            if left != mine:
                possible[attribute][number] = left
                changed = True
            if not left:
                return False
        for values in possible:
            before = values.copy()
            if not _share_out(values):
                return False
            changed = changed or values != before
    return True


def tells(clue: Clue, possible: Possible) -> bool:
    """Return whether a clue rules anything out at once; that two values share a house may do so later, and counts."""
    kind, (attribute, number), other = clue
    mine = possible[attribute][number]
    if isinstance(other, int):
        return (mine & 1 << other if kind == "at" else mine & ~(1 << other)) != mine
    theirs = possible[other[0]][other[1]]
    if kind == "same":
        return bool(mine & (mine - 1)) or bool(theirs & (theirs - 1))
    return _both(kind, mine, theirs) != (mine, theirs)


def _both(kind: str, mine: int, theirs: int) -> tuple[int, int]:
    """Return which houses a clue leaves to its two values."""
    if kind == "same":
        return mine & theirs, mine & theirs
    if kind == "other":
        if not theirs & (theirs - 1):
            return mine & ~theirs, theirs
        return mine, theirs & ~mine if not mine & (mine - 1) else theirs
    if kind == "left":
        mine &= theirs >> 1
        return mine, theirs & mine << 1
    if kind == "next":
        mine &= theirs << 1 | theirs >> 1
        return mine, theirs & (mine << 1 | mine >> 1)
    mine &= (1 << theirs.bit_length() - 1) - 1  # before: below the last of theirs
    return mine, theirs & -((mine & -mine) << 1)


def _share_out(values: list[int]) -> bool:
    """Give a house that is possible for one value only to it, and take one that is a value's only one from the others.

    Return False if that cannot be done.
    """
    once = twice = taken = 0
    for houses in values:
        twice |= once & houses
        once |= houses
        if not houses & (houses - 1):
            if taken & houses or not houses:
                return False
            taken |= houses
    if once != (1 << len(values)) - 1:
        return False
    once &= ~twice
    for number, houses in enumerate(values):
        if houses & (houses - 1):
            houses = houses & once or houses & ~taken
            if not houses:
                return False
            values[number] = houses
    return True


def solve(n_houses: int, n_attributes: int, clues: Sequence[Clue], limit: int = 2) -> list[list[list[int]]]:
    """Return the assignments in which all clues are true, at most `limit`: the house of each attribute's values."""
    found: list[list[list[int]]] = []

    def search(possible: Possible) -> None:
        if not narrow(possible, clues):
            return
        open_values = [
            (houses.bit_count(), attribute, number)
            for attribute, values in enumerate(possible)
            for number, houses in enumerate(values)
            if houses & (houses - 1)
        ]
        if not open_values:
            found.append([[houses.bit_length() - 1 for houses in values] for values in possible])
            return
        _, attribute, number = min(open_values)
        houses = possible[attribute][number]
        while houses and len(found) < limit:
            lowest = houses & -houses
            houses ^= lowest
            tried = [values.copy() for values in possible]
            tried[attribute][number] = lowest
            search(tried)

    search(nothing_known(n_houses, n_attributes))
    return found

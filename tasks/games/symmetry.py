"""The symmetries of a board, for split keys: a board and its mirror image are one problem in substance."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["canonical_board", "views"]


def views(rows: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a board as seen from its four sides and in a mirror: eight boards, the given one first."""
    across = tuple(map("".join, zip(*rows, strict=True)))
    found = []
    for board in (tuple(rows), across):
        mirrored = tuple(row[::-1] for row in board)
        found += [board, mirrored, board[::-1], mirrored[::-1]]
    return found


def canonical_board(rows: Sequence[str]) -> tuple[str, ...]:
    """Return the first of a board's eight views in the order of texts, the same for each of them."""
    return min(views(rows))

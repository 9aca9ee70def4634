"""Cuts a micro-batch into parts of limited tokens, so that memory does not depend on how long or alike its rows are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from llm_envs.trainers.forward.prefix_tree import n_shared_tokens, tokens_of

__all__ = ["n_token_parts", "token_parts"]


def n_token_parts(ids_BL: torch.Tensor, mask_BL: torch.Tensor, max_tokens: int, *, is_tree: bool) -> int:
    """Return the fewest parts of at most so many tokens. A row that is longer makes one part.

    Args:
        ids_BL: Shape (B, L), int64.
        mask_BL: Shape (B, L): 1 at tokens.
        max_tokens: The tokens that one part computes at most.
        is_tree: Whether rows of a part share what they begin with; otherwise each counts as the longest of its part.
    """
    return len(_filled(_costs(ids_BL, mask_BL, is_tree=is_tree)[1], max_tokens, len(ids_BL)))


def token_parts(ids_BL: torch.Tensor, mask_BL: torch.Tensor, n_parts: int, *, is_tree: bool) -> list[torch.Tensor]:
    """Return the row numbers of so many parts, whose largest one computes as few tokens as possible.

    Rows stay in the order of their tokens, so those that begin alike are together.

    Args:
        ids_BL: Shape (B, L), int64.
        mask_BL: Shape (B, L): 1 at tokens.
        n_parts: At most B.
        is_tree: As in `n_token_parts`.
    """
    order, costs = _costs(ids_BL, mask_BL, is_tree=is_tree)
    n_rows, low, high = len(order), 0, int(costs[0, -1])
    while low < high:  # the least limit with which so many parts are enough
        middle = (low + high) // 2
        if max(costs[start, stop - 1] for start, stop in _filled(costs, middle, n_rows)) <= middle and (
            len(_filled(costs, middle, n_rows)) <= n_parts
        ):
            high = middle
        else:
            low = middle + 1
    parts = _filled(costs, low, n_rows)
    while len(parts) < n_parts:  # split the largest that has more than one row
        place = max(
            range(len(parts)), key=lambda p: (parts[p][1] - parts[p][0] > 1, costs[parts[p][0], parts[p][1] - 1])
        )
        start, stop = parts[place]
        parts[place : place + 1] = [(start, (start + stop) // 2), ((start + stop) // 2, stop)]
    return [torch.from_numpy(order[start:stop].copy()).to(ids_BL.device) for start, stop in parts]


def _costs(
    ids_BL: torch.Tensor, mask_BL: torch.Tensor, *, is_tree: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return an order of the rows, and the tokens that are computed for rows i to j of it, shape (B, B)."""
    rows = tokens_of(ids_BL, mask_BL)[1]
    sizes = np.array([len(row) for row in rows])
    n = len(rows)
    if not is_tree:
        order = np.argsort(sizes, kind="stable")
        span = np.arange(n)[None] - np.arange(n)[:, None] + 1
        return order, span * sizes[order][None]
    order = np.array(sorted(range(n), key=lambda row: rows[row].tolist()))
    new = np.array([0, *(len(rows[b]) - n_shared_tokens(rows[a], rows[b]) for a, b in pairwise(order))])
    total = new.cumsum()
    return order, sizes[order][:, None] + total[None] - total[:, None]


def _filled(costs: npt.NDArray[np.int64], most: int, n_rows: int) -> list[tuple[int, int]]:
    """Return consecutive parts, each as long as the limit allows, and of one row at least."""
    parts, start = [], 0
    while start < n_rows:
        stop = start + 1
        while stop < n_rows and costs[start, stop] <= most:
            stop += 1
        parts.append((start, stop))
        start = stop
    return parts

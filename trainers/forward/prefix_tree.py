"""Rows of tokens as a prefix tree: each distinct prefix is one node, so rows that begin alike share nodes.

Rows are visited in the order of their tokens, and each continues from the row before it. So a row's own nodes are one
run of consecutive numbers, parents come before children, and there are at most as many runs as rows. Rows that share
nothing are one run each, which is packing; a shared prompt is a trunk.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["PrefixTree", "Run", "build_tree", "n_shared_tokens", "tokens_of"]


@dataclass(frozen=True, slots=True)
class Run:
    """The nodes that a row adds to the tree: nodes `start` to `stop`, each the only one that follows the one before."""

    start: int
    stop: int
    path: torch.Tensor
    """Shape (D,), int64: all nodes from the first token of the row to the end of the run, in order."""
    parts: tuple[int, ...]
    """The path as numbers of the tree's parts."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """N nodes that stand for the tokens of B padded rows of length L."""

    ids_N: torch.Tensor
    """Int64: each node's token."""
    depth_N: torch.Tensor
    """Int64: tokens before the node, which is its position."""
    parent_N: torch.Tensor
    """Int64: the node before; -1 for a first token."""
    node_BL: torch.Tensor
    """Int64: each token's node; -1 at padding."""
    runs: tuple[Run, ...]
    """All nodes, in order."""
    part_sizes: tuple[int, ...]
    """The nodes in order, cut wherever a path leaves or enters consecutive numbers: how many are in each part."""

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.ids_N)

    @property
    def n_tokens(self) -> int:
        """Tokens of all rows without padding."""
        return int((self.node_BL >= 0).sum())

    def rows_of(self, values_N: torch.Tensor) -> torch.Tensor:
        """Return each token's value, shape (B, L, ...); 0 at padding.

        Args:
            values_N: Shape (N, ...): a value of each node. Gradients of tokens that share a node add up.
        """
        values = values_N[self.node_BL.clamp(min=0)]
        is_padding = (self.node_BL < 0).reshape(*self.node_BL.shape, *[1] * (values.ndim - 2))
        return values.masked_fill(is_padding, 0)

    def ancestors(self) -> torch.Tensor:
        """Return which nodes each node follows, itself included: shape (N, N), bool."""
        out = torch.zeros(len(self), len(self), dtype=torch.bool, device=self.ids_N.device)
        for run in self.runs:
            n_before = len(run.path) - (run.stop - run.start)
            places = torch.arange(n_before, len(run.path), device=out.device)
            out[run.start : run.stop, run.path] = places[:, None] >= torch.arange(len(run.path), device=out.device)
        return out


def build_tree(ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> PrefixTree:
    """Return the prefix tree of rows.

    Args:
        ids_BL: Shape (B, L), int64.
        mask_BL: Shape (B, L): 1 at tokens, 0 at padding, which may be on both sides. A row may have no token.
    """
    is_token, rows = tokens_of(ids_BL, mask_BL)
    node_BL = np.full(is_token.shape, -1, dtype=np.int64)
    runs: list[tuple[int, int, npt.NDArray[np.int64]]] = []
    ids, depth, parent = [], [], []
    before, path, n_nodes = np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    for row in sorted(range(len(rows)), key=lambda row: rows[row].tolist()):
        n_shared, n_own = n_shared_tokens(before, rows[row]), len(rows[row])
        stop = n_nodes + n_own - n_shared
        path = np.concatenate([path[:n_shared], np.arange(n_nodes, stop)])
        if stop > n_nodes:
            runs.append((n_nodes, stop, path))
            ids.append(rows[row][n_shared:])
            depth.append(np.arange(n_shared, n_own))
            parent.append(np.concatenate([path[n_shared - 1 : n_shared] if n_shared else [-1], path[n_shared:-1]]))
        node_BL[row, is_token[row]] = path
        before, n_nodes = rows[row], stop

    def tensor(parts: list[npt.NDArray[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)).to(ids_BL.device)

    # A path is consecutive numbers but for its jumps to where a row has forked.
    pieces = [np.split(path, np.flatnonzero(np.diff(path) != 1) + 1) for *_, path in runs]
    cuts = sorted({0, n_nodes, *(end for each in pieces for piece in each for end in (piece[0], piece[-1] + 1))})
    paths = tensor([path for *_, path in runs]).split([len(path) for *_, path in runs]) if runs else ()
    made = tuple(
        Run(start, stop, path, _parts(cuts, each))
        for (start, stop, _), path, each in zip(runs, paths, pieces, strict=True)
    )
    place_BL = tensor([node_BL.ravel()]).view(node_BL.shape)
    return PrefixTree(tensor(ids), tensor(depth), tensor(parent), place_BL, made, tuple(np.diff(cuts).tolist()))


def _parts(cuts: list[int], pieces: list[npt.NDArray[np.int64]]) -> tuple[int, ...]:
    """Return the numbers of the parts between cuts that a path's pieces consist of."""
    ends = [(bisect_left(cuts, piece[0]), bisect_left(cuts, piece[-1] + 1)) for piece in pieces]
    return tuple(number for first, end in ends for number in range(first, end))


def tokens_of(ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> tuple[npt.NDArray[np.bool_], list[npt.NDArray[np.int64]]]:
    """Return the mask on the host, and each row without its padding."""
    ids, mask = torch.stack([ids_BL, mask_BL.to(ids_BL)]).cpu().numpy()  # one copy from a card, not two
    is_token = mask.astype(bool)
    return is_token, [row[own] for row, own in zip(ids, is_token, strict=True)]


def n_shared_tokens(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> int:
    """Return how many tokens two rows share at their beginning."""
    n = min(len(one), len(other))
    differing = np.flatnonzero(one[:n] != other[:n])
    return int(differing[0]) if len(differing) else n

"""Groups that are trees: some members start fresh, the others continue from turns of these.

`add_branches` extends groups that are played; a function `(roots, n) -> n pairs (root, turn)` chooses where.
Methods differ in the turns, and in whether branches are trained: VinePPO (arXiv 2410.01679) branches at every turn, for
values only; ARPO (arXiv 2507.19849) and TreeRL (arXiv 2506.11902) branch at the least sure ones, and train all.
`Algorithm.branches` asks for such groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout.fork import branch_specs, state_keys
from llm_envs.sources.source import EpisodeSpec
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = ["BRANCH_AT", "TurnsFn", "add_branches", "disagreement", "every_turn", "is_root", "least_sure", "n_roots"]

TurnsFn = Callable[[Sequence[Trajectory], int], Sequence[tuple[int, int]]]
"""`(roots, n) -> n pairs (index of a root, index of its first new turn)`. Every root has at least one turn."""
Play = Callable[[Sequence[Sequence[EpisodeSpec]]], Sequence[TrajectoryGroup]]
"""Plays groups, such as `Collector.play`."""


def n_roots(share: float, group_size: int) -> int:
    """Return how many members of a group start fresh if this share of them are branches: at least two.

    With one root, its first turn would have no other episode to be compared with, and a filter of groups, which sees
    only roots, no spread.

    Raises:
        InvalidConfigError: If the share is above 0 and leaves no branch.
    """
    n = max(2, group_size - round(share * group_size)) if share else group_size
    if share and n >= group_size:
        raise InvalidConfigError(
            f"branches={share} of a group of {group_size} episodes gives no branch, because at least two start fresh: "
            "take larger groups or a greater share, or set branches=0."
        )
    return n


def add_branches(
    groups: Sequence[TrajectoryGroup], group_size: int, play: Play, turns_fn: TurnsFn | str = "every_turn"
) -> list[TrajectoryGroup]:
    """Add branches to groups, so that each has `group_size` members; all branches are played concurrently.

    The branches of a group get the member indices after its roots. A root that failed has no branches; in a group
    without any other, the missing members start fresh.

    Args:
        groups: The groups of roots.
        group_size: Members of a group, its roots included.
        play: Plays the branches.
        turns_fn: Chooses the turns: a function, or its name in `BRANCH_AT`.

    Raises:
        InvalidConfigError: If a group has more members already, or `turns_fn` gives other than so many existing turns.
    """
    choose = turns_fn if callable(turns_fn) else BRANCH_AT[turns_fn]
    specs = [_missing(group, group_size, choose) for group in groups]
    played = play([members for members in specs if members])
    branches = {group.group_id: group.trajectories for group in played}
    return [TrajectoryGroup.of([*group, *branches.get(group.group_id, ())]) for group in groups]


def _missing(group: TrajectoryGroup, group_size: int, turns_fn: TurnsFn) -> list[EpisodeSpec]:
    n = group_size - len(group)
    if n < 0:
        raise InvalidConfigError(f"group {group.group_id} has {len(group)} roots; a tree of {group_size} has fewer.")
    members = range(len(group), group_size)
    roots = [root for root in group if root.status == "ok" and root.turns]
    if not roots:
        root = group.trajectories[0]
        options = root.metadata.get("options")
        begin = (root.env_id, root.env_kwargs, root.seed, group.group_id)
        return [EpisodeSpec(*begin, member, options=options) for member in members]
    chosen = list(turns_fn(roots, n)) if n else []
    if len(chosen) != n or not all(0 <= i < len(roots) and 0 <= k < len(roots[i].turns) for i, k in chosen):
        raise InvalidConfigError(
            f"the function that chooses turns returned {chosen!r:.200}; it must be {n} pairs (root, turn), of "
            f"roots with {[len(root.turns) for root in roots]} turns."
        )
    pairs = zip(chosen, members, strict=True)
    return [spec for (i, k), m in pairs for spec in branch_specs(roots[i], k, [m], group.group_id)]


def is_root(trajectory: Trajectory) -> bool:
    """Return whether an episode started fresh. As a `trajectory_filter`, it leaves branches out of the loss."""
    return "fork" not in trajectory.metadata


def every_turn(roots: Sequence[Trajectory], n: int) -> list[tuple[int, int]]:
    """Branch at every turn after the first, evenly over all roots; with fewer branches, at turns evenly apart.

    The first turn has its values from the roots; only where no root has a second one do branches begin there.
    """
    turns = [(i, k) for i, root in enumerate(roots) for k in range(1, len(root.turns))] or [(0, 0)]
    return [turns[j % len(turns)] if n >= len(turns) else turns[j * len(turns) // n] for j in range(n)]


def least_sure(roots: Sequence[Trajectory], n: int) -> list[tuple[int, int]]:
    """Branch at the turns whose sampled tokens had the lowest mean log-probability, one branch each, then again.

    That is an estimate of the entropy of a token at that turn: the mean of -log pi is unbiased for it.

    Raises:
        InvalidConfigError: If a turn has no tokens with log-probabilities: a text-only policy played it.
    """
    return _highest(roots, n, [[-_mean_logp(root, k) for k in range(len(root.turns))] for root in roots])


def disagreement(roots: Sequence[Trajectory], n: int) -> list[tuple[int, int]]:
    """Branch at the turns in whose state the roots wrote the most different replies, one branch each, then again.

    States are compared by the environment's `state_key`, for which each root is played again. Of equal turns, the one
    nearest to an episode's middle comes first.

    Raises:
        InvalidConfigError: If the environment has no `state_key`.
    """
    keys = [state_keys(root) for root in roots]
    replies: dict[str, set[str]] = {}
    for root, states in zip(roots, keys, strict=True):
        for state, reply in zip(states, root.replies, strict=False):
            replies.setdefault(state, set()).add(reply.content)
    middle = [[abs(2 * k + 1 - len(states)) / (len(states) + 1) for k in range(len(states))] for states in keys]
    scores = [
        [len(replies.get(state, ())) - away for state, away in zip(*parts, strict=True)]
        for parts in zip(keys, middle, strict=True)
    ]
    return _highest(roots, n, scores)


BRANCH_AT: Mapping[str, TurnsFn] = MappingProxyType(
    {"every_turn": every_turn, "least_sure": least_sure, "disagreement": disagreement}
)
"""The functions that choose turns, by name."""


def _highest(roots: Sequence[Trajectory], n: int, scores: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Return the `n` turns with the highest scores, round after round, without the first turn, as in `every_turn`."""
    turns = [(i, k) for i, root in enumerate(roots) for k in range(1, len(root.turns))] or [(0, 0)]
    ordered = sorted(turns, key=lambda turn: -scores[turn[0]][turn[1]])
    return [ordered[j % len(ordered)] for j in range(n)]


def _mean_logp(trajectory: Trajectory, turn: int) -> float:
    played = trajectory.turns[turn]
    if played.row >= 0:
        row = trajectory.rows[played.row]
        start, stop = row.spans[played.span]
        mean = float(np.mean(row.logps[start:stop])) if stop > start else 0.0
        if not np.isnan(mean):
            return mean
    raise InvalidConfigError(
        f"turn {turn} of episode {trajectory.group_id}/{trajectory.member} has no log-probabilities, so its entropy is "
        "unknown: take a token policy, or branch at every turn."
    )

"""Which groups are worth training on: pure functions, from a group to whether it stays, or from several to the chosen.

A filter looks at finished groups alone and never at how long they took, so that what stays is no matter of luck with
the clock. What a filter drops is replaced (`Collector(group_filter=...)`), and accepted in the order of submission.
Rewards are the task's own (the sum of `Turn.reward`), not what shaping makes of them.

A selection (`Collector(select_fn=...)`) is something else: it keeps the best of more groups than are wanted, so that
what is trained on is no longer what was drawn. Selecting by reward prefers easy seeds and lucky members, and measured
success is too high by that; selecting by spread prefers seeds on the edge of what the model can do. No default selects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

from llm_envs.errors import InvalidConfigError
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = [
    "GroupFilter",
    "SelectFn",
    "all_of",
    "create_diversity_filter",
    "create_length_filter",
    "create_min_reward_filter",
    "create_min_scored_filter",
    "create_selection",
    "create_spread_filter",
    "diversity",
    "mean_reward",
    "reward_spread",
    "scored",
    "select",
]

GroupFilter = Callable[[TrajectoryGroup], bool]
"""Whether a group stays."""

SelectFn = Callable[[Sequence[TrajectoryGroup], int], Sequence[TrajectoryGroup]]
"""Candidates in the order of submission, and how many are wanted -> that many of them."""


def scored(group: TrajectoryGroup) -> list[Trajectory]:
    """Return the members that have a reward: an errored or unscored one is not one that scored 0."""
    return [trajectory for trajectory in group.trajectories if trajectory.status == "ok"]


def create_spread_filter(min_spread: float = 1e-6) -> GroupFilter:
    """Keep groups whose best and worst rewards differ: in the others every advantage is 0.

    The dynamic sampling of DAPO (Yu et al. 2025, arXiv 2503.14476).

    Args:
        min_spread: Least difference between the highest and the lowest reward of the scored members.

    Raises:
        InvalidConfigError: If it is not above 0.
    """
    if not min_spread > 0:
        raise InvalidConfigError(f"min_spread is {min_spread!r}; it must be above 0.")

    def has_spread(group: TrajectoryGroup) -> bool:
        rewards = [trajectory.reward for trajectory in scored(group)]
        return len(rewards) > 1 and max(rewards) - min(rewards) >= min_spread

    return has_spread


def create_min_reward_filter(min_reward: float, *, n_members: int = 1) -> GroupFilter:
    """Keep groups in which at least `n_members` have at least this reward."""

    def reaches(group: TrajectoryGroup) -> bool:
        return sum(trajectory.reward >= min_reward for trajectory in scored(group)) >= n_members

    return reaches


def create_min_scored_filter(n_members: int) -> GroupFilter:
    """Keep groups of which at least `n_members` could be scored: the minimum viable group.

    Raises:
        InvalidConfigError: If `n_members` is not at least 1.
    """
    if n_members < 1:
        raise InvalidConfigError(f"n_members is {n_members!r}; it must be at least 1.")
    return lambda group: len(scored(group)) >= n_members


def create_length_filter(
    *, min_tokens: int = 0, max_tokens: int | None = None, max_truncated: float = 1.0
) -> GroupFilter:
    """Keep groups of reasonable length.

    Args:
        min_tokens: Least mean number of sampled tokens of the scored members.
        max_tokens: Largest; None is no limit.
        max_truncated: Largest share of members that a limit cut.
    """

    def is_reasonable(group: TrajectoryGroup) -> bool:
        members = scored(group)
        if not members:
            return False
        mean = sum(trajectory.n_sampled_tokens for trajectory in members) / len(members)
        truncated = sum(trajectory.truncated for trajectory in members) / len(members)
        return mean >= min_tokens and (max_tokens is None or mean <= max_tokens) and truncated <= max_truncated

    return is_reasonable


def create_diversity_filter(min_diversity: float) -> GroupFilter:
    """Keep groups whose members differ in what they wrote, by `diversity`."""
    return lambda group: diversity(scored(group)) >= min_diversity


def diversity(trajectories: Sequence[Trajectory]) -> float:
    """Return how much what was written differs, from 0 (all the same) to 1 (no word in common).

    The mean, over pairs of trajectories, of 1 − |A ∩ B| / |A ∪ B| over the sets of words that each wrote (Jaccard's
    distance). 0 for fewer than two.
    """
    words = [
        {word for message in trajectory.messages if message.role == "assistant" for word in message.content.split()}
        for trajectory in trajectories
    ]
    distances = [1.0 - len(a & b) / len(a | b) if a | b else 0.0 for a, b in combinations(words, 2)]
    return sum(distances) / len(distances) if distances else 0.0


def all_of(*filters: GroupFilter) -> GroupFilter:
    """Keep what every filter keeps."""
    return lambda group: all(keeps(group) for keeps in filters)


def mean_reward(group: TrajectoryGroup) -> float:
    """Return the mean reward of the scored members; -inf without any."""
    rewards = [trajectory.reward for trajectory in scored(group)]
    return sum(rewards) / len(rewards) if rewards else -math.inf


def reward_spread(group: TrajectoryGroup) -> float:
    """Return the difference between the highest and the lowest reward of the scored members; -inf without any."""
    rewards = [trajectory.reward for trajectory in scored(group)]
    return max(rewards) - min(rewards) if rewards else -math.inf


def create_selection(score: Callable[[TrajectoryGroup], float]) -> SelectFn:
    """Keep the groups with the highest scores; of equal ones the first. See the module for what that does to the data.

    Args:
        score: `mean_reward`, `reward_spread`, or yours.
    """

    def best(groups: Sequence[TrajectoryGroup], n_wanted: int) -> list[TrajectoryGroup]:
        return sorted(groups, key=score, reverse=True)[:n_wanted]

    return best


def select(select_fn: SelectFn, groups: Sequence[TrajectoryGroup], n_wanted: int) -> list[TrajectoryGroup]:
    """Return what a selection keeps, in the order of submission.

    Args:
        select_fn: The selection.
        groups: The candidates, in that order, with ids of their own.
        n_wanted: How many to keep.

    Raises:
        InvalidConfigError: If it returns another number of groups, one twice, or one that is no candidate.
    """
    kept = [getattr(group, "group_id", repr(group)) for group in select_fn(groups, n_wanted) or ()]
    if len(kept) != n_wanted or len(set(kept)) < len(kept) or not set(kept) <= {group.group_id for group in groups}:
        raise InvalidConfigError(
            f"select_fn returned the groups {kept[:20]} for {n_wanted} of {len(groups)} candidates: it must return "
            "that many of them, none twice."
        )
    return [group for group in groups if group.group_id in kept]

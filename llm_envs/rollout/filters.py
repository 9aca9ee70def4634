"""Which groups are worth training on: pure functions from a group to whether it stays.

A filter looks at finished groups alone and never at how long they took, so that what stays is no matter of luck with
the clock. What a filter drops is replaced (`Collector(group_filter=...)`), and accepted in the order of submission.
Rewards are the task's own (the sum of `Turn.reward`), not what shaping makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from llm_envs.errors import InvalidConfigError
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = [
    "GroupFilter",
    "all_of",
    "create_diversity_filter",
    "create_length_filter",
    "create_min_reward_filter",
    "create_min_scored_filter",
    "create_spread_filter",
    "diversity",
    "scored",
]

GroupFilter = Callable[[TrajectoryGroup], bool]
"""Whether a group stays."""


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

"""Which groups to train on: filters decide about one group, selections choose from several. All are pure functions.

A filter sees only finished groups and never how long they took, so its result does not depend on timing. The collector
replaces a dropped group (`Collector(group_filter=...)`). Filters see the task's own reward (the sum of `Turn.reward`),
before any shaping.

A trajectory filter (`EnvGRPOTrainer(trajectory_filter=...)`, `LoopSettings.trajectory_filter`) decides about one
episode. A dropped episode is left out of the loss; its reward stays in the group's baseline, and it is not replaced.

A selection (`Collector(select_fn=...)`) keeps the best of more groups than are wanted, so the training data no longer
has the distribution of the source. Selecting by reward prefers easy seeds and lucky members, and overstates measured
success; selecting by spread prefers seeds on the edge of what the model can do. By default nothing is selected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import Parser, parse_reply
from llm_envs.types import Message, Trajectory, TrajectoryGroup, Turn

__all__ = [
    "GroupFilter",
    "SelectFn",
    "TrajectoryFilter",
    "all_of",
    "create_diversity_filter",
    "create_length_filter",
    "create_min_reward_filter",
    "create_min_scored_filter",
    "create_selection",
    "create_spread_filter",
    "create_void_turn_filter",
    "diversity",
    "mean_reward",
    "reward_spread",
    "select",
]

GroupFilter = Callable[[TrajectoryGroup], bool]
"""Whether a group stays."""

SelectFn = Callable[[Sequence[TrajectoryGroup], int], Sequence[TrajectoryGroup]]
"""(candidates in the order of submission, number wanted) -> that many of them."""


TrajectoryFilter = Callable[[Trajectory], bool]
"""Whether to train on an episode."""


def create_spread_filter(min_spread: float = 1e-6) -> GroupFilter:
    """Keep groups whose best and worst rewards differ: in other groups every advantage is 0.

    The dynamic sampling of DAPO (Yu et al. 2025, arXiv 2503.14476).

    Args:
        min_spread: Least difference between the highest and the lowest reward of the scored members.

    Raises:
        InvalidConfigError: If it is not above 0.
    """
    if not min_spread > 0:
        raise InvalidConfigError(f"min_spread is {min_spread!r}; it must be above 0.")
    return lambda group: reward_spread(group) >= min_spread


def create_min_reward_filter(min_reward: float, *, n_members: int = 1) -> GroupFilter:
    """Keep groups in which at least `n_members` have at least this reward."""
    return lambda group: sum(trajectory.reward >= min_reward for trajectory in group.scored) >= n_members


def create_min_scored_filter(n_members: int) -> GroupFilter:
    """Keep groups with at least `n_members` scored members.

    Raises:
        InvalidConfigError: If `n_members` is not at least 1.
    """
    if n_members < 1:
        raise InvalidConfigError(f"n_members is {n_members!r}; it must be at least 1.")
    return lambda group: len(group.scored) >= n_members


def create_length_filter(
    *, min_tokens: int = 0, max_tokens: int | None = None, max_truncated: float = 1.0
) -> GroupFilter:
    """Keep groups of reasonable length.

    Args:
        min_tokens: Lower bound of the mean number of sampled tokens over the scored members.
        max_tokens: Upper bound; None means no limit.
        max_truncated: Largest allowed share of truncated members.
    """

    def is_reasonable(group: TrajectoryGroup) -> bool:
        members = group.scored
        if not members:
            return False
        mean = sum(trajectory.n_sampled_tokens for trajectory in members) / len(members)
        truncated = sum(trajectory.truncated for trajectory in members) / len(members)
        return mean >= min_tokens and (max_tokens is None or mean <= max_tokens) and truncated <= max_truncated

    return is_reasonable


def create_diversity_filter(min_diversity: float) -> GroupFilter:
    """Keep groups whose members differ in what they wrote, by `diversity`."""
    return lambda group: diversity(group.scored) >= min_diversity


def create_void_turn_filter(parser: Parser = parse_reply) -> TrajectoryFilter:
    """Drop episodes with a void turn: a turn with neither a tool call nor a final answer.

    Such turns come from sampling outside what the model knows, and their gradients explode ("SimpleTIR: End-to-End
    Reinforcement Learning for Multi-Turn Tool-Integrated Reasoning", arXiv 2509.02479). Use this for tasks whose
    replies are calls or answers. A turn with an unreadable call, or a call cut off by a limit, is void; a summary
    is not.

    Args:
        parser: Finds calls and answers in a reply (`llm_envs.parsers`).
    """

    def is_void(reply: Message, turn: Turn) -> bool:
        parsed = parser(reply.content)
        return not (turn.tool_results or reply.tool_calls or parsed.tool_calls or parsed.answer is not None)

    return lambda trajectory: (
        not any(
            is_void(reply, turn)
            for reply, turn in zip(trajectory.replies, trajectory.turns, strict=False)
            if not turn.is_summary
        )
    )


def diversity(trajectories: Sequence[Trajectory]) -> float:
    """Return how much the members' replies differ, from 0 (all the same) to 1 (no word in common).

    The mean, over pairs of trajectories, of 1 − |A ∩ B| / |A ∪ B| over the sets of words that each wrote (Jaccard's
    distance). 0 for fewer than two.
    """
    words = [{word for reply in trajectory.replies for word in reply.content.split()} for trajectory in trajectories]
    distances = [1.0 - len(a & b) / len(a | b) if a | b else 0.0 for a, b in combinations(words, 2)]
    return sum(distances) / len(distances) if distances else 0.0


def all_of(*filters: GroupFilter) -> GroupFilter:
    """Keep a group if every filter keeps it."""
    return lambda group: all(keeps(group) for keeps in filters)


def mean_reward(group: TrajectoryGroup) -> float:
    """Return the mean reward of the scored members; -inf without any."""
    rewards = [trajectory.reward for trajectory in group.scored]
    return sum(rewards) / len(rewards) if rewards else -math.inf


def reward_spread(group: TrajectoryGroup) -> float:
    """Return the difference between the highest and the lowest reward of the scored members; -inf without any."""
    rewards = [trajectory.reward for trajectory in group.scored]
    return max(rewards) - min(rewards) if rewards else -math.inf


def create_selection(score: Callable[[TrajectoryGroup], float]) -> SelectFn:
    """Keep the groups with the highest scores; among equal ones the first. The module docstring describes the bias.

    Args:
        score: `mean_reward`, `reward_spread`, or yours.
    """
    # `reverse` keeps the sort stable: among equal scores, the group submitted first wins.
    return lambda groups, n_wanted: sorted(groups, key=score, reverse=True)[:n_wanted]


def select(select_fn: SelectFn, groups: Sequence[TrajectoryGroup], n_wanted: int) -> list[TrajectoryGroup]:
    """Return what a selection keeps, in the order of submission.

    Args:
        select_fn: The selection.
        groups: The candidates, in that order, with unique ids.
        n_wanted: How many to keep.

    Raises:
        InvalidConfigError: If it returns the wrong number of groups, a group twice, or a group that is not a candidate.
    """
    # The repr of a wrong object then appears in the error below, instead of an AttributeError here.
    kept = [getattr(group, "group_id", repr(group)) for group in select_fn(groups, n_wanted) or ()]
    if len(kept) != n_wanted or len(set(kept)) < len(kept) or not set(kept) <= {group.group_id for group in groups}:
        raise InvalidConfigError(
            f"select_fn returned the groups {kept[:20]} for {n_wanted} of {len(groups)} candidates: it must return "
            "that many of them, none twice."
        )
    return [group for group in groups if group.group_id in kept]

"""Statistics of groups. A group is the rows with the same int id, in any order and number."""

from __future__ import annotations

import torch

from llm_envs.trainers.functional.masking import as_float

__all__ = [
    "check_rewards",
    "group_counts",
    "group_index",
    "group_maximum",
    "group_mean",
    "group_minimum",
    "group_sum",
    "regular_group_ids",
]


def regular_group_ids(n_groups: int, group_size: int, *, device: torch.device | str | None = None) -> torch.Tensor:
    """Return the ids of adjacent groups of equal size: `[0] * G + [1] * G + ...`, int64 of shape (n_groups * G,).

    They fit rewards of shape (n_groups, G) after `rewards_NG.flatten()`.
    """
    return torch.arange(n_groups, device=device).repeat_interleave(group_size)


def group_index(group_ids_B: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the place of each row's id among the sorted ids, int64 of shape (B,), and the number of groups."""
    ids, index_B = torch.unique(group_ids_B, return_inverse=True)
    return index_B, len(ids)


def check_rewards(rewards_B: torch.Tensor, group_ids_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Check rewards and ids; return the rewards as finite numbers, and a mask of the scored ones.

    Args:
        rewards_B: Shape (B,), any dtype; NaN where an episode has no score.
        group_ids_B: Shape (B,), ints.

    Returns:
        The rewards, detached, in float32 or float64, with 0 in place of NaN; and a mask, True where they were not NaN.

    Raises:
        ValueError: If shapes differ, the ids are not ints, or a reward is infinite.
    """
    if rewards_B.ndim != 1 or group_ids_B.shape != rewards_B.shape:
        raise ValueError(
            f"rewards {tuple(rewards_B.shape)} and group ids {tuple(group_ids_B.shape)}: both must be (B,)."
        )
    if group_ids_B.is_floating_point() or group_ids_B.dtype == torch.bool:
        raise ValueError(f"group ids have dtype {group_ids_B.dtype}; they must be ints.")
    rewards_B = as_float(rewards_B).detach()
    if torch.isinf(rewards_B).any():
        raise ValueError("a reward is infinite: give NaN for an episode that has no score.")
    scored_B = ~torch.isnan(rewards_B)
    return rewards_B.nan_to_num(nan=0.0), scored_B


def group_sum(values: torch.Tensor, scored: torch.Tensor, group_ids_B: torch.Tensor) -> torch.Tensor:
    """Return for each row the sum of its group's scored values.

    Args:
        values: Shape (B, ...), finite.
        scored: Same shape, bool: the values to sum.
        group_ids_B: Shape (B,), ints.
    """
    index_B, n_groups = group_index(group_ids_B)
    sums = values.new_zeros((n_groups, *values.shape[1:]))
    return sums.index_add(0, index_B, values * scored)[index_B]


def group_counts(scored: torch.Tensor, group_ids_B: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    """Return for each row the number of its group's scored values, in the given dtype; shapes as in `group_sum`."""
    return group_sum(scored.to(dtype), scored, group_ids_B)


def group_mean(values: torch.Tensor, scored: torch.Tensor, group_ids_B: torch.Tensor) -> torch.Tensor:
    """Return for each row the mean of its group's scored values; 0 without any. Shapes as in `group_sum`."""
    counts = group_counts(scored, group_ids_B, dtype=values.dtype)
    return group_sum(values, scored, group_ids_B) / counts.clamp(min=1)


def group_minimum(values_B: torch.Tensor, scored_B: torch.Tensor, group_ids_B: torch.Tensor) -> torch.Tensor:
    """Return for each row the least scored value of its group, shape (B,); 0 without any."""
    return -group_maximum(-values_B, scored_B, group_ids_B)


def group_maximum(values_B: torch.Tensor, scored_B: torch.Tensor, group_ids_B: torch.Tensor) -> torch.Tensor:
    """Return for each row the greatest scored value of its group, shape (B,); 0 without any."""
    index_B, n_groups = group_index(group_ids_B)
    lowest = values_B.new_full((n_groups,), -torch.inf)
    # -inf never is the maximum of a group with a score. A group without one stays at -inf, which becomes 0 below.
    most = lowest.scatter_reduce(0, index_B, values_B.masked_fill(~scored_B, -torch.inf), "amax")
    return most.masked_fill(torch.isinf(most), 0.0)[index_B]

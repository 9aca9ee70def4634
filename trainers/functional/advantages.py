"""Advantages of episodes from rewards and groups.

Every function here is an `AdvantageFn`; `functools.partial` binds its settings. An episode whose reward is
NaN (errored, unscored) does not enter any baseline, standard deviation or rank, and its advantage is 0. A group is the
rows with the same int id, in any order and number. If only one of its episodes has a score, the advantage is 0.

Arguments and results are as in `group_centred`, unless noted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from llm_envs.trainers.functional.groups import (
    check_rewards,
    group_counts,
    group_index,
    group_mean,
    group_minimum,
    group_sum,
)
from llm_envs.trainers.functional.masking import masked_moments, masked_whiten, zero_masked

__all__ = [
    "EPS",
    "AdvantageFn",
    "BaselineFn",
    "batch_leave_one_out_baseline",
    "batch_mean_baseline",
    "batch_whitened",
    "group_centred",
    "group_normalised",
    "group_ranked",
    "ignore_reward",
    "leave_one_out",
    "max_at_k",
    "reinforce",
]

AdvantageFn = Callable[..., torch.Tensor]
"""`(rewards_B, group_ids_B, turn_rewards_BK) -> advantages`, of shape (B,) for episodes or (B, K) for turns.

`rewards_B` is NaN for an episode without a score; `group_ids_B` are ints; `turn_rewards_BK` is NaN where an episode
has no such turn, and may be None if the function does not use turns. The result is detached, finite, in float32
(float64 for float64); 0 without a score or turn. `turns.spread_turns` turns (B, K) into (B, T).

With `Algorithm.by_state`, a fourth argument is `states_BK`, ints of shape (B, K): equal where turns of one group began
in one state.
"""

BaselineFn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""`(rewards_B, group_ids_B) -> baselines_B`; rewards may be NaN, and then the row's baseline may be NaN too."""

EPS = 1e-4
"""Added to a standard deviation before dividing by it: TRL's value."""


def group_centred(
    rewards_B: torch.Tensor, group_ids_B: torch.Tensor, turn_rewards_BK: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `r_i - mean(r_group)`: Dr. GRPO ("Understanding R1-Zero-Like Training", arXiv 2503.20783).

    It is `(n - 1) / n` times `leave_one_out` in a group of n.

    Args:
        rewards_B: Shape (B,), any dtype; NaN for a missing score.
        group_ids_B: Shape (B,), ints.
        turn_rewards_BK: Not read.

    Returns:
        Shape (B,). Exactly 0 in a group of equal rewards.
    """
    values_B, scored_B = _shifted(rewards_B, group_ids_B)
    return zero_masked(values_B - group_mean(values_B, scored_B, group_ids_B), scored_B)


def group_normalised(
    rewards_B: torch.Tensor,
    group_ids_B: torch.Tensor,
    turn_rewards_BK: torch.Tensor | None = None,
    *,
    scale: Literal["group", "batch"] = "group",
    eps: float = EPS,
) -> torch.Tensor:
    """Return `(r_i - mean(r_group)) / (std + eps)`: GRPO ("DeepSeekMath", arXiv 2402.03300).

    Args:
        rewards_B: Shape (B,), any dtype; NaN for a missing score.
        group_ids_B: Shape (B,), ints.
        turn_rewards_BK: Not read.
        scale: Divide by the standard deviation of the group, or of the batch, with n - 1 in the denominator. The
            batch's does not inflate groups with little spread ("Part I: Tricks or Traps?", arXiv 2508.08221).
        eps: Added to the standard deviation.

    Returns:
        Shape (B,).

    Raises:
        ValueError: If `scale` is another value.
    """
    centred_B = group_centred(rewards_B, group_ids_B)
    values_B, scored_B = _shifted(rewards_B, group_ids_B)
    if scale == "group":
        counts_B = group_counts(scored_B, group_ids_B, dtype=values_B.dtype)
        deviations_B = (group_sum(centred_B**2, scored_B, group_ids_B) / (counts_B - 1).clamp(min=1)).sqrt()
    elif scale == "batch":
        deviations_B = masked_moments(check_rewards(rewards_B, group_ids_B)[0], scored_B)[1].sqrt()
    else:
        raise ValueError(f"scale is {scale!r}; it must be 'group' or 'batch' (or use group_centred, for none).")
    return centred_B / (deviations_B + eps)


def ignore_reward(
    rewards_B: torch.Tensor, group_ids_B: torch.Tensor, turn_rewards_BK: torch.Tensor | None = None
) -> torch.Tensor:
    """Return 0 for every episode: the task's reward does not count, and a KL to a teacher is all that is learned from.

    Args:
        rewards_B: Shape (B,), any dtype; not read.
        group_ids_B: Shape (B,), ints; not read.
        turn_rewards_BK: Not read.

    Returns:
        Shape (B,).
    """
    return torch.zeros_like(check_rewards(rewards_B, group_ids_B)[0])


def leave_one_out(
    rewards_B: torch.Tensor, group_ids_B: torch.Tensor, turn_rewards_BK: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `r_i - mean(r_j, j != i in the group)`: RLOO ("Back to Basics", arXiv 2402.14740).

    The baseline does not depend on the episode's own actions, so the policy gradient is unbiased.

    Args:
        rewards_B: Shape (B,), any dtype; NaN for a missing score.
        group_ids_B: Shape (B,), ints.
        turn_rewards_BK: Not read.

    Returns:
        Shape (B,).
    """
    values_B, scored_B = _shifted(rewards_B, group_ids_B)
    n_others_B = group_counts(scored_B, group_ids_B, dtype=values_B.dtype) - 1
    others_B = (group_sum(values_B, scored_B, group_ids_B) - values_B) / n_others_B.clamp(min=1)
    return zero_masked(values_B - others_B, scored_B & (n_others_B > 0))


def batch_whitened(
    rewards_B: torch.Tensor, group_ids_B: torch.Tensor, turn_rewards_BK: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `(r_i - mean(r)) / sqrt(var(r) + 1e-8)` over the batch: REINFORCE++ (arXiv 2501.03262).

    Args:
        rewards_B: Shape (B,), any dtype; NaN for a missing score.
        group_ids_B: Shape (B,), ints; only the shape is used.
        turn_rewards_BK: Not read.

    Returns:
        Shape (B,).
    """
    values_B, scored_B = check_rewards(rewards_B, group_ids_B)
    one_group_B = torch.zeros_like(group_ids_B)
    lowest_B = group_minimum(values_B, scored_B, one_group_B)  # equal rewards become exact zeros
    return masked_whiten(values_B - lowest_B, scored_B)


def group_ranked(
    rewards_B: torch.Tensor, group_ids_B: torch.Tensor, turn_rewards_BK: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the centred rank in the group, `rank / (n - 1) - 1/2`, between -1/2 and 1/2; ties share their mean rank.

    Only the order of the rewards matters ("Evolution Strategies as a Scalable Alternative", arXiv 1703.03864, section
    2.1).

    Args:
        rewards_B: Shape (B,), any dtype; NaN for a missing score.
        group_ids_B: Shape (B,), ints.
        turn_rewards_BK: Not read.

    Returns:
        Shape (B,).
    """
    values_B, scored_B = check_rewards(rewards_B, group_ids_B)
    rivals_BB = (group_ids_B[:, None] == group_ids_B) & scored_B
    rivals_BB.fill_diagonal_(False)
    # A row's rank is the number of members that it beats, where a tie counts as half.
    beaten_BB = (values_B[:, None] > values_B).to(values_B.dtype) + 0.5 * (values_B[:, None] == values_B)
    n_rivals_B = rivals_BB.sum(1)
    shares_B = (beaten_BB * rivals_BB).sum(1) / n_rivals_B.clamp(min=1)
    return zero_masked(shares_B - 0.5, scored_B & (n_rivals_B > 0))


def max_at_k(
    rewards_B: torch.Tensor,
    group_ids_B: torch.Tensor,
    turn_rewards_BK: torch.Tensor | None = None,
    *,
    k: int = 4,
) -> torch.Tensor:
    """Return advantages whose policy gradient is the gradient of `E[max(r_1, ..., r_k)]`, without bias.

    `A_i = k / C(n-1, k-1) sum_J (max(r_i, max r_J) - max r_J)` over the sets J of k - 1 other members. A term is the
    increase of the maximum by the episode. For k = 1 this is `leave_one_out`. ("Pass@K Policy Optimization", arXiv
    2505.15201, the estimator with a leave-one-out baseline over sets of k - 1; times n, since losses average over
    rows.)

    Args:
        rewards_B: Shape (B,), any dtype; NaN for a missing score.
        group_ids_B: Shape (B,), ints.
        turn_rewards_BK: Not read.
        k: Number of attempts. A group with fewer scored members than k uses their number.

    Returns:
        Shape (B,), never negative for k > 1: above 0 only for episodes that beat others.

    Raises:
        ValueError: If k is below 1.
    """
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1.")
    values_B, scored_B = check_rewards(rewards_B, group_ids_B)
    singles_B = leave_one_out(rewards_B, group_ids_B)
    out_B = torch.zeros_like(values_B)
    index_B, n_groups = group_index(group_ids_B)
    for group in range(n_groups):
        rows = torch.nonzero((index_B == group) & scored_B).flatten()
        size = min(k, len(rows))
        out_B[rows] = singles_B[rows] if size <= 1 else _gains(values_B[rows], size)
    return out_B


def reinforce(
    rewards_B: torch.Tensor,
    group_ids_B: torch.Tensor,
    turn_rewards_BK: torch.Tensor | None = None,
    *,
    baseline_fn: BaselineFn | None = None,
) -> torch.Tensor:
    """Return `r_i - b_i`: REINFORCE with a baseline (R. Williams, 1992).

    Unbiased where b_i does not depend on the episode's own actions.

    Args:
        rewards_B: Shape (B,), any dtype; NaN for a missing score.
        group_ids_B: Shape (B,), ints.
        turn_rewards_BK: Not read.
        baseline_fn: `(rewards_B, group_ids_B) -> baselines_B`; None: no baseline.

    Returns:
        Shape (B,).

    Raises:
        ValueError: If the baseline of a scored row is not finite.
    """
    values_B, scored_B = check_rewards(rewards_B, group_ids_B)
    if baseline_fn is None:
        return values_B
    baselines_B = zero_masked(baseline_fn(rewards_B, group_ids_B).detach().expand_as(values_B), scored_B)
    if not torch.isfinite(baselines_B).all():
        raise ValueError("the baseline of a scored episode is not finite: baseline_fn must leave out NaN rewards.")
    return zero_masked(values_B - baselines_B, scored_B)


def batch_mean_baseline(rewards_B: torch.Tensor, group_ids_B: torch.Tensor) -> torch.Tensor:
    """Return the mean of all scored rewards, shape (B,). It includes each row's own: `(B - 1) / B` of the gradient."""
    values_B, scored_B = check_rewards(rewards_B, group_ids_B)
    return group_mean(values_B, scored_B, torch.zeros_like(group_ids_B))


def batch_leave_one_out_baseline(rewards_B: torch.Tensor, group_ids_B: torch.Tensor) -> torch.Tensor:
    """Return for each episode the mean of all other scored rewards, shape (B,); its own reward without others."""
    values_B, _ = check_rewards(rewards_B, group_ids_B)
    return values_B - leave_one_out(rewards_B, torch.zeros_like(group_ids_B))


def _shifted(rewards_B: torch.Tensor, group_ids_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rewards minus the least of their group, and which are scored."""
    # Baselines do not change by a shift. It makes equal rewards exactly 0, so rounding cannot give them an advantage.
    values_B, scored_B = check_rewards(rewards_B, group_ids_B)
    return zero_masked(values_B - group_minimum(values_B, scored_B, group_ids_B), scored_B), scored_B


def _gains(values_N: torch.Tensor, k: int) -> torch.Tensor:
    """Return `k / C(n-1, k-1) sum_(j below i) C(rank_j, k-2) (r_i - r_j)`: j is the best of the k - 1 others."""
    n = len(values_N)
    sorted_N, order_N = values_N.sort()
    # C(j, k-2) / C(n-1, k-1) for j = 0 ... n-1 as products of ratios below 1: no overflow for large groups.
    weights = [0.0] * n
    weights[n - 2] = (k - 1) / (n - 1)  # C(n-2, k-2) / C(n-1, k-1)
    for j in range(n - 2, 0, -1):  # C(j-1, k-2) = C(j, k-2) (j - k + 2) / j
        weights[j - 1] = weights[j] * max(j - k + 2, 0) / j
    weights_N = values_N.new_tensor(weights)
    gaps_NN = (sorted_N[:, None] - sorted_N).tril(-1)
    gains_N = torch.empty_like(values_N)
    gains_N[order_N] = k * (gaps_NN * weights_N).sum(1)
    return gains_N

"""Advantages of turns: the return-to-go of each turn, compared with the other members of the group."""

from __future__ import annotations

import torch

from llm_envs.trainers.functional.advantages import EPS
from llm_envs.trainers.functional.groups import check_rewards, group_counts, group_sum
from llm_envs.trainers.functional.masking import as_float, zero_masked

__all__ = ["per_turn", "turn_returns"]


def turn_returns(turn_rewards_BK: torch.Tensor, *, gamma: float = 1.0) -> torch.Tensor:
    """Return `R_k = r_k + gamma R_(k+1)`, the discounted sum of rewards from each turn on.

    Args:
        turn_rewards_BK: Shape (B, K); NaN where an episode has no such turn.
        gamma: Discount of one turn.

    Returns:
        Shape (B, K), float32 or float64; NaN for a missing turn.
    """
    rewards_BK = as_float(turn_rewards_BK).detach()
    exists_BK = ~torch.isnan(rewards_BK)
    returns_BK = torch.full_like(rewards_BK, torch.nan)
    carry_B = rewards_BK.new_zeros(len(rewards_BK))
    for k in reversed(range(rewards_BK.shape[1])):
        carry_B = torch.where(exists_BK[:, k], rewards_BK[:, k].nan_to_num() + gamma * carry_B, carry_B)
        returns_BK[:, k] = torch.where(exists_BK[:, k], carry_B, torch.nan)
    return returns_BK


def per_turn(
    rewards_B: torch.Tensor,
    group_ids_B: torch.Tensor,
    turn_rewards_BK: torch.Tensor | None = None,
    *,
    gamma: float = 1.0,
    scale: bool = False,
    eps: float = EPS,
) -> torch.Tensor:
    """Return each turn's return-to-go minus the mean of the group's other members at that turn.

    `A_ik = R_ik - mean(R_jk, j != i in the group, j has a turn k)`.

    If no other member has a turn k, the baseline is the one at the last turn that any of them has. It never depends on
    the member's own actions, so the policy gradient is unbiased. A mean that includes the member itself would shrink
    turn k by `(n_k - 1) / n_k`, where n_k differs from turn to turn, and a standard deviation per turn index would
    reweight the turns again. So this function uses neither. (Turn-level credit: "Reinforcing Multi-Turn Reasoning in
    LLM Agents via Turn-Level Credit Assignment", arXiv 2505.11821.)

    Args:
        rewards_B: Shape (B,); only read for NaN, which leaves an episode out everywhere.
        group_ids_B: Shape (B,), ints.
        turn_rewards_BK: Shape (B, K); NaN where an episode has no such turn.
        gamma: Discount of one turn.
        scale: Whether to divide a group's advantages by their root mean square plus `eps`, one number per group.
        eps: Added to the root mean square.

    Returns:
        Shape (B, K); 0 without a turn or score.

    Raises:
        ValueError: If turn rewards are missing or have another shape.
    """
    _, scored_B = check_rewards(rewards_B, group_ids_B)
    if turn_rewards_BK is None or turn_rewards_BK.ndim != 2 or len(turn_rewards_BK) != len(rewards_B):
        shape = None if turn_rewards_BK is None else tuple(turn_rewards_BK.shape)
        raise ValueError(f"turn rewards are {shape}; per-turn credit needs shape ({len(rewards_B)}, K).")
    returns_BK = turn_returns(turn_rewards_BK, gamma=gamma)
    exists_BK = ~torch.isnan(returns_BK) & scored_B[:, None]
    returns_BK = zero_masked(returns_BK, exists_BK)
    n_others_BK = group_counts(exists_BK, group_ids_B, dtype=returns_BK.dtype) - exists_BK.to(returns_BK.dtype)
    others_BK = (group_sum(returns_BK, exists_BK, group_ids_B) - returns_BK) / n_others_BK.clamp(min=1)
    has_others_BK = n_others_BK > 0
    # The last turn up to k that another member has; -1 if no other member has one.
    turns_K = torch.arange(returns_BK.shape[1], device=returns_BK.device)
    latest_BK = torch.where(has_others_BK, turns_K, -1)
    latest_BK = latest_BK.cummax(1).values if len(turns_K) else latest_BK
    baselines_BK = others_BK.gather(1, latest_BK.clamp(min=0)) if len(turns_K) else others_BK
    advantages_BK = zero_masked(returns_BK - baselines_BK, exists_BK & (latest_BK >= 0))
    if not scale:
        return advantages_BK
    squares_B = group_sum((advantages_BK**2).sum(1), scored_B, group_ids_B)
    counts_B = group_counts(exists_BK, group_ids_B, dtype=returns_BK.dtype).sum(1)
    return advantages_BK / ((squares_B / counts_B.clamp(min=1)).sqrt() + eps)[:, None]

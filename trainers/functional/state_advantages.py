"""Advantages of turns by the states they began in: turns of a group that began in one state are compared."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from llm_envs.trainers.functional.advantages import EPS, group_centred, group_normalised
from llm_envs.trainers.functional.groups import check_rewards
from llm_envs.trainers.functional.masking import zero_masked
from llm_envs.trainers.functional.turn_advantages import turn_returns

__all__ = ["state_graph", "state_groups", "tree_nodes"]


def state_groups(
    rewards_B: torch.Tensor,
    group_ids_B: torch.Tensor,
    turn_rewards_BK: torch.Tensor | None = None,
    states_BK: torch.Tensor | None = None,
    *,
    gamma: float = 0.95,
    weight: float = 1.0,
    depth: int = 1,
    alpha: float = 1.0,
    scale: bool = False,
    eps: float = EPS,
) -> torch.Tensor:
    """Return the episode's advantage plus `weight` times each turn's among the turns that began in the same state.

    With R_k the discounted return from turn k on, `A_k = A_episode + weight (R_k - mean R)`, where the mean is over all
    turns of the group in that state, this one included: GiGPO (arXiv 2505.10978). A state that was met once adds 0.

    With `depth` above 1, states count together with those before them: the last c states, c = 1 to `depth`, give one
    comparison each. Their average has the weights c^alpha, over the comparisons that have more than one turn: as in
    HGPO, whose groups are a hierarchy of histories.

    Args:
        rewards_B: Shape (B,); NaN leaves an episode out.
        group_ids_B: Shape (B,), ints.
        turn_rewards_BK: Shape (B, K); NaN for a missing turn.
        states_BK: Shape (B, K), ints: equal where turns of one group began in one state.
        gamma: Discount of one turn.
        weight: Of the comparison by state.
        depth: The most states of a history that are compared.
        alpha: Exponent of the weights of longer histories.
        scale: Whether to divide by standard deviations: of the group's rewards, and of the returns in a state.
        eps: Added to a standard deviation.

    Returns:
        Shape (B, K); 0 without a turn or score.

    Raises:
        ValueError: If turn rewards or states are missing or have another shape, or depth is below 1.
    """
    if depth < 1:
        raise ValueError(f"depth is {depth}; it must be at least 1.")
    returns_BK, exists_BK, states_BK = _checked(rewards_B, group_ids_B, turn_rewards_BK, states_BK, gamma)
    whole_B = group_normalised(rewards_B, group_ids_B, eps=eps) if scale else group_centred(rewards_B, group_ids_B)
    total_BK, weights_BK = torch.zeros_like(returns_BK), torch.zeros_like(returns_BK)
    histories_BK = states_BK
    for length in range(1, depth + 1):
        counts_N, places_BK = _cells(group_ids_B, histories_BK, exists_BK, returns_BK.dtype)
        values_M = returns_BK[exists_BK]
        means_N = torch.zeros_like(counts_N).index_add(0, places_BK[exists_BK], values_M) / counts_N.clamp(min=1)
        centred_M = values_M - means_N[places_BK[exists_BK]]
        if scale:
            squares_N = torch.zeros_like(counts_N).index_add(0, places_BK[exists_BK], centred_M**2)
            deviations_N = (squares_N / (counts_N - 1).clamp(min=1)).sqrt()
            centred_M = centred_M / (deviations_N[places_BK[exists_BK]] + eps)
        shared_M = (counts_N[places_BK[exists_BK]] > 1).to(returns_BK) * length**alpha
        total_BK[exists_BK] += shared_M * centred_M
        weights_BK[exists_BK] += shared_M
        # The history that is longer by one state: pairs of the state `length` turns before and the history until now.
        earlier_BK = torch.full_like(states_BK, -1)
        earlier_BK[:, length:] = states_BK[:, : max(states_BK.shape[1] - length, 0)]
        histories_BK = torch.unique(torch.stack([earlier_BK, places_BK]).flatten(1), dim=1, return_inverse=True)[1]
        histories_BK = histories_BK.reshape(states_BK.shape)
    turn_BK = total_BK / weights_BK.clamp(min=1)
    return zero_masked(whole_B.to(returns_BK)[:, None] + weight * turn_BK, exists_BK)


def state_graph(
    rewards_B: torch.Tensor,
    group_ids_B: torch.Tensor,
    turn_rewards_BK: torch.Tensor | None = None,
    states_BK: torch.Tensor | None = None,
    *,
    gamma: float = 1.0,
    min_visits: int = 1,
    scale: bool = False,
    eps: float = EPS,
) -> torch.Tensor:
    """Return each turn's temporal difference in the graph of the group's states, `r_k + gamma V(s_(k+1)) - V(s_k)`.

    V of a state is the mean of the discounted returns from it on, over all turns of the group that began there, and 0
    after the last turn. So a good step in a lost episode earns what the others made of the state that it reached.
    (G2PO, arXiv 2606.22995, standardises these differences; GraphGPO, arXiv 2605.26684, uses distances to the goal.)

    With `min_visits` above 1, only states that began so many turns have a value. The turns between two of them share
    one difference, from the first to the second: `r_a + ... + gamma^(b-a) V(s_b) - V(s_a)`. In a group whose episodes
    share only the first state, that is the episode's return minus the group's mean, as in GRPO. In a tree
    (`rollout.tree`), V is VinePPO's Monte Carlo value (arXiv 2410.01679), with the episode itself among the samples.

    Args:
        rewards_B: Shape (B,); NaN leaves an episode out.
        group_ids_B: Shape (B,), ints.
        turn_rewards_BK: Shape (B, K); NaN for a missing turn.
        states_BK: Shape (B, K), ints, as in `state_groups`.
        gamma: Discount of one turn.
        min_visits: Least turns that must have begun in a state that has a value.
        scale: Whether to divide a group's advantages by their root mean square plus `eps`.
        eps: Added to the root mean square.

    Returns:
        Shape (B, K); 0 without a turn or score, and before the first state with a value.

    Raises:
        ValueError: If turn rewards or states are missing or have another shape, or min_visits is below 1.
    """
    if min_visits < 1:
        raise ValueError(f"min_visits is {min_visits}; it must be at least 1.")
    returns_BK, exists_BK, states_BK = _checked(rewards_B, group_ids_B, turn_rewards_BK, states_BK, gamma)
    counts_N, places_BK = _cells(group_ids_B, states_BK, exists_BK, returns_BK.dtype)
    sums_N = torch.zeros_like(counts_N).index_add(0, places_BK[exists_BK], returns_BK[exists_BK])
    values_BK = zero_masked((sums_N / counts_N.clamp(min=1))[places_BK], exists_BK)
    has_value_BK = exists_BK & (counts_N[places_BK] >= min_visits)
    assert turn_rewards_BK is not None
    rewards_BK = zero_masked(turn_rewards_BK.to(returns_BK), exists_BK)
    advantages_BK = _differences(rewards_BK, values_BK, has_value_BK, gamma)
    advantages_BK = zero_masked(advantages_BK, exists_BK)
    if not scale:
        return advantages_BK
    groups_B = torch.unique(group_ids_B, return_inverse=True)[1]
    zeros_N = returns_BK.new_zeros(int(groups_B.max()) + 1 if len(groups_B) else 0)
    squares_N = zeros_N.index_add(0, groups_B, (advantages_BK**2).sum(1))
    turns_N = zeros_N.index_add(0, groups_B, exists_BK.sum(1).to(zeros_N)).clamp(min=1)
    return advantages_BK / ((squares_N / turns_N).sqrt() + eps)[groups_B][:, None]


def tree_nodes(trajectory: Any) -> list[Hashable]:
    """Return the node of a group's tree that each turn of an episode begins in, for `Algorithm.by_state`.

    A branch (`rollout.tree`) shares its root's nodes up to its first new turn. All members share the first one.
    """
    fork = trajectory.metadata.get("fork") or {"member": trajectory.member, "turn": 0}
    owners = [fork["member"] if k <= fork["turn"] else trajectory.member for k in range(len(trajectory.turns))]
    return [(trajectory.group_id, owner if k else None, k) for k, owner in enumerate(owners)]


def _differences(
    rewards_BK: torch.Tensor, values_BK: torch.Tensor, has_value_BK: torch.Tensor, gamma: float
) -> torch.Tensor:
    """Return for each turn the difference from the last state with a value to the next one; 0 before the first."""
    out_BK = torch.zeros_like(rewards_BK)
    from_here_B = rewards_BK.new_zeros(len(rewards_BK))  # rewards up to the next value, and that value
    for k in reversed(range(rewards_BK.shape[1])):
        from_here_B = rewards_BK[:, k] + gamma * from_here_B
        out_BK[:, k] = torch.where(has_value_BK[:, k], from_here_B - values_BK[:, k], 0)
        from_here_B = torch.where(has_value_BK[:, k], values_BK[:, k], from_here_B)
    turns_K = torch.arange(rewards_BK.shape[1], device=rewards_BK.device)
    latest_BK = torch.where(has_value_BK, turns_K, -1)
    latest_BK = latest_BK.cummax(1).values if len(turns_K) else latest_BK
    return zero_masked(out_BK.gather(1, latest_BK.clamp(min=0)), latest_BK >= 0)


def _checked(
    rewards_B: torch.Tensor,
    group_ids_B: torch.Tensor,
    turn_rewards_BK: torch.Tensor | None,
    states_BK: torch.Tensor | None,
    gamma: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the returns from each turn on (0 without a turn), which turns count, and the states."""
    _, scored_B = check_rewards(rewards_B, group_ids_B)
    for name, values_BK in (("turn rewards", turn_rewards_BK), ("states", states_BK)):
        if values_BK is None or values_BK.ndim != 2 or len(values_BK) != len(rewards_B):
            shape = None if values_BK is None else tuple(values_BK.shape)
            raise ValueError(f"{name} are {shape}; credit by state needs shape ({len(rewards_B)}, K).")
    assert turn_rewards_BK is not None and states_BK is not None
    if turn_rewards_BK.shape != states_BK.shape:
        raise ValueError(f"turn rewards are {tuple(turn_rewards_BK.shape)}, and states {tuple(states_BK.shape)}.")
    returns_BK = turn_returns(turn_rewards_BK, gamma=gamma)
    exists_BK = ~torch.isnan(returns_BK) & scored_B[:, None]
    return zero_masked(returns_BK, exists_BK), exists_BK, states_BK


def _cells(
    group_ids_B: torch.Tensor, states_BK: torch.Tensor, exists_BK: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of turns in each cell, which is a state of a group, and each turn's cell, shape (B, K)."""
    pairs = torch.stack([group_ids_B[:, None].expand_as(states_BK), states_BK]).flatten(1)
    cells, inverse = torch.unique(pairs, dim=1, return_inverse=True)
    places_BK = inverse.reshape(states_BK.shape)
    exists_M = exists_BK.flatten().to(dtype)
    return exists_M.new_zeros(cells.shape[1]).index_add(0, places_BK.flatten(), exists_M), places_BK

"""Returns and generalised advantage estimation over the policy's tokens.

A step is a token that the policy wrote. Masked tokens (the environment's, the template's, padding) are skipped: they
are neither time steps nor do they have rewards. A row with a reward of NaN (errored, unscored) has advantage 0.
"""

from __future__ import annotations

import torch

from llm_envs.trainers.functional.masking import as_float, zero_masked

__all__ = ["discounted_returns", "gae", "length_adaptive_lambda"]


def discounted_returns(
    rewards_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    gamma: float,
    bootstrap_B: torch.Tensor | None = None,
    turn_ids_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `R_t = r_t + gamma_t R_(t+1)` over the policy's tokens, where t + 1 is its next token.

    Args:
        rewards_BT: Shape (B, T), from `turns.place_turn_rewards`. Masked places are not read; NaN if an episode has no
            score.
        mask_BT: Shape (B, T), bool or 0/1.
        gamma: Discount per token, or per turn if `turn_ids_BT` is given (time then passes only between turns).
        bootstrap_B: Shape (B,): value of the state after the last token of a truncated episode; 0 for a terminated
            one. None: 0.
        turn_ids_BT: Shape (B, T), ints from `turns.turn_ids`.

    Returns:
        Shape (B, T), float32 or float64; 0 at masked places and in rows without a score.
    """
    # With values of 0 and lambda 1, an advantage is a return.
    return gae(
        torch.zeros_like(as_float(rewards_BT)),
        rewards_BT,
        mask_BT,
        gamma=gamma,
        lam=1.0,
        bootstrap_B=bootstrap_B,
        turn_ids_BT=turn_ids_BT,
    )[0]


def length_adaptive_lambda(lengths_B: torch.Tensor, *, alpha: float) -> torch.Tensor:
    """Return `lambda = 1 - 1 / (alpha l)`, at least 0: the longer an episode, the further a reward reaches back.

    With a constant lambda, the share of the last reward that reaches the first step is `lambda^l`. With this one it is
    about `exp(-1 / alpha)` at any length ("VAPO: Efficient and Reliable Reinforcement Learning for Advanced Reasoning
    Tasks", arXiv 2504.05118, with alpha 0.05 and lengths in tokens).

    Args:
        lengths_B: Shape (B,): steps of each episode, in tokens or turns, the unit of discount and lambda.
        alpha: Above 0.

    Returns:
        Shape (B,), float32 or float64, from 0 to 1: `lam` of `gae`.

    Raises:
        ValueError: If alpha is not above 0.
    """
    if not alpha > 0:
        raise ValueError(f"{alpha=}; it must be above 0.")
    return 1.0 - 1.0 / (alpha * as_float(lengths_B)).clamp(min=1.0)


def gae(
    values_BT: torch.Tensor,
    rewards_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    gamma: float = 1.0,
    lam: float | torch.Tensor = 0.95,
    bootstrap_B: torch.Tensor | None = None,
    turn_ids_BT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return generalised advantages, and the returns that a critic learns.

    `A_t = delta_t + gamma_t lambda_t A_(t+1)` with `delta_t = r_t + gamma_t V_(t+1) - V_t`, and `R_t = A_t + V_t`.
    Here t + 1 is the policy's next token, which may be in the next turn. After the last one, V is the bootstrap and A
    is 0. ("High-Dimensional Continuous Control Using Generalized Advantage Estimation", arXiv 1506.02438.)

    Args:
        values_BT: Shape (B, T): the critic's value of the state in which token t is chosen, as constants.
        rewards_BT: Shape (B, T), from `turns.place_turn_rewards`; NaN if an episode has no score.
        mask_BT: Shape (B, T), bool or 0/1; masked places of the other tensors are not read.
        gamma: Discount per token, or per turn if `turn_ids_BT` is given.
        lam: Weight of longer estimates, per token, or per turn if `turn_ids_BT` is given. One number, or one per row,
            shape (B,).
        bootstrap_B: Shape (B,): the critic's value of the final state of a truncated episode; 0 for a terminated one,
            because nothing follows a terminal state. None: 0.
        turn_ids_BT: Shape (B, T), ints from `turns.turn_ids`: `gamma` and `lam` then apply only from the last
            token of a turn to the first of the next, and are 1 inside a turn.

    Returns:
        Advantages and returns (targets of the critic), both (B, T), detached, 0 at masked places. A row without a
        score has advantage 0 and its own values as returns.

    Raises:
        ValueError: If the shapes differ.
    """
    shapes = {tuple(x.shape) for x in (values_BT, rewards_BT, mask_BT, turn_ids_BT) if x is not None}
    if len(shapes) != 1 or values_BT.ndim != 2:
        raise ValueError(f"values, rewards, mask and turn ids must have one shape (B, T); got {sorted(shapes)}.")
    flags_BT = mask_BT.bool()
    scored_B = ~(torch.isnan(rewards_BT) & flags_BT).any(1)
    rewards_BT = zero_masked(rewards_BT.detach(), flags_BT & scored_B[:, None])
    values_BT = zero_masked(values_BT.detach(), flags_BT)
    n_rows, n_tokens = values_BT.shape
    next_values_B = values_BT.new_zeros(n_rows)
    if bootstrap_B is not None:
        next_values_B = zero_masked(bootstrap_B.detach(), scored_B).to(values_BT.dtype)
    next_advantages_B = values_BT.new_zeros(n_rows)
    next_turns_B: torch.Tensor | None = None
    advantages_BT = torch.zeros_like(values_BT)
    # The `next_...` values belong to the policy's next token. At a masked place they pass through unchanged.
    for t in reversed(range(n_tokens)):
        here_B = flags_BT[:, t]
        gammas_B = values_BT.new_full((n_rows,), gamma)
        lams_B = torch.as_tensor(lam, dtype=values_BT.dtype, device=values_BT.device).expand(n_rows)
        if turn_ids_BT is not None:
            turns_B = turn_ids_BT[:, t]
            # No turn has the id -1, so the discount always applies between an episode's last token and the bootstrap.
            within_B = turns_B == (turns_B.new_full((n_rows,), -1) if next_turns_B is None else next_turns_B)
            gammas_B, lams_B = gammas_B.masked_fill(within_B, 1.0), lams_B.masked_fill(within_B, 1.0)
            previous_B = torch.full_like(turns_B, -1) if next_turns_B is None else next_turns_B
            next_turns_B = torch.where(here_B, turns_B, previous_B)
        deltas_B = rewards_BT[:, t] + gammas_B * next_values_B - values_BT[:, t]
        advantages_B = deltas_B + gammas_B * lams_B * next_advantages_B
        advantages_BT[:, t] = torch.where(here_B, advantages_B, 0.0)
        next_values_B = torch.where(here_B, values_BT[:, t], next_values_B)
        next_advantages_B = torch.where(here_B, advantages_B, next_advantages_B)
    advantages_BT = zero_masked(advantages_BT, flags_BT & scored_B[:, None])
    return advantages_BT, zero_masked(advantages_BT + values_BT, flags_BT)

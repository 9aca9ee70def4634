"""What PPO computes from a generation: advantages and returns of the policy's tokens along each episode.

An episode's tokens may lie in several rows (forks). Here they are laid end to end, in the order in which they were
written, so that "the next token" is the next one that the policy wrote, in whichever row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from llm_envs.trainers.credit import turn_matrix
from llm_envs.trainers.functional.kl import k3, mean_kl
from llm_envs.trainers.functional.losses import clip_fractions, value_loss
from llm_envs.trainers.functional.masking import aggregate_loss, masked_mean, masked_sum, zero_masked
from llm_envs.trainers.functional.returns import generalised_advantages
from llm_envs.trainers.functional.turns import place_turn_rewards, turn_ids
from llm_envs.types import Trajectory

__all__ = [
    "EpisodeTokens",
    "Estimates",
    "critic_loss",
    "episode_tokens",
    "estimate",
    "explained_variance",
    "global_moments",
    "policy_statistics",
    "token_count",
]

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Sums a tensor over all processes."""


@dataclass(frozen=True)
class EpisodeTokens:
    """Where the S tokens of each of E episodes lie in a batch of rows, in the order in which they were written."""

    rows_ES: torch.Tensor
    """Row of the batch, int64; 0 where the mask is False."""
    columns_ES: torch.Tensor
    """Column behind the prompt, int64; 0 where the mask is False."""
    mask_ES: torch.Tensor
    """Where there is a token, bool."""
    starts_EK: torch.Tensor
    """First token of each turn on the S axis, int64."""
    stops_EK: torch.Tensor
    """Token behind each turn's last."""
    last_rows_E: torch.Tensor
    """Row in which the episode's final state stands, int64."""
    bootstraps_E: torch.Tensor
    """Whether the episode was truncated and is trained on, bool."""

    def gather(self, values_BT: torch.Tensor) -> torch.Tensor:
        """Return the episodes' values, shape (E, S); 0 where there is no token."""
        return zero_masked(values_BT[self.rows_ES, self.columns_ES], self.mask_ES)

    def scatter(self, values_ES: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return values at the places of their tokens in a batch of this shape (B, T); 0 elsewhere."""
        out = values_ES.new_zeros(tuple(shape))
        out[self.rows_ES[self.mask_ES], self.columns_ES[self.mask_ES]] = values_ES[self.mask_ES]
        return out


def episode_tokens(trajectories: Sequence[Trajectory], mask_BT: torch.Tensor) -> EpisodeTokens:
    """Return where each episode's tokens lie.

    Args:
        trajectories: E episodes: first rows in their order, then the further rows of forks.
        mask_BT: Which tokens are trained, shape (B, T); those of a row are all or none.
    """
    trained_B = mask_BT.bool().any(1).tolist()
    n_columns = mask_BT.shape[1]
    n_turns = max((len(trajectory.turns) for trajectory in trajectories), default=0)
    starts, stops = np.zeros((2, len(trajectories), n_turns), dtype=np.int64)
    places: list[list[tuple[int, int]]] = []
    last_rows, bootstraps, next_fork = [], [], len(trajectories)
    for owner, trajectory in enumerate(trajectories):
        lines = [owner, *range(next_fork, next_fork + len(trajectory.rows[1:]))]
        next_fork += len(lines) - 1
        tokens: list[tuple[int, int]] = []
        for number, turn in enumerate(trajectory.turns):
            starts[owner, number] = len(tokens)
            if turn.row >= 0 and trained_B[lines[turn.row]]:
                row = trajectory.rows[turn.row]
                start, stop = (min(place - row.prompt_length, n_columns) for place in row.spans[turn.span])
                tokens += [(lines[turn.row], column) for column in range(start, stop)]
            stops[owner, number] = len(tokens)
        places.append(tokens)
        last_rows.append(lines[-1])
        bootstraps.append(bool(trajectory.truncated and tokens))
    n_tokens = max((len(tokens) for tokens in places), default=0)
    table = np.zeros((len(places), n_tokens, 2), dtype=np.int64)
    mask = np.zeros((len(places), n_tokens), dtype=bool)
    for owner, tokens in enumerate(places):
        if tokens:
            table[owner, : len(tokens)] = tokens
        mask[owner, : len(tokens)] = True
    device = mask_BT.device
    at, present = torch.from_numpy(table).to(device), torch.from_numpy(mask).to(device)
    return EpisodeTokens(
        rows_ES=at[..., 0],
        columns_ES=at[..., 1],
        mask_ES=present,
        starts_EK=torch.from_numpy(starts).to(device),
        stops_EK=torch.from_numpy(stops).to(device),
        last_rows_E=torch.tensor(last_rows, dtype=torch.long, device=device),
        bootstraps_E=torch.tensor(bootstraps, dtype=torch.bool, device=device),
    )


@dataclass(frozen=True)
class Estimates:
    """What the critic's values and an episode's rewards make of it."""

    advantages_BT: torch.Tensor
    """Not whitened; 0 at masked places."""
    returns_BT: torch.Tensor
    """Targets of the critic; 0 at masked places."""
    bootstrap_E: torch.Tensor
    """Value of what follows an episode's last token: 0 where it terminated."""


def estimate(
    trajectories: Sequence[Trajectory],
    turn_rewards: Sequence[Any],
    values_BT: torch.Tensor,
    final_values_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    gamma: float,
    lam: float,
    by_turn: bool = False,
    penalties_BT: torch.Tensor | None = None,
    bootstraps: bool = True,
) -> Estimates:
    """Return generalised advantages over the policy's tokens of whole episodes (see `generalised_advantages`).

    Args:
        trajectories: E episodes, in the order of their rows.
        turn_rewards: By episode, shape (n_turns,) each; a turn's reward falls on its last token.
        values_BT: The critic's value of the state in which each token was chosen.
        final_values_B: Its value of each row's final state; read where an episode was truncated.
        mask_BT: Which tokens are trained.
        gamma: Discount, of a token or a turn.
        lam: Lambda, of a token or a turn.
        by_turn: Whether both count turns.
        penalties_BT: Taken from each token's reward: beta times its KL, where that counts in the reward.
        bootstraps: Whether the value of the final state counts where an episode was truncated.
    """
    device, mask_BT = values_BT.device, mask_BT.cpu()  # a loop over tokens: an accelerator would only wait
    tokens = episode_tokens(trajectories, mask_BT)
    values_ES = tokens.gather(values_BT.cpu())
    n_tokens = values_ES.shape[1]
    rewards_EK = turn_matrix(turn_rewards).to(values_ES)
    n_missing = tokens.starts_EK.shape[1] - rewards_EK.shape[1]  # turns of episodes without a score
    rewards_EK = torch.nn.functional.pad(rewards_EK, (0, n_missing))
    rewards_ES = place_turn_rewards(rewards_EK, tokens.starts_EK, tokens.stops_EK, n_tokens)
    if penalties_BT is not None:
        rewards_ES = rewards_ES - tokens.gather(penalties_BT.cpu())
    counts_E = tokens.bootstraps_E if bootstraps else torch.zeros_like(tokens.bootstraps_E)
    bootstrap_E = zero_masked(final_values_B.cpu()[tokens.last_rows_E], counts_E)
    advantages_ES, returns_ES = generalised_advantages(
        values_ES,
        rewards_ES,
        tokens.mask_ES,
        gamma=gamma,
        lam=lam,
        bootstrap_B=bootstrap_E,
        turn_ids_BT=turn_ids(tokens.starts_EK, tokens.stops_EK, n_tokens) if by_turn else None,
    )
    shape = mask_BT.shape
    return Estimates(
        advantages_BT=tokens.scatter(advantages_ES, shape).to(device),
        returns_BT=tokens.scatter(returns_ES, shape).to(device),
        bootstrap_E=bootstrap_E.to(device),
    )


def global_moments(values: torch.Tensor, mask: torch.Tensor, total: Reduce) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and unbiased variance of what is not masked, on all processes together.

    Args:
        values: Any shape; masked places may hold anything.
        mask: Same shape, bool or 0/1.
        total: Sums over the processes; called the same number of times on each.
    """
    flags = mask.bool()
    n, first = total(torch.stack([flags.sum().to(values.dtype), masked_sum(values, flags)]))
    mean = first / n.clamp(min=1)
    squares = total(masked_sum((zero_masked(values, flags) - mean) ** 2, flags))
    return mean, squares / (n - 1).clamp(min=1)


def explained_variance(
    values_BT: torch.Tensor, returns_BT: torch.Tensor, mask_BT: torch.Tensor, total: Reduce
) -> tuple[float, float]:
    """Return `1 - Var(R - V) / Var(R)` over all processes, and the standard deviation of R.

    1: the critic foresees every return; 0: as good as a constant; below 0: worse. NaN where all returns are equal.
    """
    _, spread = global_moments(returns_BT, mask_BT, total)
    _, missed = global_moments(returns_BT - values_BT, mask_BT, total)
    share = (1.0 - missed / spread).item() if spread > 0 else float("nan")
    return share, spread.sqrt().item()


def token_count(inputs: dict[str, Any], *, n_processes: int, n_micro_batches: float) -> torch.Tensor:
    """Return what the sum over a micro-batch's tokens is divided by, for the mean over those of a whole step.

    Args:
        inputs: A micro-batch; `num_items_in_batch` counts the generation's tokens on all processes.
        n_processes: Gradients are averaged over them.
        n_micro_batches: The generation's, over those that one step accumulates.
    """
    n_tokens: torch.Tensor = inputs["num_items_in_batch"]
    return n_tokens.clamp(min=1.0) / n_processes / n_micro_batches


def critic_loss(
    values_BT: torch.Tensor,
    inputs: dict[str, Any],
    mask_BT: torch.Tensor,
    *,
    clip: float | None,
    denominator: float | torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the critic's loss on a micro-batch, its mean per token here, and the share of tokens that the clip stops.

    Args:
        values_BT: With gradient.
        inputs: Has `old_values` and `returns`, shape (B, T).
        mask_BT: Which tokens are trained.
        clip: How far a value may move; None: no clip.
        denominator: What the sum over tokens is divided by, see `token_count`.
    """
    old_BT, returns_BT = inputs["old_values"], inputs["returns"]
    loss_BT = value_loss(values_BT, old_BT, returns_BT, mask_BT, clip=clip)
    plain_BT = value_loss(values_BT, old_BT, returns_BT, mask_BT, clip=None)
    stopped = masked_mean((loss_BT > plain_BT).detach(), mask_BT)
    loss = aggregate_loss(loss_BT, mask_BT, "token", denominator=denominator)
    return loss, masked_mean(loss_BT.detach(), mask_BT), stopped


@torch.no_grad()
def policy_statistics(
    logps_BT: torch.Tensor, inputs: dict[str, Any], mask_BT: torch.Tensor, *, clip_low: float, clip_high: float
) -> dict[str, torch.Tensor]:
    """Return how far the policy has moved from the one that sampled, as scalars: `approx_kl`, `clip_fraction`."""
    old_BT = inputs.get("old_per_token_logps")
    old_BT = logps_BT if old_BT is None else old_BT
    below, above = clip_fractions(
        logps_BT, old_BT, inputs["advantages"], mask_BT, clip_low=clip_low, clip_high=clip_high
    )
    # Tokens are the old policy's: k3 with the arguments exchanged estimates KL(old‖new).
    return {"approx_kl": mean_kl(k3(old_BT, logps_BT, mask_BT), mask_BT), "clip_fraction": below + above}

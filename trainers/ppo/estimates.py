"""PPO's estimates from a generation: advantages and returns of the policy's tokens along each episode.

An episode's tokens may lie in several rows (forks). Here they are joined in the order in which they were written, so
"the next token" is the next one that the policy wrote, in whichever row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from llm_envs.trainers.episodes.advantages import own_turns, turn_matrix
from llm_envs.trainers.functional.losses import value_loss
from llm_envs.trainers.functional.masking import Reduce, aggregate_loss, masked_mean, masked_moments, zero_masked
from llm_envs.trainers.functional.returns import gae, length_adaptive_lambda
from llm_envs.trainers.functional.turns import place_turn_rewards, turn_ids
from llm_envs.types import Trajectory

__all__ = [
    "EpisodeTokens",
    "Estimates",
    "critic_loss",
    "episode_tokens",
    "estimate",
    "explained_variance",
]


@dataclass(frozen=True)
class EpisodeTokens:
    """The places of each episode's S tokens in a batch of rows, for E episodes, in the order of writing."""

    rows_ES: torch.Tensor
    """Row of the batch, int64; 0 where the mask is False."""
    columns_ES: torch.Tensor
    """Column, counted from the end of the prompt, int64; 0 where the mask is False."""
    mask_ES: torch.Tensor
    """True at tokens, bool."""
    starts_EK: torch.Tensor
    """First token of each turn on the S axis, int64."""
    stops_EK: torch.Tensor
    """End of each turn on the S axis: one past its last token, int64."""

    def gather(self, values_BT: torch.Tensor) -> torch.Tensor:
        """Return the episodes' values, shape (E, S); 0 in padding."""
        return zero_masked(values_BT[self.rows_ES, self.columns_ES], self.mask_ES)

    def scatter(self, values_ES: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return a batch of shape (B, T) with each value at the place of its token; 0 elsewhere."""
        out = values_ES.new_zeros(tuple(shape))
        out[self.rows_ES[self.mask_ES], self.columns_ES[self.mask_ES]] = values_ES[self.mask_ES]
        return out


def episode_tokens(trajectories: Sequence[Trajectory], mask_BT: torch.Tensor) -> EpisodeTokens:
    """Return the places of each episode's tokens.

    Args:
        trajectories: E episodes. The batch has their first rows in order, then the further rows of forks.
        mask_BT: Trained tokens, shape (B, T). A row has all of the policy's tokens in it, or none.
    """
    trained_B = mask_BT.bool().any(1).tolist()
    n_columns = mask_BT.shape[1]
    n_turns = max((len(trajectory.turns) for trajectory in trajectories), default=0)
    starts, stops = np.zeros((2, len(trajectories), n_turns), dtype=np.int64)
    places: list[list[tuple[int, int]]] = []
    next_fork = len(trajectories)
    for owner, trajectory in enumerate(trajectories):
        # The rows of this episode: its first row, then its forks, which the batch has after all first rows.
        lines = [owner, *range(next_fork, next_fork + len(trajectory.rows[1:]))]
        next_fork += len(lines) - 1
        tokens: list[tuple[int, int]] = []
        for number, turn in enumerate(trajectory.turns):
            starts[owner, number] = len(tokens)
            # A turn in a masked row keeps its place but gets no token, so turn numbers stay the episode's.
            if turn.row >= 0 and trained_B[lines[turn.row]]:
                row = trajectory.rows[turn.row]
                start, stop = (min(place - row.prompt_length, n_columns) for place in row.spans[turn.span])
                tokens += [(lines[turn.row], column) for column in range(start, stop)]
            stops[owner, number] = len(tokens)
        places.append(tokens)
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
    )


@dataclass(frozen=True)
class Estimates:
    """Advantages and returns of a generation."""

    advantages_BT: torch.Tensor
    """Not whitened; 0 at masked places."""
    returns_BT: torch.Tensor
    """Targets of the critic; 0 at masked places."""


def estimate(
    trajectories: Sequence[Trajectory],
    turn_rewards: Sequence[Any],
    values_BT: torch.Tensor,
    bootstrap_E: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    gamma: float,
    lam: float,
    value_lam: float,
    lam_alpha: float | None = None,
    by_turn: bool = False,
    penalties_BT: torch.Tensor | None = None,
) -> Estimates:
    """Return generalised advantages over the policy's tokens of episodes (see `gae`).

    Args:
        trajectories: E episodes, in the order of their rows.
        turn_rewards: By episode, shape (n_turns,) each; a turn's reward falls on its last token.
        values_BT: The critic's value of the state in which each token was chosen.
        bootstrap_E: The value of the state after each episode's last token; 0 if no turn could follow.
        mask_BT: Trained tokens.
        gamma: Discount, per token or per turn.
        lam: Lambda of the advantages, per token or per turn.
        value_lam: Lambda of the critic's targets, per token or per turn.
        lam_alpha: In place of `lam`, `length_adaptive_lambda` with this alpha; the length of an episode is its number
            of tokens or turns.
        by_turn: Whether discount and lambdas count turns.
        penalties_BT: Subtracted from each token's reward: beta times its KL, if the KL counts in the reward.
    """
    device, mask_BT = values_BT.device, mask_BT.cpu()  # GAE loops over tokens in small steps: use the CPU
    tokens = episode_tokens(trajectories, mask_BT)
    values_ES = tokens.gather(values_BT.cpu())
    n_tokens = values_ES.shape[1]
    # A branch repeats turns of another episode: their rewards came before its first token.
    own = [own_turns(rewards, trajectory) for rewards, trajectory in zip(turn_rewards, trajectories, strict=True)]
    rewards_EK = turn_matrix(own).to(values_ES)
    n_missing = tokens.starts_EK.shape[1] - rewards_EK.shape[1]  # turns of episodes without a score
    rewards_EK = torch.nn.functional.pad(rewards_EK, (0, n_missing))
    rewards_ES = place_turn_rewards(rewards_EK, tokens.starts_EK, tokens.stops_EK, n_tokens)
    if penalties_BT is not None:
        rewards_ES = rewards_ES - tokens.gather(penalties_BT.cpu())
    settings: dict[str, Any] = {
        "gamma": gamma,
        "bootstrap_B": bootstrap_E.cpu(),
        "turn_ids_BT": turn_ids(tokens.starts_EK, tokens.stops_EK, n_tokens) if by_turn else None,
    }
    lam_E: float | torch.Tensor = lam
    if lam_alpha is not None:
        lengths_E = (tokens.stops_EK > tokens.starts_EK).sum(1) if by_turn else tokens.mask_ES.sum(1)
        lam_E = length_adaptive_lambda(lengths_E, alpha=lam_alpha)
    advantages_ES, returns_ES = gae(values_ES, rewards_ES, tokens.mask_ES, lam=lam_E, **settings)
    if lam_alpha is not None or value_lam != lam:
        # The critic's targets have their own lambda, which needs a second pass.
        _, returns_ES = gae(values_ES, rewards_ES, tokens.mask_ES, lam=value_lam, **settings)
    shape = mask_BT.shape
    return Estimates(
        advantages_BT=tokens.scatter(advantages_ES, shape).to(device),
        returns_BT=tokens.scatter(returns_ES, shape).to(device),
    )


def explained_variance(
    values_BT: torch.Tensor, returns_BT: torch.Tensor, mask_BT: torch.Tensor, total: Reduce
) -> tuple[float, float]:
    """Return `1 - Var(R - V) / Var(R)` over all processes, and the standard deviation of R.

    1: the critic predicts every return; 0: as good as a constant; below 0: worse. NaN if all returns are equal.
    """
    _, spread = masked_moments(returns_BT, mask_BT, total=total)
    _, missed = masked_moments(returns_BT - values_BT, mask_BT, total=total)
    share = (1.0 - missed / spread).item() if spread > 0 else float("nan")
    return share, spread.sqrt().item()


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
        mask_BT: Trained tokens.
        clip: How far a value may move; None: no clip.
        denominator: Divisor of the sum over tokens (`StepShares.denominator`).
    """
    old_BT, returns_BT = inputs["old_values"], inputs["returns"]
    loss_BT = value_loss(values_BT, old_BT, returns_BT, mask_BT, clip=clip)
    plain_BT = value_loss(values_BT, old_BT, returns_BT, mask_BT, clip=None)
    stopped = masked_mean((loss_BT > plain_BT).detach(), mask_BT)
    loss = aggregate_loss(loss_BT, mask_BT, "token", denominator=denominator)
    return loss, masked_mean(loss_BT.detach(), mask_BT), stopped

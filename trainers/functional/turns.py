"""Converts between turns and tokens, with the spans `[start, stop)` of the policy's tokens in each turn of a row.

Shapes: `starts_BK` and `stops_BK` are ints of shape (B, K), columns of the (B, T) batch. `start == stop` means that the
row does not have the turn, or that nothing was sampled in it.
"""

from __future__ import annotations

import torch

from llm_envs.trainers.functional.masking import as_float, zero_masked

__all__ = ["place_turn_rewards", "spread_turns", "turn_ids", "turns_of_mask"]


def turn_ids(starts_BK: torch.Tensor, stops_BK: torch.Tensor, n_tokens: int) -> torch.Tensor:
    """Return the turn of each token, int64 of shape (B, T); -1 outside every span.

    Args:
        starts_BK: Shape (B, K), ints; spans of a row do not overlap.
        stops_BK: Shape (B, K), ints.
        n_tokens: T.

    Raises:
        ValueError: If the shapes differ or a span leaves the row.
    """
    _check_spans(starts_BK, stops_BK, n_tokens)
    columns_T = torch.arange(n_tokens, device=starts_BK.device)
    inside_BKT = (columns_T >= starts_BK[..., None]) & (columns_T < stops_BK[..., None])
    turns_K = torch.arange(starts_BK.shape[1], device=starts_BK.device)
    outside_BT = starts_BK.new_full((len(starts_BK), n_tokens), -1, dtype=torch.long)
    return torch.where(inside_BKT, turns_K[:, None], -1).amax(1) if len(turns_K) else outside_BT


def turns_of_mask(mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the turn of each token from the mask, int64 of shape (B, T); -1 at masked places.

    A turn is a run of unmasked tokens: two turns of a row are always separated by a token that the policy did not
    write, at least one of the template.

    Args:
        mask_BT: Shape (B, T), bool or 0/1.
    """
    flags_BT = mask_BT.bool()
    # A turn starts at an unmasked token after a masked one, or at the first column.
    before_BT = torch.nn.functional.pad(flags_BT[:, :-1], (1, 0))
    return torch.where(flags_BT, (flags_BT & ~before_BT).cumsum(1) - 1, -1)


def spread_turns(
    values_BK: torch.Tensor, starts_BK: torch.Tensor, stops_BK: torch.Tensor, n_tokens: int
) -> torch.Tensor:
    """Give each token the value of its turn, for example to turn (B, K) advantages into (B, T).

    Args:
        values_BK: Shape (B, K); the value of a turn without tokens is not read.
        starts_BK: Shape (B, K), ints.
        stops_BK: Shape (B, K), ints.
        n_tokens: T.

    Returns:
        Shape (B, T), float32 or float64; 0 outside every span.
    """
    ids_BT = turn_ids(starts_BK, stops_BK, n_tokens)
    if not values_BK.shape[1]:
        return as_float(values_BK).new_zeros(ids_BT.shape)
    return zero_masked(as_float(values_BK).gather(1, ids_BT.clamp(min=0)), ids_BT >= 0)


def place_turn_rewards(
    turn_rewards_BK: torch.Tensor, starts_BK: torch.Tensor, stops_BK: torch.Tensor, n_tokens: int
) -> torch.Tensor:
    """Put each turn's reward at its last token.

    The reward of a turn without tokens goes to the last token of the nearest earlier turn with tokens, or else of the
    first later one, so the row's total does not change. The rewards of a row without any token are dropped.

    Args:
        turn_rewards_BK: Shape (B, K); NaN for a missing turn.
        starts_BK: Shape (B, K), ints.
        stops_BK: Shape (B, K), ints.
        n_tokens: T.

    Returns:
        Shape (B, T), float32 or float64; 0 where no turn ends.
    """
    _check_spans(starts_BK, stops_BK, n_tokens)
    rewards_BK = as_float(turn_rewards_BK).nan_to_num(nan=0.0)
    rewards_BT = rewards_BK.new_zeros((len(rewards_BK), n_tokens))
    if not rewards_BK.numel() or not n_tokens:
        return rewards_BT
    has_tokens_BK = stops_BK > starts_BK
    last_BK = torch.where(has_tokens_BK, stops_BK - 1, -1).long()
    first_end_B1 = torch.where(has_tokens_BK, last_BK, n_tokens).amin(1, keepdim=True)
    # The running maximum gives a turn without tokens the last token of the nearest earlier turn.
    places_BK = torch.where(last_BK.cummax(1).values >= 0, last_BK.cummax(1).values, first_end_B1)
    exists_BK = has_tokens_BK.any(1, keepdim=True).expand_as(places_BK)
    return rewards_BT.scatter_add(1, places_BK.clamp(max=n_tokens - 1), rewards_BK * exists_BK)


def _check_spans(starts_BK: torch.Tensor, stops_BK: torch.Tensor, n_tokens: int) -> None:
    if starts_BK.ndim != 2 or starts_BK.shape != stops_BK.shape:
        raise ValueError(f"starts {tuple(starts_BK.shape)} and stops {tuple(stops_BK.shape)}: both must be (B, K).")
    if bool(((starts_BK < 0) | (stops_BK < starts_BK) | (stops_BK > n_tokens)).any()):
        raise ValueError(f"a span leaves the row of {n_tokens} tokens, or stops before it starts.")

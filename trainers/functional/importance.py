"""Weights for tokens that another policy sampled: an inference engine's arithmetic, or older weights."""

from __future__ import annotations

import math
from typing import Literal

import torch

from llm_envs.trainers.functional.kl import MAX_LOG_RATIO
from llm_envs.trainers.functional.masking import zero_masked

__all__ = ["ImportanceMode", "importance_weights"]

ImportanceMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
"""Whose ratio it is, and what becomes of one out of bounds: cut to the bound, or 0."""


def importance_weights(
    logps_BT: torch.Tensor,
    sampling_logps_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    mode: ImportanceMode = "token_truncate",
    maximum: float | None = 3.0,
    minimum: float | None = None,
) -> torch.Tensor:
    """Return `w = pi / mu`, bounded: what a token's loss is multiplied by where mu sampled it and pi is trained.

    "token_*": a ratio for each token; "sequence_*": the product over the row's tokens, whose logarithm grows with its
    length: long episodes soon leave the bounds, so prefer "token_truncate" for several turns. "*_truncate": a ratio
    out of bounds is cut to the bound ("Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", Yao
    et al. 2025); "*_mask": it becomes 0. As TRL's `vllm_importance_sampling_mode`.

    Args:
        logps_BT: Shape (B, T): the trained policy's; masked places may hold anything.
        sampling_logps_BT: Shape (B, T): those at sampling. NaN, where none is known, counts as no difference.
        mask_BT: Shape (B, T), bool or 0/1.
        mode: One of the four.
        maximum: Greatest ratio; None: no bound.
        minimum: Least ratio; None: no bound.

    Returns:
        Detached, shape (B, T) with 1 at masked places for "token_*", (B, 1) for "sequence_*".

    Raises:
        ValueError: If the mode is unknown or the bounds contradict each other.
    """
    if mode not in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        raise ValueError(
            f"mode is {mode!r}; it must be 'token_truncate', 'token_mask', 'sequence_truncate' or 'sequence_mask'."
        )
    low, high = 0.0 if minimum is None else minimum, math.inf if maximum is None else maximum
    if not 0.0 <= low < high:
        raise ValueError(f"{minimum=} and {maximum=}: they must satisfy 0 <= minimum < maximum.")
    known_BT = mask_BT.bool() & ~torch.isnan(sampling_logps_BT)
    differences = (zero_masked(logps_BT, known_BT) - zero_masked(sampling_logps_BT, known_BT)).detach()
    if mode.startswith("sequence"):
        differences = differences.sum(1, keepdim=True)
    weights = differences.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if mode.endswith("truncate"):
        return weights.clamp(low, high)
    return weights.masked_fill((weights < low) | (weights > high), 0.0)

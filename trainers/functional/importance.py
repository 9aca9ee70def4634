"""Weights for tokens that another policy sampled: an inference engine's arithmetic, or older weights."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch

from llm_envs.trainers.functional.kl import MAX_LOG_RATIO
from llm_envs.trainers.functional.losses import RatioLevel, log_ratios
from llm_envs.trainers.functional.masking import zero_masked

__all__ = ["ImportanceMode", "importance_weights"]

ImportanceMode = Literal[
    "token_truncate",
    "token_mask",
    "turn_truncate",
    "turn_mask",
    "geometric_truncate",
    "geometric_mask",
    "sequence_truncate",
    "sequence_mask",
]
"""The tokens that share a ratio, and the treatment of a ratio out of bounds: cut to the bound, or set to 0."""


def importance_weights(
    logps_BT: torch.Tensor,
    sampling_logps_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    mode: ImportanceMode = "token_truncate",
    maximum: float | None = 3.0,
    minimum: float | None = None,
) -> torch.Tensor:
    """Return bounded weights `w = pi / mu` for the loss of tokens that mu sampled, if pi is trained.

    "token_*": a ratio per token. "sequence_*": the product over the row's tokens. Its logarithm grows with the length,
    so long episodes soon leave the bounds: prefer "token_truncate" for several turns. "*_truncate": a ratio out of
    bounds is cut to the bound ("Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", Yao et al.
    2025). "*_mask": it becomes 0. These are TRL's values of `vllm_importance_sampling_mode`. We add "turn_*", the
    geometric mean of the ratios of a turn's tokens (arXiv 2511.20718), and "geometric_*", of a row's tokens
    (GSPO, arXiv 2507.18071). Their logarithm does not grow with the length.

    Args:
        logps_BT: Shape (B, T): the trained policy's; masked places may hold anything.
        sampling_logps_BT: Shape (B, T): those at sampling. NaN means unknown, and the ratio is then 1.
        mask_BT: Shape (B, T), bool or 0/1.
        mode: One of the above.
        maximum: Greatest ratio; None: no bound.
        minimum: Least ratio; None: no bound.

    Returns:
        Detached, shape (B, T) with 1 at masked places for "token_*" and "turn_*", (B, 1) for the others.

    Raises:
        ValueError: If the mode is unknown, the bounds contradict each other, or "*_truncate" has no bound.
    """
    if mode not in get_args(ImportanceMode):
        raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(get_args(ImportanceMode))}.")
    if mode.endswith("truncate") and minimum is None and maximum is None:
        raise ValueError(f"mode={mode!r} cuts ratios to a bound: give maximum or minimum.")
    low, high = 0.0 if minimum is None else minimum, math.inf if maximum is None else maximum
    if not 0.0 <= low < high:
        raise ValueError(f"{minimum=} and {maximum=}: they must satisfy 0 <= minimum < maximum.")
    known_BT = mask_BT.bool() & ~torch.isnan(sampling_logps_BT)
    if mode.startswith(("turn", "geometric")):
        level: RatioLevel = "turn" if mode.startswith("turn") else "geometric"
        differences = log_ratios(logps_BT.detach(), sampling_logps_BT, known_BT, level=level)
        differences = differences if level == "turn" else differences[:, :1]
    else:
        differences = (zero_masked(logps_BT, known_BT) - zero_masked(sampling_logps_BT, known_BT)).detach()
        if mode.startswith("sequence"):
            differences = differences.sum(1, keepdim=True)
    # A row's sum of differences can be large enough for `exp` to overflow.
    weights = differences.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if mode.endswith("truncate"):
        return weights.clamp(low, high)
    return weights.masked_fill((weights < low) | (weights > high), 0.0)

"""Losses per token, and the critic's loss.

Each loss is a number per token, (B, T); `masking.aggregate_loss` normalises it. Gradients flow only through the fresh
`logps_BT`. Stored log-probabilities, advantages, values and returns are treated as constants, even with a graph.
Arguments and results are as in `LossFn`, unless noted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch

from llm_envs.trainers.functional.kl import MAX_LOG_RATIO
from llm_envs.trainers.functional.masking import masked_mean, zero_masked
from llm_envs.trainers.functional.turns import turns_of_mask

__all__ = [
    "LossFn",
    "RatioLevel",
    "cispo",
    "clip_settings",
    "clipped_surrogate",
    "clipped_tokens",
    "entropy_bonus",
    "entropy_floor",
    "log_ratios",
    "negative_log_likelihood",
    "policy_gradient",
    "value_loss",
]

LossFn = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`(logps_BT, old_logps_BT, advantages, mask_BT) -> loss_BT`: the loss per token, to minimise.

`logps_BT` are fresh, with gradient; `old_logps_BT` those at sampling (or at the start of the epochs); `advantages`
have shape (B,), (B, 1) or (B, T); `mask_BT` is bool or 0/1. Masked places of the inputs may hold anything; in `loss_BT`
(float32 or float64) they hold 0.
"""

RatioLevel = Literal["token", "turn", "geometric", "geometric_token"]
"""The tokens that share one importance ratio; see `log_ratios`."""


def log_ratios(
    logps_BT: torch.Tensor, old_logps_BT: torch.Tensor, mask_BT: torch.Tensor, *, level: RatioLevel = "token"
) -> torch.Tensor:
    """Return the logarithm of `pi / pi_old` that a loss exponentiates, cut to at most `MAX_LOG_RATIO` either way.

    - "token": `l_t = log pi_t - log pi_old_t` (PPO, GRPO).
    - "turn": `s_k = sum_{t in k} l_t / n_k`, one for all tokens of a turn, the geometric mean of their ratios
      ("Stabilizing Off-Policy Training for Long-Horizon LLM Agent via Turn-Level Importance Sampling ...",
      arXiv 2511.20718). A turn is a run of unmasked tokens (`turns.turns_of_mask`).
    - "geometric": `s = sum_t m l_t / sum_t m`, one for all tokens of a row, the geometric mean of their ratios (GSPO,
      "Group Sequence Policy Optimization", arXiv 2507.18071, which calls it the ratio of the sequence, as TRL does).
    - "geometric_token": `stopgrad(s) + log pi_t - stopgrad(log pi_t)`: the value of "geometric" with each token's own
      gradient (GSPO-token in that paper). It equals "geometric" if a row has one advantage; use it for (B, T)
      advantages.

    Args:
        logps_BT: Shape (B, T), with gradient; masked places may hold anything.
        old_logps_BT: Shape (B, T), constants.
        mask_BT: Shape (B, T), bool or 0/1.
        level: One of the above.

    Returns:
        Shape (B, T), 0 at masked places ("geometric": the row's value there too).

    Raises:
        ValueError: If the level is unknown.
    """
    fresh_BT = zero_masked(logps_BT, mask_BT)
    differences_BT = fresh_BT - zero_masked(old_logps_BT, mask_BT).detach()
    if level == "token":
        # The clamp keeps `exp` finite. It cuts a gradient only at ratios beyond e^20.
        return differences_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if level == "turn":
        return _turn_means(differences_BT, mask_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if level not in ("geometric", "geometric_token"):
        raise ValueError(f"level is {level!r}; it must be 'token', 'turn', 'geometric' or 'geometric_token'.")
    means_BT = masked_mean(differences_BT, mask_BT, dim=1)[:, None].expand_as(differences_BT)
    means_BT = means_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if level == "geometric":
        return means_BT
    # The two last terms cancel in value and leave the token's own gradient.
    return zero_masked(means_BT.detach() + fresh_BT - fresh_BT.detach(), mask_BT)


def _turn_means(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Give each unmasked token the mean over its turn, 0 elsewhere."""
    ids_BT = turns_of_mask(mask_BT)
    places_BT, kept_BT = ids_BT.clamp(min=0), (ids_BT >= 0).to(values_BT.dtype)
    sums_BT = torch.zeros_like(values_BT).scatter_add(1, places_BT, values_BT * kept_BT)
    counts_BT = torch.zeros_like(values_BT).scatter_add(1, places_BT, kept_BT)
    return zero_masked((sums_BT / counts_BT.clamp(min=1)).gather(1, places_BT), mask_BT)


def policy_gradient(
    logps_BT: torch.Tensor, old_logps_BT: torch.Tensor, advantages: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """Return `-A log pi`: REINFORCE (R. Williams, 1992). On-policy, it has the gradient of minus the expected reward.

    Args:
        logps_BT: Shape (B, T), with gradient; masked places may hold anything.
        old_logps_BT: Not read, since no ratio is used.
        advantages: Shape (B,), (B, 1) or (B, T), constants.
        mask_BT: Shape (B, T), bool or 0/1.

    Returns:
        Shape (B, T); 0 at masked places.
    """
    return -_per_token(advantages, mask_BT) * zero_masked(logps_BT, mask_BT)


def clipped_surrogate(
    logps_BT: torch.Tensor,
    old_logps_BT: torch.Tensor,
    advantages: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    level: RatioLevel = "token",
) -> torch.Tensor:
    """Return `-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` with `r = pi / pi_old`.

    PPO ("Proximal Policy Optimization Algorithms", arXiv 1707.06347), GRPO (arXiv 2402.03300); with `clip_high >
    clip_low` the decoupled clip of DAPO (arXiv 2503.14476); with `level="geometric"` GSPO (arXiv 2507.18071);
    `dual_clip` c bounds the ratio of a bad action, `-max(..., c A)` where A < 0 ("Mastering Complex Control in MOBA
    Games", arXiv 1912.09729).

    Args:
        logps_BT: Shape (B, T), with gradient; masked places may hold anything.
        old_logps_BT: Shape (B, T), constants.
        advantages: Shape (B,), (B, 1) or (B, T), constants.
        mask_BT: Shape (B, T), bool or 0/1.
        clip_low: Width of the clip range below 1, from 0 to 1.
        clip_high: Width of the clip range above 1, at least 0.
        dual_clip: Greatest ratio for A < 0, above `1 + clip_high`; None: no bound.
        level: The tokens that share a ratio, see `log_ratios`.

    Returns:
        Shape (B, T); 0 at masked places.

    Raises:
        ValueError: If a bound is out of range.
    """
    if not (0.0 <= clip_low <= 1.0 and clip_high >= 0.0):
        raise ValueError(f"{clip_low=} must lie between 0 and 1, and {clip_high=} be at least 0.")
    if dual_clip is not None and dual_clip <= 1.0 + clip_high:
        raise ValueError(f"{dual_clip=} must be above 1 + clip_high = {1.0 + clip_high}.")
    ratios_BT = log_ratios(logps_BT, old_logps_BT, mask_BT, level=level).exp()
    advantages_BT = _per_token(advantages, mask_BT)
    clipped_BT = ratios_BT.clamp(1.0 - clip_low, 1.0 + clip_high)
    if dual_clip is not None:  # for A > 0, `1 + clip_high` is the lower bound, so this one changes nothing
        ratios_BT = ratios_BT.clamp(max=dual_clip)
    return zero_masked(-torch.min(ratios_BT * advantages_BT, clipped_BT * advantages_BT), mask_BT)


def cispo(
    logps_BT: torch.Tensor,
    old_logps_BT: torch.Tensor,
    advantages: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    max_ratio: float = 5.0,
    min_ratio: float = 0.0,
    level: RatioLevel = "token",
) -> torch.Tensor:
    """Return `-stopgrad(clip(r, min_ratio, max_ratio)) A log pi`: CISPO ("MiniMax-M1", arXiv 2506.13585).

    It clips the weight, not the update, so every token keeps a gradient. (TRL calls `max_ratio` `epsilon_high`.)

    Args:
        logps_BT: Shape (B, T), with gradient; masked places may hold anything.
        old_logps_BT: Shape (B, T), constants.
        advantages: Shape (B,), (B, 1) or (B, T), constants.
        mask_BT: Shape (B, T), bool or 0/1.
        max_ratio: Greatest weight.
        min_ratio: Least weight.
        level: The tokens that share a weight, see `log_ratios`.

    Returns:
        Shape (B, T); 0 at masked places.

    Raises:
        ValueError: If the bounds are not `0 <= min_ratio < max_ratio`.
    """
    if not 0.0 <= min_ratio < max_ratio:
        raise ValueError(f"{min_ratio=} and {max_ratio=}: they must satisfy 0 <= min_ratio < max_ratio.")
    ratios_BT = log_ratios(logps_BT.detach(), old_logps_BT, mask_BT, level=level).exp()
    weights_BT = ratios_BT.clamp(min_ratio, max_ratio)
    return weights_BT * policy_gradient(logps_BT, old_logps_BT, advantages, mask_BT)


def clipped_tokens(
    logps_BT: torch.Tensor,
    old_logps_BT: torch.Tensor,
    advantages: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    level: RatioLevel = "token",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens whose ratio a clip cuts off: below `1 - clip_low` (A < 0), and above `1 + clip_high` (A > 0).

    Args:
        logps_BT: Shape (B, T); masked places may hold anything.
        old_logps_BT: Shape (B, T).
        advantages: Shape (B,), (B, 1) or (B, T).
        mask_BT: Shape (B, T), bool or 0/1.
        clip_low: As in the loss (`clip_settings`).
        clip_high: As in the loss.
        level: As in the loss.

    Returns:
        Two bool tensors of shape (B, T), False at masked places.
    """
    ratios_BT = log_ratios(logps_BT.detach(), old_logps_BT, mask_BT, level=level).exp()
    advantages_BT = _per_token(advantages, mask_BT)
    # Only on these sides does the minimum take the clipped value. On the others the gradient is not cut.
    return (
        (ratios_BT < 1.0 - clip_low) & (advantages_BT < 0),
        (ratios_BT > 1.0 + clip_high) & (advantages_BT > 0),
    )


def clip_settings(loss_fn: LossFn) -> dict[str, Any] | None:
    """Return the arguments of `clipped_tokens` for a loss; None if it is neither `clipped_surrogate` nor `cispo`."""
    function, bound = (loss_fn.func, loss_fn.keywords) if isinstance(loss_fn, partial) else (loss_fn, {})
    level = {"level": bound.get("level", "token")}
    if function is cispo:
        return {"clip_low": 1.0 - bound.get("min_ratio", 0.0), "clip_high": bound.get("max_ratio", 5.0) - 1.0} | level
    if function is clipped_surrogate:
        return {name: bound.get(name, 0.2) for name in ("clip_low", "clip_high")} | level
    return None


def value_loss(
    values_BT: torch.Tensor,
    old_values_BT: torch.Tensor,
    returns_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip: float | None = 0.2,
) -> torch.Tensor:
    """Return `1/2 max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2)`, the critic's loss (PPO, arXiv 1707.06347).

    Args:
        values_BT: Shape (B, T), with gradient: the critic's present values.
        old_values_BT: Shape (B, T), constants: the critic's values before the first step on the batch.
        returns_BT: Shape (B, T), constants: from `returns.gae`.
        mask_BT: Shape (B, T), bool or 0/1; masked places of the others may hold anything.
        clip: The c; None: `1/2 (V - R)^2`.

    Returns:
        Shape (B, T); 0 at masked places.
    """
    new_BT, target_BT = zero_masked(values_BT, mask_BT), zero_masked(returns_BT, mask_BT).detach()
    plain_BT = (new_BT - target_BT) ** 2
    if clip is None:
        return 0.5 * plain_BT
    old_BT = zero_masked(old_values_BT, mask_BT).detach()
    clipped_BT = old_BT + (new_BT - old_BT).clamp(-clip, clip)
    # The maximum is pessimistic: a value that moved further than c towards its target gets no gradient.
    return 0.5 * torch.max(plain_BT, (clipped_BT - target_BT) ** 2)


def entropy_bonus(entropies_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean entropy per token, `sum m H / max(sum m, 1)`, a scalar; a loss subtracts a multiple of it.

    Args:
        entropies_BT: Shape (B, T), with gradient: `logits.entropies_from_logits`; masked places may hold anything.
        mask_BT: Shape (B, T), bool or 0/1.
    """
    return masked_mean(entropies_BT, mask_BT)


def entropy_floor(entropies_N: torch.Tensor, share: float) -> torch.Tensor:
    """Return the entropy that the given share of the tokens has or exceeds; infinite without a token.

    Args:
        entropies_N: Shape (N,), one for each trained token.
        share: From 0 to 1.
    """
    return torch.quantile(entropies_N.float(), 1.0 - share) if len(entropies_N) else torch.tensor(math.inf)


def negative_log_likelihood(logps_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return `-log pi` per token, shape (B, T), 0 at masked places: supervised fine-tuning.

    Args:
        logps_BT: Shape (B, T), with gradient; masked places may hold anything.
        mask_BT: Shape (B, T), bool or 0/1.
    """
    return -zero_masked(logps_BT, mask_BT)


def _per_token(advantages: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return advantages as constants of shape (B, T), 0 at masked places."""
    shaped = advantages[:, None] if advantages.ndim == 1 else advantages
    if shaped.ndim != 2 or len(shaped) != len(mask_BT) or shaped.shape[1] not in (1, mask_BT.shape[1]):
        raise ValueError(
            f"advantages {tuple(advantages.shape)} fit no mask {tuple(mask_BT.shape)}: give (B,), (B, 1) or (B, T)."
        )
    return zero_masked(shaped.expand(mask_BT.shape), mask_BT).detach()

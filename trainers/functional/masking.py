"""Masks and padding of (B, T) batches: sums, means and whitening over the unmasked places.

Arithmetic is in float32 (float64 stays float64) for any input dtype. A mask is bool or 0/1, in the values' shape or
broadcastable to it. Values at masked places are never read: NaN or infinity there affects neither a value nor a
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

__all__ = [
    "Normalisation",
    "aggregate_loss",
    "as_float",
    "group_token_counts",
    "masked_mean",
    "masked_moments",
    "masked_sum",
    "masked_whiten",
    "trim_padding",
    "zero_masked",
]

Normalisation = Literal["token", "prompt", "sequence", "constant"]
"""The divisor of a sum over tokens; see `aggregate_loss`."""

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Sums a tensor over all processes, which call it equally often."""


def as_float(values: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float32; a float64 tensor is unchanged."""
    return values if values.dtype == torch.float64 else values.float()


def zero_masked(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the values in float32 (or float64) with 0 at masked places, whose gradient is exactly 0.

    Args:
        values: Any shape and dtype; masked places may hold anything, NaN too.
        mask: Bool or number, broadcastable to `values`; 0 masks.
    """
    values = as_float(values)
    # Not `values * mask`: NaN times 0 is NaN, in the value and in the gradient.
    return torch.where(mask.bool(), values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Return `sum_t m_t x_t`, over everything or along one axis.

    Args:
        values: Shape (B, T) or any other; masked places may hold anything.
        mask: Same shape, bool or 0/1.
        dim: Axis to sum over; None: all.
    """
    kept = zero_masked(values, mask)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Return `sum_t m_t x_t / max(sum_t m_t, 1)`, over everything or along one axis; 0 if all places are masked.

    Args:
        values: Shape (B, T) or any other; masked places may hold anything.
        mask: Same shape, bool or 0/1.
        dim: Axis to average over; None: all.
    """
    total = masked_sum(values, mask, dim)
    flags = mask.bool()
    count = flags.sum() if dim is None else flags.sum(dim)
    return total / count.clamp(min=1).to(total.dtype)


def masked_moments(
    values: torch.Tensor, mask: torch.Tensor, *, total: Reduce | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and unbiased variance, `sum m (x - mean)^2 / (n - 1)`, of the unmasked values.

    Args:
        values: Any shape; masked places may hold anything.
        mask: Same shape, bool or 0/1.
        total: The sum over processes, for the moments of all of them together; None: of this one.

    Returns:
        Two scalars. The variance of fewer than two values is 0.
    """
    together = total or (lambda tensor: tensor)
    own = masked_sum(values, mask)
    first, n = together(torch.stack([own, mask.bool().sum().to(own)]))
    # Two passes: the difference of E[x^2] and E[x]^2 would lose digits if the mean is large.
    mean = first / n.clamp(min=1)
    squares = together(masked_sum((zero_masked(values, mask) - mean) ** 2, mask))
    return mean, squares / (n - 1).clamp(min=1)


def masked_whiten(
    values: torch.Tensor,
    mask: torch.Tensor,
    *,
    shift_mean: bool = True,
    eps: float = 1e-8,
    total: Reduce | None = None,
) -> torch.Tensor:
    """Return `(x - mean) / sqrt(var + eps)` of the unmasked values, 0 elsewhere; mean and variance by `masked_moments`.

    Args:
        values: Any shape; masked places may hold anything.
        mask: Same shape, bool or 0/1.
        shift_mean: Whether the mean becomes 0; otherwise it does not change.
        eps: Added to the variance.
        total: See `masked_moments`.
    """
    mean, variance = masked_moments(values, mask, total=total)
    whitened = (zero_masked(values, mask) - mean) * torch.rsqrt(variance + eps)
    return zero_masked(whitened if shift_mean else whitened + mean, mask)


def aggregate_loss(
    loss_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    normalisation: Normalisation,
    *,
    constant: float | None = None,
    denominator: float | torch.Tensor | None = None,
    group_ids_B: torch.Tensor | None = None,
    group_tokens_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Reduce a per-token loss to a scalar, with the named normalisation.

    - "token": `sum_bt m l / sum_bt m`. Every token has the same weight (DAPO, arXiv 2503.14476).
    - "prompt": `1/P sum_p (sum_{b in p, t} m l / sum_{b in p, t} m)`. Every prompt has the same weight, and so has
      every token of one prompt's group ("The Art of Scaling Reinforcement Learning Compute for LLMs", ScaleRL, arXiv
      2510.13786). A prompt whose rows are all masked counts in P and adds 0.
    - "sequence": `1/B sum_b (sum_t m l / sum_t m)`. Every row has the same weight (GRPO, arXiv 2402.03300). A fully
      masked row counts in B and adds 0.
    - "constant": `sum_bt m l / (B c)`. Weights do not depend on any length (Dr. GRPO, arXiv 2503.20783, with c the
      greatest completion length; with c = 1 it is the mean over rows of the sum over tokens).

    Args:
        loss_BT: Shape (B, T), or (B, 1) for a loss per row, which then applies to each of its tokens.
        mask_BT: Shape (B, T), bool or 0/1.
        normalisation: One of the four.
        constant: The c of "constant".
        denominator: Replaces the divisor (the number of tokens, of prompts, of rows, `B c`) if this batch is a part of
            a larger one that is normalised together, as in gradient accumulation.
        group_ids_B: Shape (B,), ints: the prompt of each row, for "prompt".
        group_tokens_B: Shape (B,): number of tokens of the row's group, from `group_token_counts` of the larger batch
            if this is a part of it. None: counted in this batch.

    Raises:
        ValueError: If the normalisation is unknown, "constant" has neither a constant nor a denominator, or "prompt"
            has neither group ids nor counts with a denominator.
    """
    flags = mask_BT.bool()
    kept_BT = zero_masked(loss_BT.expand(flags.shape), flags)
    n_rows = max(flags.shape[0], 1)
    own: float | torch.Tensor
    if normalisation == "token":
        total, own = kept_BT.sum(), flags.sum().clamp(min=1).to(kept_BT.dtype)
    elif normalisation == "prompt":
        if group_ids_B is None and (group_tokens_B is None or denominator is None):
            raise ValueError("normalisation='prompt' needs group_ids_B: which rows are of one prompt.")
        if group_tokens_B is None:
            assert group_ids_B is not None
            group_tokens_B = group_token_counts(flags, group_ids_B)
        # Without ids a denominator is given (checked above), so this value is not used.
        own = 1 if group_ids_B is None else max(len(group_ids_B.unique()), 1)
        # Each row is divided by its group's tokens, so the rows of a group add up to the group's mean over tokens.
        total = (kept_BT.sum(1) / group_tokens_B.clamp(min=1).to(kept_BT.dtype)).sum()
    elif normalisation == "sequence":
        total, own = (kept_BT.sum(1) / flags.sum(1).clamp(min=1).to(kept_BT.dtype)).sum(), n_rows
    elif normalisation == "constant":
        if denominator is None and not (constant is not None and constant > 0):
            raise ValueError(f"normalisation='constant' needs a constant above 0 or a denominator; got {constant=}.")
        total, own = kept_BT.sum(), n_rows * (constant or 1.0)
    else:
        raise ValueError(f"normalisation is {normalisation!r}; it must be 'token', 'prompt', 'sequence' or 'constant'.")
    return total / (own if denominator is None else denominator)


def group_token_counts(mask_BT: torch.Tensor, group_ids_B: torch.Tensor) -> torch.Tensor:
    """Return the number of unmasked tokens in each row's group, int64 of shape (B,).

    Args:
        mask_BT: Shape (B, T), bool or 0/1.
        group_ids_B: Shape (B,), ints.
    """
    _, index_B = torch.unique(group_ids_B, return_inverse=True)
    counts_B = mask_BT.bool().sum(1)
    return torch.zeros_like(counts_B).scatter_add(0, index_B, counts_B)[index_B]


def trim_padding(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the columns of a batch in which every row is padding.

    A generation is padded to its longest row, which most of its micro-batches do not have. Unmasked places are never
    removed, so losses do not change.

    Args:
        batch: `prompt_ids` and `prompt_mask`, shape (B, P), padded on the left; `completion_ids` and
            `completion_mask`, shape (B, T), padded on the right; and other values. Every other tensor of shape (B, T)
            is trimmed like the completions.

    Returns:
        A new mapping, with P and T as small as the masks allow and at least 1.
    """
    prompt_mask, completion_mask = batch["prompt_mask"], batch["completion_mask"]
    longest = torch.stack([mask.sum(dim=1).max() for mask in (prompt_mask, completion_mask)])
    n_prompt, n_completion = longest.clamp(min=1).tolist()  # one wait for a card
    out = dict(batch)
    for name, value in batch.items():
        if name in ("prompt_ids", "prompt_mask"):
            out[name] = value[:, value.shape[1] - n_prompt :]
        elif isinstance(value, torch.Tensor) and value.shape == completion_mask.shape:
            out[name] = value[:, :n_completion]
    return out

"""The guard of a run: do the log-probabilities from sampling match the trained model's?

On the first batch, every row is compared, in training's micro-batches and padding.

Two forward passes of the same weights differ by rounding, and by how much depends on the dtype, the kernels and the
model. Most tokens are right even if some are not, so the median difference tells how far rounding can move one token.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llm_envs.errors import ModelError
from llm_envs.trainers.forward.dropout import describe_dropout
from llm_envs.trainers.functional.batch import Batch

__all__ = [
    "Rounding",
    "check_gaps",
    "noise_limit",
    "rounding_of",
    "sampling_gaps",
]

_MEDIANS = 24.0
"""If differences are distributed exponentially, one in 2^24 (17 million) is above so many medians."""
_MIN_TOKENS = 16
"""From fewer differences no noise is estimated."""


@dataclass(frozen=True)
class Rounding:
    """Bounds for the noise that is estimated from log-probabilities of one precision, in nats."""

    floor: float
    """A difference that is always taken for rounding: one large logit's."""
    ceiling: float
    """A difference of a token that is never taken for rounding."""
    median: float
    """A median difference that is never taken for rounding."""


def rounding_of(dtype: str, *, is_separate_engine: bool = False) -> Rounding:
    """Return the bounds of a precision.

    Args:
        dtype: The dtype of the matrix products, such as float32.
        is_separate_engine: Whether another program with other kernels sampled, such as vLLM.
    """
    if dtype in ("bfloat16", "float16") or is_separate_engine:
        return Rounding(0.0625, 0.5, 0.05)  # 0.0625 is the spacing of bfloat16 between 8 and 16
    return Rounding(0.02, 0.02, 0.01)


def noise_limit(differences: npt.NDArray[np.floating[Any]], rounding: Rounding) -> float:
    """Return the greatest absolute difference that noise explains.

    Args:
        differences: Shape (N,). Up to half of them may be wrong.
        rounding: The bounds of the result. With too few differences to estimate noise, the result is the ceiling.
    """
    if len(differences) < _MIN_TOKENS:
        return rounding.ceiling
    return float(np.clip(_MEDIANS * np.median(np.abs(differences)), rounding.floor, rounding.ceiling))


def check_gaps(gaps: npt.NDArray[np.float32], tolerance: float, rounding: Rounding, model: torch.nn.Module) -> None:
    """Stop training if the sampling distribution differs from the trained one; warn if it differs at single tokens.

    Args:
        gaps: The absolute gap of each of N tokens, of all processes, in nats: (N,), N > 0.
        tolerance: Greatest allowed mean gap, in nats per token.
        rounding: The bounds of the gap that rounding explains.
        model: The trained model, for the error: dropout is a frequent cause.

    Raises:
        ModelError: If the mean gap is above the tolerance, or NaN.
    """
    if not (mean := float(gaps.mean(dtype=np.float64))) <= tolerance:
        dropout = describe_dropout(model)
        cause = (
            f"The trained model has dropout ({dropout}), which sampling has not: set disable_dropout=True."
            if dropout
            else "Check that policy and trainer have the same weights, dtype, temperature and chat template."
        )
        raise ModelError(
            f"the log-probabilities at sampling differ from the trainer's own by {mean:.3g} nats a token on the "
            f"first batch (allowed: logps_tolerance={tolerance}). {cause}"
        )
    if (n := int((gaps > (limit := noise_limit(gaps, rounding))).sum())) > 0:
        warnings.warn(
            f"on the first batch, the log-probabilities of {n} of {len(gaps)} sampled tokens differ from the "
            f"trainer's own by up to {gaps.max():.3g} nats. Rounding explains {limit:.3g}. Look for a fault that only "
            'some tokens meet, such as one of an attention kernel: compare with attn_implementation="eager".',
            stacklevel=2,
        )


def sampling_gaps(logps_BT: torch.Tensor, batch: Batch) -> npt.NDArray[np.float32]:
    """Return the absolute gaps between the trained model's log-probabilities and sampling's, in nats, shape (N,)."""
    sampled_BT = batch.need("sampled_logps_BT")
    # An oracle's tokens were not sampled, so there is nothing to compare.
    is_sampled_BT = batch.mask_BT & ~sampled_BT.isnan()
    return np.asarray((logps_BT - sampled_BT).abs()[is_sampled_BT].float().cpu())

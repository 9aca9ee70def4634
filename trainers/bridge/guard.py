"""The guards of a run: do the log-probabilities from sampling match the trained model's, and did all episodes fail?

On the first batch, every row is compared, in training's micro-batches and padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from llm_envs.errors import ModelError
from llm_envs.trainers.bridge.batches import batch_from_trl, slice_rows
from llm_envs.trainers.bridge.dropout import describe_dropout
from llm_envs.trainers.functional.masking import trim_padding

__all__ = ["MAX_FAILED_GENERATIONS", "check_gap", "sampling_gap"]

MAX_FAILED_GENERATIONS = 3
"""Tolerate a failed generation; stop after three in a row."""


def check_gap(mean_gap: float, tolerance: float | None, model: torch.nn.Module) -> None:
    """Stop training if the sampling distribution differs from the trained one.

    Args:
        mean_gap: Mean absolute difference of the log-probabilities, in nats per token.
        tolerance: Greatest allowed gap; None: no limit.
        model: The trained model, for the error: dropout is a frequent cause.

    Raises:
        ModelError: If the gap is above the tolerance, or NaN.
    """
    if tolerance is not None and not mean_gap <= tolerance:
        dropout = describe_dropout(model)
        cause = (
            f"The trained model has dropout ({dropout}), which sampling has not: set disable_dropout=True."
            if dropout
            else "Check that policy and trainer have the same weights, dtype, temperature and chat template."
        )
        raise ModelError(
            f"the log-probabilities at sampling differ from the trainer's own by {mean_gap:.3g} nats a token on the "
            f"first batch (allowed: logps_tolerance={tolerance}). {cause}"
        )


@torch.no_grad()
def sampling_gap(
    score: Callable[[Mapping[str, Any]], torch.Tensor], output: Mapping[str, Any], n_rows: int
) -> tuple[float, int]:
    """Compare the log-probabilities from sampling with the trained model's for the same tokens.

    All rows are scored, in micro-batches trimmed like those of the loss.

    Args:
        score: Returns the trained model's log-probabilities of a batch, shape (B, T).
        output: TRL's batch of a whole generation.
        n_rows: Rows of a micro-batch.

    Returns:
        The sum of the gaps in nats, and the number of tokens.
    """
    total, n_tokens = 0.0, 0
    for start in range(0, len(output["prompt_ids"]), n_rows):
        batch = trim_padding({name: slice_rows(value, start, start + n_rows) for name, value in output.items()})
        sampled_BT, mask_BT = batch["sampling_per_token_logps"], batch_from_trl(batch).mask_BT
        # An oracle's tokens were not sampled, so there is nothing to compare.
        mask_BT &= ~sampled_BT.isnan()
        gaps = (score(batch) - sampled_BT).abs()[mask_BT]
        total, n_tokens = total + gaps.sum().item(), n_tokens + gaps.numel()
    return total, n_tokens

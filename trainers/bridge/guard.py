"""The guard of a run's first batch: do the log-probabilities from sampling match those of the trained model?

Every row is compared, in training's micro-batches and padding.
"""

from __future__ import annotations

from llm_envs.errors import ModelError

__all__ = ["check_gap"]


def check_gap(mean_gap: float, tolerance: float | None) -> None:
    """Stop training if the sampling distribution differs from the trained one.

    Args:
        mean_gap: Mean absolute difference of the log-probabilities, in nats per token.
        tolerance: Greatest allowed gap; None: no limit.

    Raises:
        ModelError: If the gap is above the tolerance, or NaN.
    """
    if tolerance is not None and not mean_gap <= tolerance:
        raise ModelError(
            f"the log-probabilities at sampling differ from the trainer's own by {mean_gap:.3g} nats a token on the "
            f"first batch (allowed: logps_tolerance={tolerance}). Check that policy and trainer have the same weights, "
            "dtype, temperature and chat template, and that dropout is off."
        )

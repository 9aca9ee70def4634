"""Parts of a training step: shares of micro-batches in the loss, advantages over all processes, row helpers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.importance import ImportanceMode, importance_weights
from llm_envs.trainers.functional.masking import Normalisation, trim_padding

__all__ = [
    "OWN_IMPORTANCE_MODES",
    "StepShares",
    "reweighed",
    "sampling_gap",
    "silence_missing_reward_warning",
    "slice_rows",
]

OWN_IMPORTANCE_MODES = ("turn", "geometric")
"""Prefixes of the importance-sampling modes that we add to TRL's."""


@dataclass(frozen=True)
class StepShares:
    """How the micro-batches of all processes share the loss of an optimizer step. In an evaluation all counts are 1."""

    n_processes: int
    n_micro_batches: int
    """Micro-batches of a generation, on each process."""
    n_accumulated: int
    """Micro-batches of an optimizer step, on each process."""
    micro_batch_size: int | None
    """Rows of a micro-batch without forks; None: its actual number of rows (evaluation)."""
    group_size: int

    def denominator(
        self, normalisation: Normalisation, mask_BT: torch.Tensor, n_tokens: torch.Tensor, *, constant: float
    ) -> float | torch.Tensor:
        """Return the divisor that turns a micro-batch's sum into its share of the step's loss.

        Gradients are averaged over processes and summed over micro-batches.

        Args:
            normalisation: "token" divides by the tokens of the whole generation, on all processes.
            mask_BT: The micro-batch's.
            n_tokens: TRL's `num_items_in_batch`: trained tokens of the generation, on all processes.
            constant: The constant of "constant".
        """
        if normalisation == "token":
            return n_tokens.clamp(min=1.0) / self.n_processes * self.n_accumulated / self.n_micro_batches
        if normalisation == "prompt":  # a micro-batch may split a group, and forks add rows but no prompts
            n_rows = len(mask_BT) if self.micro_batch_size is None else self.micro_batch_size
            return n_rows * self.n_accumulated / self.group_size
        return len(mask_BT) * self.n_accumulated * (constant if normalisation == "constant" else 1.0)

    def pair_weight(self, n_pairs: int) -> float:
        """Return the weight of a micro-batch's pair sum in the generation's mean pair loss."""
        # The number of processes undoes DDP's average. A step has the share n_accumulated / n_micro_batches of a
        # generation, so the mean over the generation is scaled up to keep a step's size.
        return self.n_processes * self.n_micro_batches / self.n_accumulated / max(n_pairs, 1)


def reweighed(output: dict[str, Any], *, mode: str, maximum: float | None, minimum: float | None) -> dict[str, Any]:
    """Return TRL's batch with our importance weights, if `mode` is not one of TRL's (`functional.importance`)."""
    if "importance_sampling_ratio" not in output or not mode.startswith(OWN_IMPORTANCE_MODES):
        return output
    weights = importance_weights(
        output["old_per_token_logps"],
        output["sampling_per_token_logps"],
        Batch.from_trl(output).mask_BT,
        mode=cast("ImportanceMode", mode),
        maximum=maximum,
        minimum=minimum,
    )
    return output | {"importance_sampling_ratio": weights}


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
        sampled_BT, mask_BT = batch["sampling_per_token_logps"], Batch.from_trl(batch).mask_BT
        # An oracle's tokens were not sampled, so there is nothing to compare.
        mask_BT &= ~sampled_BT.isnan()
        gaps = (score(batch) - sampled_BT).abs()[mask_BT]
        total, n_tokens = total + gaps.sum().item(), n_tokens + gaps.numel()
    return total, n_tokens


def slice_rows(value: Any, start: int, stop: int) -> Any:
    """Return some rows of a tensor or list; a value of the whole batch (a scalar) is returned unchanged."""
    if value is None or (isinstance(value, torch.Tensor) and value.ndim == 0):
        return value
    return value[start:stop] if isinstance(value, torch.Tensor | list) else value


@contextmanager
def silence_missing_reward_warning(is_quiet: bool) -> Iterator[None]:
    """Silence TRL's missing-reward warning: the extra rows of a forked episode have no reward on purpose."""

    def keep(record: logging.LogRecord) -> bool:
        return not (is_quiet and "All reward functions returned None" in record.getMessage())

    trl_logger = logging.getLogger("trl.trainer.grpo_trainer")
    trl_logger.addFilter(keep)
    try:
        yield
    finally:
        trl_logger.removeFilter(keep)

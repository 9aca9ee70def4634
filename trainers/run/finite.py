"""Steps with a gradient that is not finite are skipped, and weights that are not finite are never saved.

Invariants:
1. A skipped step changes nothing: no weight (not by weight decay either), no moment of the optimizer, no critic, no
   reference, no KL coefficient.
2. All processes skip a step, or none: the norm belongs to the gradient that they have averaged.
3. In a trainer of TRL a skipped step counts in `global_step`, and the schedule of the learning rate moves on with it,
   so that a run ends where its settings say. In the plain loop it does not count.
4. After `MAX_SKIPPED_STEPS` skipped steps in a row, training ends with an error.

DeepSpeed's engine takes the step inside the backward pass. There, bad steps are only counted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from llm_envs.data.files import remove_links
from llm_envs.errors import ModelError
from llm_envs.trainers.run.ranks import raise_on_all_ranks

__all__ = ["MAX_SKIPPED_STEPS", "ChecksNumbers", "check_weights", "count_skipped"]

logger = logging.getLogger(__name__)

MAX_SKIPPED_STEPS = 5
"""One bad generation may spoil the several steps that learn from it; bad weights spoil every step."""


def count_skipped(n_skipped: int, step: int, norm: float) -> int:
    """Warn of a skipped step; return how many were skipped in a row.

    Args:
        n_skipped: The number before this step.
        step: The step's number, from 1.
        norm: Norm of its gradient.

    Raises:
        ModelError: If that are `MAX_SKIPPED_STEPS`.
    """
    n_skipped += 1
    message = f"step {step} was skipped, because the norm of its gradient is {norm:g} ({n_skipped} in a row)"
    if n_skipped >= MAX_SKIPPED_STEPS:
        raise ModelError(
            f"{message}: training ends. Look for a loss, reward or advantage that is not finite, lower learning_rate, "
            "and use bfloat16 or float32 in place of float16."
        )
    logger.warning(message)
    return n_skipped


def check_weights(modules: Mapping[str, torch.nn.Module], step: int) -> None:
    """Check the trained weights before they are saved.

    Args:
        modules: By a name for the error. Of weights that are split between processes, this process's part counts.
        step: Optimizer steps done, for the error.

    Raises:
        ModelError: If a weight is not finite.
    """
    for what, module in modules.items():
        trained = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        bad = [name for name, weight in trained.items() if not bool(_own(weight).isfinite().all())]
        if bad:
            raise ModelError(
                f"after step {step}, {len(bad)} of {len(trained)} trained tensors of {what} are not finite (the first: "
                f"{bad[0]}), so they are not saved. Resume from an earlier checkpoint with a lower learning_rate, or "
                "with bfloat16 or float32 in place of float16."
            )


def _own(weight: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a weight that FSDP may have split."""
    return cast("Any", weight).to_local() if hasattr(weight, "to_local") else weight.detach()


class ChecksNumbers:
    """Skips steps of a trainer whose gradient is not finite, and refuses to save such weights: a mixin before TRL's."""

    accelerator: Any
    args: Any
    model: Any
    state: Any
    _metrics: Any
    _is_skipped = False
    """Whether the present optimizer step is skipped."""
    _n_skipped = 0
    """Steps skipped in a row."""

    def _further_norms(self) -> list[float]:
        """Return the norms of gradients that transformers does not know: a critic's."""
        return []

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return the norm of the step's gradient; if it is not finite, drop the gradient."""
        # transformers calls this after the backward passes and before the optimizer, also with max_grad_norm=0.
        # Optimizers leave weights without a gradient as they are, and so their own state.
        norm = super()._get_grad_norm(model, grad_norm)  # type: ignore[misc]
        norms = [0.0 if norm is None else float(norm), *self._further_norms()]
        bad = [value for value in norms if not math.isfinite(value)]
        self._is_skipped = bool(bad)
        self._metrics["train"]["skipped"].append(float(self._is_skipped))
        if not bad:
            self._n_skipped = 0
        else:
            model.zero_grad(set_to_none=True)
            # In float16, the first steps overflow until a scale is found.
            scaler = self.accelerator.scaler
            if scaler is None or scaler.get_scale() <= 1.0:
                self._n_skipped = count_skipped(self._n_skipped, self.state.global_step + 1, bad[0])
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does. If all steps since the last entry were skipped, the loss is NaN; transformers has 0."""
        if "loss" in logs and all(self._metrics["train"].get("skipped", [0.0])):
            logs["loss"] = math.nan
        super().log(logs, start_time)  # type: ignore[misc]

    def _trained_modules(self) -> dict[str, torch.nn.Module]:
        """Return what is trained and saved, by a name for errors."""
        return {"the model": self.model}

    def _save_own(self, folder: Path) -> None:
        """Write our part of a checkpoint."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Check the weights, then save our part and TRL's."""
        with raise_on_all_ranks():
            check_weights(self._trained_modules(), self.state.global_step)
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"  # type: ignore[attr-defined]
            if self.args.should_save:
                remove_links(folder, deep=True)
        # Ours first: a checkpoint counts as complete once transformers has written its state, the last file of `super`.
        self._save_own(folder)
        super()._save_checkpoint(model, trial)  # type: ignore[misc]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as TRL does, if its weights are finite."""
        # `push_to_hub` calls this as internal too. No collective here: a script may call this on one process only.
        check_weights(self._trained_modules(), self.state.global_step)
        if not _internal_call and self.args.should_save:
            remove_links(Path(output_dir or self.args.output_dir))
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]

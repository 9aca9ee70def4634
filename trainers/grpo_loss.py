"""The parts of GRPO that a user may replace, as TRL's trainer computes them otherwise; and small pieces of its step."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llm_envs.errors import InvalidConfigError, MissingExtraError

try:
    import torch
    from accelerate.utils import gather_object
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

from llm_envs.trainers.credit import Credit, token_advantages, turn_matrix, turn_penalties
from llm_envs.trainers.functional.advantages import (
    AdvantageFn,
    create_group_normalised,
    group_centred,
    group_normalised,
)
from llm_envs.trainers.functional.kl import KLFn, k1, mean_kl
from llm_envs.trainers.functional.losses import LossFn, log_ratios
from llm_envs.trainers.functional.masking import Normalisation, aggregate_loss, masked_mean

__all__ = [
    "LossHooks",
    "default_advantages",
    "denominator",
    "hooked_advantages",
    "hooked_kl",
    "hooked_policy_loss",
    "quiet",
    "rows_of",
    "sampling_gap",
]

_NORMALISATIONS: dict[str, Normalisation] = {
    "grpo": "sequence",
    "sapo": "sequence",
    "bnpo": "token",
    "dapo": "token",
    "cispo": "token",
    "vespo": "token",
    "dr_grpo": "constant",
    "luspo": "constant",
}


@dataclass(frozen=True)
class LossHooks:
    """What replaces a part of TRL's; None leaves it TRL's."""

    advantage_fn: AdvantageFn | None = None
    kl_fn: KLFn | None = None
    loss_fn: LossFn | None = None
    kl_in: str = "loss"

    @property
    def make_advantages(self) -> bool:
        """Whether advantages are made by a hook."""
        return self.advantage_fn is not None or self.kl_in == "reward"

    @property
    def make_loss(self) -> bool:
        """Whether a part of the loss is made by a hook."""
        return self.kl_fn is not None or self.loss_fn is not None or self.kl_in == "reward"

    def check(self, args: Any, *, has_reference: bool) -> None:
        """Refuse hooks that would change nothing, or that another setting rules out.

        Args:
            args: The trainer's settings.
            has_reference: Whether a KL from a reference counts anywhere in the run.

        Raises:
            InvalidConfigError: If so.
        """
        if not has_reference and (self.kl_fn is not None or self.kl_in == "reward"):
            what = "kl_fn" if self.kl_fn is not None else "kl_in='reward'"
            raise InvalidConfigError(
                f"{what} is given, but beta=0: there is no reference model. Set beta, the KL's coefficient, above 0 "
                "(or give kl_schedule)."
            )
        if self.make_loss and args.use_liger_kernel:
            raise InvalidConfigError("kl_fn and loss_fn need log-probabilities: set use_liger_kernel=False.")
        if self.make_advantages and args.multi_objective_aggregation != "sum_then_normalize":
            raise InvalidConfigError(
                f"advantage_fn sees the sum of the columns: multi_objective_aggregation="
                f"{args.multi_objective_aggregation!r} is TRL's own. Leave one of them out."
            )
        if self.loss_fn is not None and args.top_entropy_quantile < 1.0:
            raise InvalidConfigError("top_entropy_quantile is a part of TRL's loss: with a loss_fn leave it at 1.")


def default_advantages(scale_rewards: str) -> AdvantageFn:
    """Return what TRL's `scale_rewards` ("group", "batch" or "none") means, as a function."""
    if scale_rewards == "batch":
        return create_group_normalised(scale="batch")
    return group_normalised if scale_rewards == "group" else group_centred


def hooked_advantages(
    hooks: LossHooks,
    credit: Credit,
    output: Mapping[str, Any],
    *,
    beta: float,
    scale_rewards: str,
    process_index: int,
) -> tuple[torch.Tensor, float | None]:
    """Return the advantages of all rows of this process by a hook, from the groups of all processes.

    Args:
        hooks: The advantage function, and whether the KL counts in the reward.
        credit: What this process's episodes are paid.
        output: TRL's batch.
        beta: The KL's coefficient.
        scale_rewards: TRL's, where there is no advantage function.
        process_index: Which process this is.

    Returns:
        Shape (rows,) or (rows, T); and the mean KL a token, where it counts in the reward.
    """
    rewards, turns, kl = credit.rewards.tolist(), [part.tolist() for part in credit.turn_rewards], None
    if hooks.kl_in == "reward":
        logps_BT = output.get("old_per_token_logps")
        logps_BT = output["sampling_per_token_logps"] if logps_BT is None else logps_BT
        mask_BT = _mask(output)
        kl_BT = (hooks.kl_fn or k1)(logps_BT, output["ref_per_token_logps"], mask_BT)
        penalties = turn_penalties(beta * kl_BT, mask_BT, credit.trajectories)
        rewards = [reward - sum(penalty) for reward, penalty in zip(rewards, penalties, strict=True)]
        turns = [[r - p for r, p in zip(*pair, strict=False)] for pair in zip(turns, penalties, strict=True)]
        kl = mean_kl(kl_BT, mask_BT).item()
    mine = [(process_index, trajectory.group_id) for trajectory in credit.trajectories]
    everything = gather_object(list(zip(mine, rewards, turns, strict=True)))
    numbers: dict[tuple[int, str], int] = {}
    groups = [numbers.setdefault(group, len(numbers)) for group, _, _ in everything]
    advantages = (hooks.advantage_fn or default_advantages(scale_rewards))(
        torch.tensor([reward for _, reward, _ in everything], dtype=torch.float32),
        torch.tensor(groups),
        turn_matrix([turn for _, _, turn in everything]),
    )
    is_mine = torch.tensor([group[0] == process_index for group, _, _ in everything])
    n_rows, n_tokens = output["completion_ids"].shape
    own = advantages[is_mine].to(device=output["completion_ids"].device, dtype=torch.float32)
    return token_advantages(own, credit.trajectories, n_rows=n_rows, n_tokens=n_tokens), kl


@torch.no_grad()
def sampling_gap(trainer: Any, output: Mapping[str, Any], n_rows: int) -> float | None:
    """Return the mean gap in nats between sampled and recomputed log-probabilities; None if there is no token.

    Args:
        trainer: TRL's.
        output: Its batch.
        n_rows: How many of the first rows are looked at.
    """
    rows = min(len(output["prompt_ids"]), n_rows)
    prompts, completions = output["prompt_ids"][:rows], output["completion_ids"][:rows]
    recomputed, *_ = trainer._get_per_token_logps_and_entropies(
        trainer.model,
        torch.cat([prompts, completions], dim=1),
        torch.cat([output["prompt_mask"][:rows], output["completion_mask"][:rows]], dim=1),
        completions.size(1),
    )
    gaps = (recomputed - output["sampling_per_token_logps"][:rows]).abs()[_mask(output)[:rows].bool()]
    return gaps.mean().item() if gaps.numel() else None


def hooked_policy_loss(trainer: Any, model: Any, inputs: dict[str, Any], loss_fn: LossFn) -> torch.Tensor:
    """Return the micro-batch's policy loss by a hook, normalised as `loss_type` says, entropy bonus included.

    Args:
        trainer: TRL's.
        model: What is trained.
        inputs: A micro-batch.
        loss_fn: The loss per token.
    """
    mask_BT = _mask(inputs)
    logps_BT, entropies_BT, _ = trainer._get_per_token_logps_and_entropies(
        model,
        torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
        inputs["completion_ids"].size(1),
        compute_entropy=True,
    )
    old_BT = inputs.get("old_per_token_logps")
    old_BT = logps_BT.detach() if old_BT is None else old_BT
    loss_BT = loss_fn(logps_BT, old_BT, inputs["advantages"], mask_BT)
    if (weights := inputs.get("importance_sampling_ratio")) is not None:
        loss_BT = loss_BT * weights
    mode = "train" if trainer.model.training else "eval"
    entropy = masked_mean(entropies_BT, mask_BT)
    _log(trainer, mode, "entropy", entropy)
    loss = _normalised(trainer, loss_BT, mask_BT, inputs)
    if trainer._entropy_bonus_enabled:
        steps = trainer.current_gradient_accumulation_steps if mode == "train" else 1.0
        loss = loss - trainer.entropy_coef * entropy / steps
    return loss


def hooked_kl(trainer: Any, inputs: dict[str, Any], kl_fn: KLFn) -> torch.Tensor:
    """Return the micro-batch's KL from the reference by a hook, normalised as the loss is; logs its mean per token.

    With TRL's `use_bias_correction_kl` each token is weighted by its importance ratio, as TRL weighs its own.
    """
    mask_BT, logps_BT = _mask(inputs), trainer.fresh_logps
    kl_BT = kl_fn(logps_BT, inputs["ref_per_token_logps"], mask_BT)
    old_BT = inputs.get("old_per_token_logps")
    if trainer.args.use_bias_correction_kl:
        old_BT = logps_BT.detach() if old_BT is None else old_BT
        kl_BT = kl_BT * log_ratios(logps_BT, old_BT, mask_BT, level=trainer.importance_sampling_level).exp()
    _log(trainer, "train" if trainer.model.training else "eval", "kl", mean_kl(kl_BT, mask_BT))
    return _normalised(trainer, kl_BT, mask_BT, inputs)


def denominator(trainer: Any, mask_BT: torch.Tensor, inputs: dict[str, Any]) -> float | torch.Tensor:
    """Return what TRL divides the sum of a micro-batch by, under its `loss_type`."""
    is_training, kind = trainer.model.training, trainer.loss_type
    steps = trainer.current_gradient_accumulation_steps if is_training else 1
    if kind in ("dapo", "cispo", "vespo"):  # by the tokens of the whole generation, on all processes
        n_tokens = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
        return n_tokens * steps / trainer.args.steps_per_generation if is_training else n_tokens
    n_rows = mask_BT.shape[0]
    parts: dict[str, float | torch.Tensor] = {
        "bnpo": mask_BT.sum().clamp(min=1.0),
        "dr_grpo": n_rows * trainer.max_completion_length,
    }
    return parts.get(kind, n_rows) * steps


def rows_of(value: Any, start: int, stop: int) -> Any:
    """Return some rows of a tensor or list; a number that belongs to the whole batch stays as it is."""
    if value is None or (isinstance(value, torch.Tensor) and value.ndim == 0):
        return value
    return value[start:stop] if isinstance(value, torch.Tensor | list) else value


@contextmanager
def quiet(is_quiet: bool) -> Iterator[None]:
    """Leave out TRL's warning of rows without a reward, where rows beyond an episode's first are meant to have none."""

    def keep(record: logging.LogRecord) -> bool:
        return not (is_quiet and "All reward functions returned None" in record.getMessage())

    trl_logger = logging.getLogger("trl.trainer.grpo_trainer")
    trl_logger.addFilter(keep)
    try:
        yield
    finally:
        trl_logger.removeFilter(keep)


def _normalised(trainer: Any, values_BT: torch.Tensor, mask_BT: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
    normalisation = _NORMALISATIONS[trainer.loss_type]
    return aggregate_loss(values_BT, mask_BT, normalisation, denominator=denominator(trainer, mask_BT, inputs))


def _mask(inputs: Mapping[str, Any]) -> torch.Tensor:
    mask_BT: torch.Tensor = inputs["completion_mask"] * inputs["tool_mask"]
    return mask_BT


def _log(trainer: Any, mode: str, name: str, value: torch.Tensor) -> None:
    trainer._metrics[mode][name].append(trainer.accelerator.gather(value.detach()).nanmean().item())

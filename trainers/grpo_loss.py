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
from llm_envs.trainers.functional.algorithm import AlgorithmConfig
from llm_envs.trainers.functional.kl import KLFn, k1, mean_kl
from llm_envs.trainers.functional.losses import LossFn, log_ratios
from llm_envs.trainers.functional.masking import Normalisation, aggregate_loss, masked_mean

__all__ = [
    "LossHooks",
    "Scored",
    "accumulated",
    "default_advantages",
    "denominator",
    "denominator_of",
    "hooked_advantages",
    "hooked_kl",
    "hooked_policy_loss",
    "log_mean",
    "quiet",
    "rows_of",
    "sampling_gap",
    "scores",
    "trained_mask",
    "weighted_aux_loss",
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
    algorithm: AlgorithmConfig | None = None
    """What the whole loss is made by; None: by TRL and the functions above."""

    @property
    def make_advantages(self) -> bool:
        """Whether advantages are made by a hook."""
        return self.advantage_fn is not None or self.kl_in == "reward"

    @property
    def make_loss(self) -> bool:
        """Whether a part of the loss is made by a hook."""
        replaced = (self.kl_fn, self.loss_fn, self.algorithm)
        return any(part is not None for part in replaced) or self.kl_in == "reward"

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


@dataclass(frozen=True, eq=False)
class Scored:
    """What the episodes of all processes are paid, and the advantages of this one's rows."""

    advantages: torch.Tensor
    """Shape (rows,) or (rows, T), of this process."""
    kl: float | None
    """Mean KL a token, where it counts in the reward."""
    rewards_E: torch.Tensor
    """Of all processes, NaN where there is none."""
    group_ids_E: torch.Tensor
    is_mine_E: torch.Tensor
    learns_E: torch.Tensor
    """Whether an episode's row has a token to learn from."""


def hooked_advantages(
    hooks: LossHooks,
    credit: Credit,
    output: Mapping[str, Any],
    *,
    beta: float,
    scale_rewards: str,
    process_index: int,
) -> Scored:
    """Return the advantages of all rows of this process by a hook, from the groups of all processes.

    Args:
        hooks: The advantage function, and whether the KL counts in the reward.
        credit: What this process's episodes are paid.
        output: TRL's batch.
        beta: The KL's coefficient.
        scale_rewards: TRL's, where there is no advantage function.
        process_index: Which process this is.
    """
    rewards, turns, kl = credit.rewards.tolist(), [part.tolist() for part in credit.turn_rewards], None
    mask_BT = trained_mask(output)
    if hooks.kl_in == "reward":
        logps_BT = output.get("old_per_token_logps")
        logps_BT = output["sampling_per_token_logps"] if logps_BT is None else logps_BT
        kl_BT = (hooks.kl_fn or k1)(logps_BT, output["ref_per_token_logps"], mask_BT)
        penalties = turn_penalties(beta * kl_BT, mask_BT, credit.trajectories)
        rewards = [reward - sum(penalty) for reward, penalty in zip(rewards, penalties, strict=True)]
        turns = [[r - p for r, p in zip(*pair, strict=False)] for pair in zip(turns, penalties, strict=True)]
        kl = mean_kl(kl_BT, mask_BT).item()
    mine = [(process_index, trajectory.group_id) for trajectory in credit.trajectories]
    learns = mask_BT[: len(mine)].bool().any(1).tolist()
    everything = gather_object(list(zip(mine, rewards, turns, learns, strict=True)))
    numbers: dict[tuple[int, str], int] = {}
    groups_E = torch.tensor([numbers.setdefault(group, len(numbers)) for group, *_ in everything])
    rewards_E = torch.tensor([reward for _, reward, *_ in everything], dtype=torch.float32)
    advantages = (hooks.advantage_fn or default_advantages(scale_rewards))(
        rewards_E, groups_E, turn_matrix([turn for _, _, turn, _ in everything])
    )
    is_mine_E = torch.tensor([group[0] == process_index for group, *_ in everything])
    n_rows, n_tokens = output["completion_ids"].shape
    own = advantages[is_mine_E].to(device=output["completion_ids"].device, dtype=torch.float32)
    own = token_advantages(own, credit.trajectories, n_rows=n_rows, n_tokens=n_tokens)
    return Scored(own, kl, rewards_E, groups_E, is_mine_E, torch.tensor([learns for *_, learns in everything]))


def scores(trainer: Any, model: Any, inputs: Mapping[str, Any], **asked: Any) -> tuple[torch.Tensor, Any, Any]:
    """Return log-probabilities of a batch's completions, and what else is asked for, as TRL computes them."""
    result: tuple[torch.Tensor, Any, Any] = trainer._get_per_token_logps_and_entropies(
        model,
        torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
        inputs["completion_ids"].size(1),
        **asked,
    )
    return result


@torch.no_grad()
def sampling_gap(trainer: Any, output: Mapping[str, Any], n_rows: int) -> float | None:
    """Return the mean gap in nats between sampled and recomputed log-probabilities; None if there is no token.

    Args:
        trainer: TRL's.
        output: Its batch.
        n_rows: How many of the first rows are looked at.
    """
    batch = {name: rows_of(value, 0, n_rows) for name, value in output.items()}
    recomputed, *_ = scores(trainer, trainer.model, batch)
    gaps = (recomputed - batch["sampling_per_token_logps"]).abs()[trained_mask(batch).bool()]
    return gaps.mean().item() if gaps.numel() else None


def hooked_policy_loss(trainer: Any, model: Any, inputs: dict[str, Any], loss_fn: LossFn) -> torch.Tensor:
    """Return the micro-batch's policy loss by a hook, normalised as `loss_type` says, entropy bonus included.

    Args:
        trainer: TRL's.
        model: What is trained.
        inputs: A micro-batch.
        loss_fn: The loss per token.
    """
    mask_BT = trained_mask(inputs)
    logps_BT, entropies_BT, aux_loss = scores(
        trainer, model, inputs, compute_entropy=True, compute_aux_loss=trainer.aux_loss_enabled
    )
    old_BT = inputs.get("old_per_token_logps")
    old_BT = logps_BT.detach() if old_BT is None else old_BT
    loss_BT = loss_fn(logps_BT, old_BT, inputs["advantages"], mask_BT)
    if (weights := inputs.get("importance_sampling_ratio")) is not None:
        loss_BT = loss_BT * weights
    mode = "train" if trainer.model.training else "eval"
    entropy = masked_mean(entropies_BT, mask_BT)
    log_mean(trainer, mode, "entropy", entropy)
    loss = _normalised(trainer, loss_BT, mask_BT, inputs)
    if trainer._entropy_bonus_enabled:
        loss = loss - trainer.entropy_coef * entropy / accumulated(trainer)
    return loss + weighted_aux_loss(trainer, aux_loss)


def hooked_kl(trainer: Any, inputs: dict[str, Any], kl_fn: KLFn) -> torch.Tensor:
    """Return the micro-batch's KL from the reference by a hook, normalised as the loss is; logs its mean per token.

    With TRL's `use_bias_correction_kl` each token is weighted by its importance ratio, as TRL weighs its own.
    """
    mask_BT, logps_BT = trained_mask(inputs), trainer.fresh_logps
    kl_BT = kl_fn(logps_BT, inputs["ref_per_token_logps"], mask_BT)
    old_BT = inputs.get("old_per_token_logps")
    if trainer.args.use_bias_correction_kl:
        old_BT = logps_BT.detach() if old_BT is None else old_BT
        kl_BT = kl_BT * log_ratios(logps_BT, old_BT, mask_BT, level=trainer.importance_sampling_level).exp()
    log_mean(trainer, "train" if trainer.model.training else "eval", "kl", mean_kl(kl_BT, mask_BT))
    return _normalised(trainer, kl_BT, mask_BT, inputs)


def accumulated(trainer: Any) -> int:
    """Return how many micro-batches an optimizer step has; an evaluation is one."""
    return int(trainer.current_gradient_accumulation_steps) if trainer.model.training else 1


def weighted_aux_loss(trainer: Any, aux_loss: torch.Tensor | None) -> torch.Tensor | float:
    """Return the load-balancing loss of a mixture of experts as TRL adds it, 0 for other models."""
    if aux_loss is None:
        return 0.0
    weighted: torch.Tensor = trainer.router_aux_loss_coef * aux_loss / accumulated(trainer)
    return weighted


def denominator(trainer: Any, mask_BT: torch.Tensor, inputs: dict[str, Any]) -> float | torch.Tensor:
    """Return what TRL divides the sum of a micro-batch by, under its `loss_type`."""
    if trainer.loss_type == "bnpo":
        return mask_BT.sum().clamp(min=1.0) * accumulated(trainer)
    constant = trainer.max_completion_length if trainer.loss_type == "dr_grpo" else 1.0
    return denominator_of(trainer, _NORMALISATIONS[trainer.loss_type], mask_BT, inputs, constant=constant)


def denominator_of(
    trainer: Any,
    normalisation: Normalisation,
    mask_BT: torch.Tensor,
    inputs: Mapping[str, Any],
    *,
    constant: float = 1.0,
) -> float | torch.Tensor:
    """Return what makes of a micro-batch's sum its part of an optimizer step that is normalised so.

    Args:
        trainer: TRL's.
        normalisation: "token" divides by the tokens of the whole generation, on all processes.
        mask_BT: The micro-batch's.
        inputs: The micro-batch.
        constant: Of "constant".
    """
    if normalisation == "token":
        n_tokens: torch.Tensor = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
        return (
            n_tokens * accumulated(trainer) / trainer.args.steps_per_generation if trainer.model.training else n_tokens
        )
    return mask_BT.shape[0] * accumulated(trainer) * (constant if normalisation == "constant" else 1.0)


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


def trained_mask(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Return which tokens of a batch are trained on, shape (B, T)."""
    mask_BT: torch.Tensor = inputs["completion_mask"] * inputs["tool_mask"]
    return mask_BT


def log_mean(trainer: Any, mode: str, name: str, value: torch.Tensor) -> None:
    """Log the mean over the processes of a scalar; NaN where one has nothing to say."""
    trainer._metrics[mode][name].append(trainer.accelerator.gather(value.detach()).nanmean().item())

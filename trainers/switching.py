"""An `AlgorithmConfig` in TRL's trainer, fixed or changing from generation to generation; pairs among its losses.

Invariants:
1. The algorithm changes at generation boundaries only, and with it all that it says: advantages, loss, normalisation,
   KL, entropy bonus, pairs, dynamic sampling.
2. The gradient of an optimizer step is that of `algorithm_loss` on the step's rows of all processes, however they are
   cut into micro-batches; a generation of several steps is normalised as a whole, as TRL's "dapo" loss is.
3. Both rows of a pair lie in one optimizer step, on one process. Where they lie in different micro-batches, a pass
   without gradient before the step gives the slope of the pair's loss at each row's log-ratio, so each row's gradient
   is exact on its own: memory is that of one micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.rollout.filters import GroupFilter, create_spread_filter

try:
    import torch
    from trl.models.utils import disable_gradient_checkpointing
    from trl.trainer.utils import split_tensor_dict
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

from llm_envs.trainers.functional.algorithm import (
    ALGORITHMS,
    AlgorithmConfig,
    LossBatch,
    algorithm_loss,
    create_algorithm_schedule,
)
from llm_envs.trainers.functional.masking import masked_mean, trim_padding
from llm_envs.trainers.functional.pairs import pair_slopes, sequence_log_ratios
from llm_envs.trainers.grpo_loss import (
    Scored,
    accumulated,
    denominator_of,
    log_mean,
    scores,
    trained_mask,
    weighted_aux_loss,
)
from llm_envs.types import TrajectoryGroup

__all__ = ["AlgorithmSwitch", "Algorithms", "PairedRows", "arranged", "switched_loss"]

Algorithms = AlgorithmConfig | str | Mapping[int, AlgorithmConfig | str] | Callable[[int], AlgorithmConfig | str]
"""One, by name or as a value; or which holds from which generation on; or `(generation) -> algorithm`."""

_SAID_BY_THE_ALGORITHM = (
    "beta",
    "delta",
    "entropy_coef",
    "epsilon",
    "epsilon_high",
    "importance_sampling_level",
    "kl_in",
    "loss_type",
    "multi_objective_aggregation",
    "off_policy_mask_threshold",
    "scale_rewards",
    "top_entropy_quantile",
    "use_adaptive_entropy",
    "use_bias_correction_kl",
    "use_liger_kernel",
)
_MOST_GENERATIONS = 100_000
"""So many a schedule is asked for beforehand: microseconds each."""


class AlgorithmSwitch:
    """Which algorithm is in force, in a run that has any.

    Args:
        fixed: One for the whole run; None: there is a schedule.
        schedule: By generation.
        n_generations: How many the run has: a schedule is asked for all of them now, so that what cannot work is said
            before the first. It must depend on the number alone.

    Raises:
        InvalidConfigError: If one is not known.
    """

    def __init__(
        self, fixed: AlgorithmConfig | str | None, schedule: Any, *, n_generations: int = _MOST_GENERATIONS
    ) -> None:
        if fixed is not None and schedule is not None:
            raise InvalidConfigError("algorithm and algorithm_schedule are both given: leave one of them out.")
        self._schedule = _as_schedule(fixed if schedule is None else schedule)
        if isinstance(schedule, Mapping):
            said: Iterable[AlgorithmConfig] = (self._schedule(int(start)) for start in schedule)
        else:
            said = map(self._schedule, range(1 if schedule is None else min(n_generations, _MOST_GENERATIONS)))
        self.known: list[AlgorithmConfig] = []
        """The algorithms of the run, one of each kind."""
        kinds = set()
        for algorithm in said:
            if (kind := _kind(algorithm)) not in kinds:
                kinds.add(kind)
                self.known.append(algorithm)
        self.in_force = self._schedule(0)
        self.names = list(dict.fromkeys(algorithm.name for algorithm in self.known))
        """What logs tell apart."""

    def begin_generation(self, number: int) -> AlgorithmConfig:
        """Put in force what the schedule says of a generation."""
        self.in_force = self._schedule(number)
        return self.in_force

    def name_at(self, number: int) -> str:
        """Return the name of a generation's algorithm."""
        return self._schedule(number).name

    @property
    def has_kl(self) -> bool:
        """Whether an algorithm of the run has a KL."""
        return any(algorithm.kl_coef for algorithm in self.known)

    @property
    def has_pairs(self) -> bool:
        """Whether an algorithm of the run learns from pairs."""
        return any(algorithm.pair_loss_fn is not None for algorithm in self.known)

    def check(self, args: Any, others: Mapping[str, Any], *, may_fork: bool) -> None:
        """Refuse what contradicts the algorithms, before a model is loaded.

        Args:
            args: The trainer's settings.
            others: Arguments of the trainer that say what an algorithm says; None is not given.
            may_fork: Whether an episode may have several rows.

        Raises:
            InvalidConfigError: If something does.
        """
        given = [name for name, value in others.items() if value is not None]
        given += [f"{name}={getattr(args, name)!r}" for name in _SAID_BY_THE_ALGORITHM if _is_changed(args, name)]
        if given:
            raise InvalidConfigError(
                f"{', '.join(given)}: with algorithm or algorithm_schedule that is the algorithm's. Leave it out, and "
                "change the algorithm, for example dataclasses.replace(GRPO, kl_fn=k2, kl_coef=0.04); of a recipe take "
                "the algorithm of that name."
            )
        for algorithm in self.known:
            weighs_rows = algorithm.normalisation != "token" or algorithm.pair_loss_fn is not None
            if may_fork and weighs_rows:
                raise InvalidConfigError(
                    f'{algorithm.name!r} weighs each row alike, and with history="template" or a context function an '
                    "episode may have several: take an algorithm that is normalised by tokens."
                )
            if algorithm.pair_loss_fn is not None:
                _check_geometry(args, algorithm.name)

    def group_filter(self, given: GroupFilter | None) -> GroupFilter | None:
        """Return the filter of groups: what is given, and in generations that sample dynamically those with spread."""
        if not any(algorithm.dynamic_sampling for algorithm in self.known):
            return given
        spread = create_spread_filter()

        def keeps(group: TrajectoryGroup) -> bool:
            return (given is None or given(group)) and (not self.in_force.dynamic_sampling or spread(group))

        return keeps


class PairedRows:
    """The pairs of a generation on this process.

    Args:
        algorithm: What learns from them.
        scored: The episodes of all processes; those without a token to learn from are in no pair.
        n_rows: Rows of this process.

    Raises:
        InvalidConfigError: If the algorithm's selector pairs rows of different groups.
    """

    def __init__(self, algorithm: AlgorithmConfig, scored: Scored, n_rows: int) -> None:
        assert algorithm.pair_selector is not None
        rewards_E = scored.rewards_E.masked_fill(~scored.learns_E, math.nan)
        pairs_P2 = algorithm.pair_selector(rewards_E, scored.group_ids_E)
        if (scored.group_ids_E[pairs_P2[:, 0]] != scored.group_ids_E[pairs_P2[:, 1]]).any():
            raise InvalidConfigError(f"the pair_selector of {algorithm.name!r} paired rows of different groups.")
        self.algorithm, self.n_pairs = algorithm, len(pairs_P2)
        """`n_pairs` are those of all processes."""
        own_P2 = pairs_P2[scored.is_mine_E[pairs_P2].all(1)]
        self.pairs_P2 = (scored.is_mine_E.long().cumsum(0) - 1)[own_P2]
        """Rows of this process."""
        self.ratios_R = torch.zeros(n_rows)
        """Each row's log-ratio at the weights of the present step, where the micro-batches tear groups."""
        self.is_arranged = False
        self._scored_at: int | None = None

    def score(self, trainer: Any, place: int) -> None:
        """Before the first micro-batch of an optimizer step, score the rows of all of them, without gradient.

        Args:
            trainer: TRL's.
            place: Of the present micro-batch in the generation.
        """
        step = trainer.state.global_step
        if trainer.args.per_device_train_batch_size % trainer.num_generations == 0 or self._scored_at == step:
            return
        self._scored_at = step
        buffer = trainer._buffered_inputs
        if "ref_per_token_logps" not in buffer[place] and "old_per_token_logps" not in buffer[place]:
            return  # against the policy of now every log-ratio is 0
        with torch.no_grad(), disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
            for inputs in map(trim_padding, buffer[place : place + trainer.current_gradient_accumulation_steps]):
                logps_BT, _, _ = scores(trainer, trainer.model, inputs)
                self.ratios_R[inputs["row"].cpu()] = self._log_ratios(logps_BT, inputs).cpu()

    def slopes(
        self, logps_BT: torch.Tensor, inputs: Mapping[str, Any], group_size: int
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Return of each row of a micro-batch its part of the pairs' summed loss, and the sum's slope at its log-ratio.

        Also the share of the pairs whose chosen row has the greater log-ratio, NaN without any.
        """
        rows = inputs["row"].cpu()
        ratios_R, is_here = self.ratios_R, torch.isin(self.pairs_P2, rows)
        if len(rows) % group_size == 0:  # whole groups: what was just computed is all there is to know
            ratios_R = torch.zeros_like(self.ratios_R)
            ratios_R[rows] = self._log_ratios(logps_BT.detach(), inputs).cpu()
        pairs_P2 = self.pairs_P2[is_here.any(1)]
        assert self.algorithm.pair_loss_fn is not None
        losses_R, slopes_R = pair_slopes(ratios_R, pairs_P2, self.algorithm.pair_loss_fn)
        right_P = (ratios_R[pairs_P2[:, 0]] > ratios_R[pairs_P2[:, 1]]).float()
        device = logps_BT.device
        return losses_R[rows].to(device), slopes_R[rows].to(device), right_P.mean().item()

    def _log_ratios(self, logps_BT: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
        reference_BT = _pair_reference(logps_BT, inputs)
        mask_BT = trained_mask(inputs)
        return sequence_log_ratios(logps_BT, reference_BT, mask_BT, average=self.algorithm.pair_average).float()


def arranged(buffer: Sequence[Mapping[str, Any]], group_size: int) -> list[dict[str, Any]]:
    """Return the micro-batches of a generation with the rows of each group one after the other.

    TRL shuffles the rows; what is left of that is the order of the groups.

    Args:
        buffer: As many rows each, with `row`: the rows' numbers before they were shuffled, groups one after the other.
        group_size: Rows of a group.
    """
    first = buffer[0]
    whole = {name: _joined([part[name] for part in buffer]) for name in first}
    groups_B = whole["row"] // group_size
    seen = list(dict.fromkeys(groups_B.tolist()))
    order = torch.cat([torch.nonzero(groups_B == group).flatten() for group in seen])
    for name, value in whole.items():
        if isinstance(value, torch.Tensor) and value.ndim:
            whole[name] = value[order]
        elif isinstance(value, list):
            whole[name] = [value[place] for place in order.tolist()]
    parts: list[dict[str, Any]] = split_tensor_dict(whole, len(buffer))
    return parts


def switched_loss(
    trainer: Any, model: Any, inputs: dict[str, Any], algorithm: AlgorithmConfig, paired: PairedRows | None
) -> torch.Tensor:
    """Return a micro-batch's part of an optimizer step's `algorithm_loss`; logs its statistics.

    Args:
        trainer: TRL's; its `beta` is the KL's coefficient in force.
        model: What is trained.
        inputs: A micro-batch.
        algorithm: What is in force.
        paired: The generation's pairs, where the algorithm learns from any.
    """
    mask_BT, mode = trained_mask(inputs), "train" if trainer.model.training else "eval"
    logps_BT, entropies_BT, aux_loss = scores(
        trainer, model, inputs, compute_entropy=True, compute_aux_loss=trainer.aux_loss_enabled
    )
    constant = algorithm.constant if algorithm.constant is not None else float(trainer.max_completion_length)
    n_tokens = denominator_of(trainer, "token", mask_BT, inputs)
    share = mask_BT.sum() / n_tokens
    batch = LossBatch(
        logps_BT,
        mask_BT,
        advantages=inputs["advantages"],
        old_logps_BT=inputs.get("old_per_token_logps"),
        ref_logps_BT=inputs.get("ref_per_token_logps"),
        entropies_BT=entropies_BT,
        weights=inputs.get("importance_sampling_ratio"),
        denominator=denominator_of(trainer, algorithm.normalisation, mask_BT, inputs, constant=constant),
    )
    if paired is not None:
        size = int((trainer.num_generations if mode == "train" else trainer.num_generations_eval) or 1)
        losses_B, slopes_B, accuracy = paired.slopes(logps_BT, inputs, size)
        weight = _pair_weight(trainer, paired.n_pairs)
        batch = replace(batch, pair_losses_B=weight * losses_B, pair_slopes_B=weight * slopes_B)
        log_mean(trainer, mode, "pairs/accuracy", torch.tensor(accuracy, device=logps_BT.device))
    own = replace(algorithm, kl_coef=trainer.beta, entropy_coef=algorithm.entropy_coef * float(share))
    loss, stats = algorithm_loss(own, batch)
    log_mean(trainer, mode, "entropy", masked_mean(entropies_BT, mask_BT))
    if "kl" in stats:
        log_mean(trainer, mode, "kl", stats["kl"])
    return loss + weighted_aux_loss(trainer, aux_loss)


def _pair_weight(trainer: Any, n_pairs: int) -> float:
    """Return what makes of a sum over pairs its part of the mean over the generation, gradients averaged over ranks."""
    n_micro = int(trainer.args.steps_per_generation) if trainer.model.training else 1
    return float(trainer.accelerator.num_processes * n_micro / accumulated(trainer) / max(n_pairs, 1))


def _pair_reference(logps_BT: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Return what pairs are measured against, as `algorithm_loss` has it: the reference, or the policy that sampled."""
    for name in ("ref_per_token_logps", "old_per_token_logps"):
        if (known := inputs.get(name)) is not None:
            reference_BT: torch.Tensor = known
            return reference_BT
    return logps_BT.detach()


def _check_geometry(args: Any, name: str) -> None:
    """Refuse batches in which the rows of a pair would be in different optimizer steps."""
    n_micro, n_accumulated = int(args.steps_per_generation or 1), args.gradient_accumulation_steps
    if n_accumulated % n_micro == 0:  # a generation lies in one step
        return
    rows = args.per_device_train_batch_size * n_accumulated
    if n_micro % n_accumulated or rows % int(args.num_generations or 1):
        raise InvalidConfigError(
            f"{name!r} learns from pairs, whose rows must be in one optimizer step: per_device_train_batch_size * "
            f"gradient_accumulation_steps = {rows} must be a multiple of num_generations={args.num_generations}, and "
            f"steps_per_generation={n_micro} one of gradient_accumulation_steps={n_accumulated}. Leave "
            "steps_per_generation out, or raise gradient_accumulation_steps."
        )


def _as_schedule(given: Any) -> Callable[[int], AlgorithmConfig]:
    if isinstance(given, AlgorithmConfig | str):
        fixed = _as_algorithm(given)
        return lambda generation: fixed
    if isinstance(given, Mapping):
        try:
            return create_algorithm_schedule({int(at): _as_algorithm(value) for at, value in given.items()})
        except ValueError as error:
            raise InvalidConfigError(f"algorithm_schedule: {error}") from error
    if callable(given):
        return lambda generation: _as_algorithm(given(generation))
    raise InvalidConfigError(
        f"algorithm_schedule is {given!r}; give (generation) -> algorithm, or a mapping such as "
        "{0: 'grpo', 100: 'pairwise'}."
    )


def _as_algorithm(value: Any) -> AlgorithmConfig:
    if isinstance(value, AlgorithmConfig):
        return value
    if value not in ALGORITHMS:
        raise InvalidConfigError(
            f"algorithm {value!r} is not known; give an AlgorithmConfig or one of {', '.join(ALGORITHMS)}."
        )
    return ALGORITHMS[value]


def _is_changed(args: Any, name: str) -> bool:
    """Return whether a setting is another than its default."""
    default = next((f.default for f in fields(args) if f.name == name), MISSING)
    value = getattr(args, name, default)
    return default is not MISSING and value != default


def _kind(algorithm: AlgorithmConfig) -> tuple[Any, ...]:
    """Return what the checks look at."""
    learns_pairs = algorithm.pair_loss_fn is not None
    return algorithm.name, algorithm.normalisation, bool(algorithm.kl_coef), learns_pairs, algorithm.dynamic_sampling


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor) and first.ndim:
        return torch.cat(list(values))
    if isinstance(first, list):
        return [value for part in values for value in part]
    return first

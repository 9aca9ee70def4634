"""The functional loop: reinforcement learning as plain functions on torch, without TRL. Every hook is an argument.

    training_step       a batch -> one optimizer step
    training_iteration  a generation -> what it is paid, advantages, one or several steps
    train               collect, learn, evaluate, save, log; again

For one process and one device. `EnvGRPOTrainer` is what spreads over several.

Invariants:
1. Gradients of micro-batches add up to those of the whole batch: every term of the loss is divided by what the whole
   batch has of it (tokens, episodes, pairs).
2. What is played depends on the source's position and the run seed alone, so that a run resumed from a checkpoint goes
   on as if nothing had been. (Not with `Collector(over_sampling=...)`, which takes what is finished first.)
3. A checkpoint lies between two iterations; so does a change of the algorithm.
4. The best checkpoint is chosen by `eval_fn` alone: give it held-out problems of the train split (`held_out`), never
   the test split.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from llm_envs.errors import InvalidConfigError, MissingExtraError, ModelError, RolloutFailedError
from llm_envs.reporting import Logger
from llm_envs.rollout import Collector, derive_seed
from llm_envs.types import TrajectoryGroup

try:
    import torch  # noqa: F401  # so that the message below is the first to be seen
except ImportError as error:
    raise MissingExtraError("training needs torch: pip install 'llm-envs[train]'.") from error

from llm_envs.trainers.credit import Credit, CreditSettings, declared_weights, pay
from llm_envs.trainers.functional.algorithm import GRPO, AlgorithmConfig, AlgorithmSchedule
from llm_envs.trainers.functional.importance import importance_weights
from llm_envs.trainers.functional.references import ReferenceUpdateFn, keep_reference
from llm_envs.trainers.loop_batch import TrainingBatch, make_batch, minibatch_rows, score_batch, with_advantages
from llm_envs.trainers.loop_play import PromptLoader, play_generation, restore, source_state
from llm_envs.trainers.loop_state import (
    CheckpointFn,
    OptimizerStepFn,
    TrainingState,
    moving_average,
    training_device,
)
from llm_envs.trainers.loop_step import LoopSettings, training_step

__all__ = [
    "EvalFn",
    "IterationHook",
    "LoopSettings",
    "WeightSyncFn",
    "share_weights",
    "train",
    "training_iteration",
    "training_step",
]

MAX_FAILED_GENERATIONS = 3
"""One generation may fall to an outage; after three in a row nobody is helped by going on."""

EvalFn = Callable[[TrainingState], Mapping[str, float]]
"""Measures a state: `held_out.create_eval_fn`, or yours."""


class IterationHook(Protocol):
    """`(state, groups, metrics) -> more metrics, or None`."""

    def __call__(
        self, state: TrainingState, groups: Sequence[TrajectoryGroup], metrics: Mapping[str, float]
    ) -> Mapping[str, float] | None:
        """Look at an iteration when it is done; what is returned is logged with it."""
        ...


class WeightSyncFn(Protocol):
    """`(policy, state) -> None`."""

    def __call__(self, policy: Any, state: TrainingState) -> None:
        """Let the policy that plays sample from the present weights."""
        ...


def training_iteration(
    state: TrainingState,
    groups: Sequence[TrajectoryGroup],
    *,
    algorithm: AlgorithmConfig = GRPO,
    credit: CreditSettings | None = None,
    task_weights: Mapping[str, float] | None = None,
    temperature: float = 1.0,
    optimizer_step_fn: OptimizerStepFn | None = None,
    reference_update_fn: ReferenceUpdateFn = keep_reference,
    iteration_hook: IterationHook | None = None,
    settings: LoopSettings | None = None,
) -> tuple[TrainingState, dict[str, float]]:
    """Learn from one generation: what it is paid, its advantages, then its steps.

    Args:
        state: Before.
        groups: What was played with the present weights.
        algorithm: What is learned.
        credit: What episodes are paid for; None: the task's reward.
        task_weights: What the tasks declare for their components (`reward_weights`); with `credit.components`.
        temperature: Of sampling.
        optimizer_step_fn: See `training_step`.
        reference_update_fn: Called after each optimizer step (`functional.references`).
        iteration_hook: Called at the end.
        settings: The numbers.

    Returns:
        The state after it; and the means of its steps' metrics, `reward/<column>` of what was paid, `scored` (share of
        the episodes), and what the hook returned.

    Raises:
        InvalidConfigError: If settings contradict one another.
        ModelError: If the first step's log-probabilities are not those of sampling (`logps_tolerance`).
    """
    settings, credit = settings or LoopSettings(), credit or CreditSettings()
    if credit.components and task_weights is None:
        raise InvalidConfigError("components=True needs task_weights: what the tasks declare as reward_weights.")
    paid = pay([t for group in groups for t in group.trajectories], credit, task_weights or {})
    batch = make_batch(
        paid,
        pad_id=0,
        device=training_device(state),
        temperature=temperature,
        mask_truncated=settings.mask_truncated,
    )
    batch, metrics = _prepared(state, batch, paid, algorithm, settings)
    metrics |= _paid_metrics(paid)
    log: list[dict[str, float]] = []
    for epoch in range(settings.n_epochs):
        seed = derive_seed(state.seed, "minibatches", state.iteration, epoch)
        for rows in minibatch_rows(batch, settings.n_minibatches, seed=seed):
            before, part = state.step, batch.select(rows)
            state, stats = training_step(
                state, part, algorithm=algorithm, optimizer_step_fn=optimizer_step_fn, settings=settings
            )
            log.append(stats)
            if state.step > before and state.reference is not None:
                kl = stats.get("kl", metrics.get("kl", 0.0))
                reference = reference_update_fn(state.reference, state.model, step=state.step, kl=kl)
                state = replace(state, reference=reference)
            if before == 0 and settings.logps_tolerance is not None:
                _guard(stats.get("sampling_gap", 0.0), settings.logps_tolerance)
    metrics |= _means(log)
    state = replace(
        state,
        iteration=state.iteration + 1,
        n_episodes=state.n_episodes + len(paid.trajectories),
        n_tokens=state.n_tokens + batch.n_tokens,
        statistics=moving_average(state.statistics, metrics, decay=settings.ema_decay),
    )
    if iteration_hook is not None:
        metrics |= iteration_hook(state, groups, metrics) or {}
    return state, metrics


def train(
    state: TrainingState,
    collector: Collector,
    *,
    n_iterations: int,
    n_groups: int = 8,
    group_size: int = 8,
    algorithm: AlgorithmConfig | AlgorithmSchedule = GRPO,
    prompt_loader: PromptLoader | None = None,
    credit: CreditSettings | None = None,
    settings: LoopSettings | None = None,
    optimizer_step_fn: OptimizerStepFn | None = None,
    reference_update_fn: ReferenceUpdateFn = keep_reference,
    weight_sync_fn: WeightSyncFn | None = None,
    iteration_hook: IterationHook | None = None,
    eval_fn: EvalFn | None = None,
    eval_every: int = 0,
    best_by: str = "success",
    checkpoint_fn: CheckpointFn | None = None,
    save_every: int = 0,
    logger: Logger | None = None,
) -> TrainingState:
    """Train until `state.iteration` is `n_iterations`. A state that `load_training_state` returned goes on.

    Args:
        state: Where to begin. Its `source_state`, if any, must be of this collector; `replace(state, source_state={})`
            begins with another one.
        collector: Plays; its policy must sample from the trained weights. Its `group_filter` is dynamic sampling, its
            source may have a curriculum.
        n_iterations: Iterations in all, those before a resume included.
        n_groups: Groups an iteration.
        group_size: Episodes a group.
        algorithm: What is learned; or a schedule `(iteration) -> algorithm`, asked before each generation.
        prompt_loader: Problems to play instead of the source's: `(n) -> rows`, such as `PromptBuffer.get_prompts`, or
            a `PromptBuffer`, whose position is saved then. The collector's one environment is asked each.
        credit: What episodes are paid for; None: the task's reward.
        settings: The numbers.
        optimizer_step_fn: See `training_step`.
        reference_update_fn: See `training_iteration`; one with `state_dict` is saved.
        weight_sync_fn: Hands the weights to the policy, before each generation and evaluation; None: `share_weights`.
        iteration_hook: Called after each iteration.
        eval_fn: Measures the state on held-out problems of the train split.
        eval_every: Iterations between two evaluations; 0: never. The last iteration is always evaluated then.
        best_by: Which of its numbers decides what is best; greater is better.
        checkpoint_fn: Saves (`create_checkpoint_fn`): what is best, and what the next argument says.
        save_every: Iterations between two saves; 0: only the best and the last.
        logger: Gets the number of each iteration, from 1, and its metrics (`llm_envs.reporting`).

    Returns:
        The last state. The logger got, of each iteration, the metrics of `training_iteration`, `env/...` of all
        episodes that were played (`trajectory_metrics`), `eval/...`, `ema/env/...`, `time/collect_s`, `time/learn_s`.

    Raises:
        InvalidConfigError: If settings contradict one another.
        RolloutFailedError: If no episode could be scored in three generations in a row.
    """
    settings = _with_limits(settings or LoopSettings(), collector)
    _check_run(collector, algorithm, n_groups, group_size, eval_fn, eval_every, save_every, checkpoint_fn)
    task_weights = declared_weights(collector.source) if credit is not None and credit.components else None
    sync = weight_sync_fn or share_weights
    sync(collector.policy, state)
    restore(state.source_state, collector, prompt_loader, reference_update_fn)
    n_failed = 0
    while state.iteration < n_iterations:
        start = time.perf_counter()
        present = algorithm if isinstance(algorithm, AlgorithmConfig) else algorithm(state.iteration)
        _check_algorithm(present, state, collector)
        groups, played = play_generation(collector, n_groups, group_size, state.iteration, prompt_loader)
        n_failed = _count_failed(groups, n_failed)
        middle = time.perf_counter()
        state, metrics = training_iteration(
            state,
            groups,
            algorithm=present,
            credit=credit,
            task_weights=task_weights,
            temperature=collector.sampling.temperature,
            optimizer_step_fn=optimizer_step_fn,
            reference_update_fn=reference_update_fn,
            iteration_hook=iteration_hook,
            settings=settings,
        )
        state = replace(
            state,
            statistics=moving_average(state.statistics, played, decay=settings.ema_decay),
            source_state=source_state(collector, prompt_loader, reference_update_fn),
        )
        metrics |= played | {"time/collect_s": middle - start, "time/learn_s": time.perf_counter() - middle}
        metrics |= {f"ema/{name}": state.statistics[name] for name in _AVERAGED if name in state.statistics}
        sync(collector.policy, state)
        is_last, is_best = state.iteration >= n_iterations, False
        if eval_fn is not None and eval_every and (is_last or state.iteration % eval_every == 0):
            state, is_best, measured = _evaluated(state, eval_fn, best_by)
            metrics |= measured
        if checkpoint_fn is not None and (is_best or is_last or (save_every and state.iteration % save_every == 0)):
            checkpoint_fn(state, is_best=is_best)
        if logger is not None:
            logger(state.iteration, metrics)
    state.model.eval()
    return state


def share_weights(policy: Any, state: TrainingState) -> None:
    """Number the weights of a policy that samples from the trained model itself; hand them to any other.

    Raises:
        InvalidConfigError: If the policy cannot take weights.
    """
    if getattr(policy, "model", None) is state.model:
        policy.weight_version = state.step
        return
    if not hasattr(policy, "update_weights"):
        raise InvalidConfigError(
            f"{type(policy).__name__} neither samples from the trained model nor has update_weights: give "
            "TransformersPolicy(model, tokenizer), or a weight_sync_fn."
        )
    policy.update_weights(state.model.named_parameters(), state.step)


_AVERAGED = ("env/reward", "env/success")
"""Whose moving averages are logged."""


def _prepared(
    state: TrainingState,
    batch: TrainingBatch,
    paid: Credit,
    algorithm: AlgorithmConfig,
    settings: LoopSettings,
) -> tuple[TrainingBatch, dict[str, float]]:
    """Return the batch with all that the algorithm needs of it."""
    sizes: dict[str, Any] = {
        "micro_batch_size": settings.micro_batch_size,
        "autocast_dtype": settings.autocast_dtype,
    }
    if settings.old_logps == "recomputed":
        old_BT = score_batch(state.model, batch, **sizes)
        weights = importance_weights(old_BT, batch.sampled_logps_BT, batch.mask_BT)
        batch = replace(batch, old_logps_BT=old_BT, weights=weights)
    if algorithm.kl_coef or (algorithm.pair_loss_fn is not None and state.reference is not None):
        if state.reference is None:
            raise InvalidConfigError(
                f"{algorithm.name!r} has kl_coef={algorithm.kl_coef} and there is no reference: give "
                "create_training_state(ref_model_fn=frozen_copy)."
            )
        batch = replace(batch, ref_logps_BT=score_batch(state.reference, batch, **sizes))
    return with_advantages(batch, algorithm, paid)


def _guard(gap: float, tolerance: float) -> None:
    if not gap <= tolerance:
        raise ModelError(
            f"the log-probabilities at sampling differ from the trained model's own by {gap:.3g} nats a token at the "
            f"first step (allowed: logps_tolerance={tolerance}). Check that policy and training have the same weights, "
            "dtype, temperature and chat template."
        )


def _paid_metrics(paid: Credit) -> dict[str, float]:
    """Return the mean of each column over the episodes that have it, and the share of scored episodes."""
    columns = {name: [v for v in values if v is not None] for name, values in paid.columns.items()}
    metrics = {f"reward/{name}": sum(values) / len(values) for name, values in columns.items() if values}
    return metrics | {"scored": sum(t.status == "ok" for t in paid.trajectories) / len(paid.trajectories)}


def _means(log: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for stats in log for name in stats)
    values = {name: [stats[name] for stats in log if name in stats] for name in names}
    return {name: sum(listed) / len(listed) for name, listed in values.items()}


def _evaluated(state: TrainingState, eval_fn: EvalFn, best_by: str) -> tuple[TrainingState, bool, dict[str, float]]:
    """Return the state with its best evaluation, whether this is it, and the metrics."""
    measured = {name: float(value) for name, value in eval_fn(state).items()}
    if best_by not in measured:
        raise InvalidConfigError(f"eval_fn returned {sorted(measured)}; best_by={best_by!r} is not among them.")
    value = measured[best_by]
    is_best = value == value and (state.best is None or value > state.best[0])
    if is_best:
        state = replace(state, best=(value, state.iteration))
    return state, is_best, {f"eval/{name}": number for name, number in measured.items()}


def _count_failed(groups: Sequence[TrajectoryGroup], n_failed: int) -> int:
    """Return how many generations in a row had no scored episode; stop after `MAX_FAILED_GENERATIONS`."""
    listed = [t for group in groups for t in group.trajectories]
    if any(t.status == "ok" for t in listed):
        return 0
    if n_failed + 1 < MAX_FAILED_GENERATIONS:
        return n_failed + 1
    first = next((t.error for t in listed if t.error is not None), None)
    why = "unscored" if first is None else f"{first.where}: {first.kind}: {first.message}"
    raise RolloutFailedError(
        f"no episode could be scored in {MAX_FAILED_GENERATIONS} generations in a row; the first of the last one: "
        f"{why}. Training stops."
    )


def _with_limits(settings: LoopSettings, collector: Collector) -> LoopSettings:
    """Return the settings with what the collector knows: the greatest length, and whether sampling was filtered."""
    sampling, limits = collector.sampling, collector.limits
    if not sampling.temperature > 0:
        raise InvalidConfigError(
            f"temperature={sampling.temperature}: groups need samples that differ; set it above 0."
        )
    if settings.max_length is None:
        turn = min(limits.max_turn_tokens or sampling.max_new_tokens, sampling.max_new_tokens)
        settings = replace(settings, max_length=float(limits.max_completion_tokens or turn))
    if (sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty) != (1.0, 0, 0.0, 1.0):
        settings = replace(settings, logps_tolerance=None)  # the two distributions are meant to differ
    return settings


def _check_run(
    collector: Collector,
    algorithm: AlgorithmConfig | AlgorithmSchedule,
    n_groups: int,
    group_size: int,
    eval_fn: EvalFn | None,
    eval_every: int,
    save_every: int,
    checkpoint_fn: CheckpointFn | None,
) -> None:
    if n_groups < 1 or group_size < 1:
        raise InvalidConfigError(f"{n_groups=} and {group_size=} must be at least 1.")
    if eval_every < 0 or save_every < 0:
        raise InvalidConfigError(f"{eval_every=} and {save_every=} must be at least 0.")
    if bool(eval_every) != (eval_fn is not None):
        raise InvalidConfigError(f"{eval_every=} and eval_fn go together: give both or neither.")
    if save_every and checkpoint_fn is None:
        raise InvalidConfigError(f"{save_every=} without a checkpoint_fn: give create_checkpoint_fn(folder).")
    if not callable(algorithm) and not isinstance(algorithm, AlgorithmConfig):
        raise InvalidConfigError(f"algorithm is {algorithm!r}; it must be an AlgorithmConfig or (iteration) -> one.")


def _check_algorithm(algorithm: AlgorithmConfig, state: TrainingState, collector: Collector) -> None:
    if algorithm.kl_coef and state.reference is None:
        raise InvalidConfigError(
            f"{algorithm.name!r} has kl_coef={algorithm.kl_coef}: give create_training_state(ref_model_fn=frozen_copy)."
        )
    if algorithm.dynamic_sampling and collector.group_filter is None:
        raise InvalidConfigError(
            f"{algorithm.name!r} samples dynamically: give Collector(group_filter=create_spread_filter())."
        )

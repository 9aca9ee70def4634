"""The functional loop: reinforcement learning as plain functions on torch, without TRL. Every hook is an argument.

    training_step       a batch -> one optimizer step
    training_iteration  a generation -> rewards, advantages, one or several steps
    train               collect, learn, evaluate, save, log; repeat

The loop uses one process and one device. For several, use `EnvGRPOTrainer`.

Invariants:
1. Gradients of micro-batches add up to the batch's: every term of the loss is divided by its count in the
   batch (tokens, episodes, pairs). A generation of several steps counts tokens and pairs of all of them, so that
   the gradients equal `EnvGRPOTrainer`'s.
2. The episodes depend only on the source's position and the run seed, so a resumed run continues exactly as an
   uninterrupted one. (Not with `Collector(over_sampling=...)`, which takes the episodes that finish first.)
3. Checkpoints are written, and the algorithm changes, only between iterations.
4. Only `eval_fn` decides which checkpoint is best: give it held-out problems of the train split (`held_out`), never
   the test split.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from llm_envs.errors import InvalidConfigError, RolloutFailedError
from llm_envs.policies.base import Policy
from llm_envs.rewards import RewardFns
from llm_envs.rewards.time_limit import limited
from llm_envs.rollout import Collector, derive_seed
from llm_envs.tracking.describing import describing
from llm_envs.tracking.loggers import Logger
from llm_envs.tracking.reasons import count_reasons
from llm_envs.tracking.spans import step_span
from llm_envs.trainers.episodes.advantages import create_state_fn, with_advantages
from llm_envs.trainers.episodes.batches import make_batch
from llm_envs.trainers.episodes.guard import check_gaps, rounding_of, sampling_gaps
from llm_envs.trainers.episodes.nothing_learned import FailureCount, describe_failures
from llm_envs.trainers.episodes.rewards import (
    EpisodeRewards,
    RewardSettings,
    checked_weights,
    score_episodes,
    warn_of_absent,
    with_overlong,
)
from llm_envs.trainers.episodes.training_record import precision
from llm_envs.trainers.forward.filtered import without_filters
from llm_envs.trainers.functional.algorithm import GRPO, Algorithm, AlgorithmSchedule
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import mean_kl
from llm_envs.trainers.functional.references import ReferenceUpdateFn, keep_reference
from llm_envs.trainers.loop.batch import autocast, minibatch_rows, score_batch
from llm_envs.trainers.loop.play import PromptLoader, play_generation, restore, source_state
from llm_envs.trainers.loop.sharing import share_weights
from llm_envs.trainers.loop.state import CheckpointFn, OptimizerStepFn, TrainingState
from llm_envs.trainers.loop.step import TOKEN_MEANS, LoopSettings, share_of_generation, training_step
from llm_envs.types import SamplingParams, TrajectoryGroup

__all__ = ["EvalFn", "IterationHook", "WeightSyncFn", "train", "training_iteration"]

EvalFn = Callable[[TrainingState], Mapping[str, float]]
"""Measures a state. `held_out.create_eval_fn` makes one."""


IterationHook = Callable[[TrainingState, Sequence[TrajectoryGroup], Mapping[str, float]], Mapping[str, float] | None]
"""`(state, groups, metrics) -> more metrics, or None`: called at the end of an iteration."""

WeightSyncFn = Callable[[Policy, TrainingState], None]
"""`(policy, state) -> None`: gives the sampling policy the current weights."""


def training_iteration(
    state: TrainingState,
    groups: Sequence[TrajectoryGroup],
    *,
    algorithm: Algorithm = GRPO,
    rewards: RewardSettings | RewardFns | None = None,
    task_weights: Mapping[str, float] | None = None,
    sampling: SamplingParams | None = None,
    optimizer_step_fn: OptimizerStepFn | None = None,
    reference_update_fn: ReferenceUpdateFn = keep_reference,
    iteration_hook: IterationHook | None = None,
    settings: LoopSettings | None = None,
    checks_sampling: bool | None = None,
) -> tuple[TrainingState, dict[str, float]]:
    """Learn from one generation: compute rewards and advantages, then take the optimizer steps.

    Args:
        state: The state before the iteration.
        groups: Groups played with the current weights.
        algorithm: The algorithm to train with.
        rewards: Your reward functions, or with shaping, weights and aggregate a `RewardSettings`; None: the task's.
        task_weights: The tasks' declared weights of their components (`reward_weights`), for `rewards.components`.
        sampling: How the groups were sampled; None: `SamplingParams()`.
        optimizer_step_fn: See `training_step`.
        reference_update_fn: Called after each optimizer step (`functional.references`).
        iteration_hook: Called at the end.
        settings: The loop's settings.
        checks_sampling: Whether the log-probabilities from sampling are compared (`logps_tolerance`); None: if no step
            has been taken. `train` compares them for its first generation, after a resume too.

    Returns:
        The state after the iteration; and the means of its steps' metrics, `reward/<column>` of each reward column,
        `scored` (share of the episodes), and the metrics of the hook.

    Raises:
        InvalidConfigError: If settings contradict one another.
        ModelError: If the log-probabilities before the first step differ from sampling's (`logps_tolerance`).
    """
    settings, sampling = settings or LoopSettings(), sampling or SamplingParams()
    _check_algorithm(algorithm, state)
    paid = _paid(state, groups, algorithm, RewardSettings.of(rewards), task_weights, settings)
    # Both need the weights that sampled, so they come before the first optimizer step.
    batch = _batch(state, paid, sampling, settings)
    if checks_sampling or (checks_sampling is None and state.step == 0):
        _check_sampling(state, batch, settings)
    batch, metrics = _prepared(state, batch, paid, algorithm, settings)
    metrics |= _paid_metrics(paid)
    state, log, sizes = _steps(
        state, batch, algorithm, settings, optimizer_step_fn, reference_update_fn, metrics.get("kl")
    )
    metrics |= _means(log, sizes)
    state = replace(state, iteration=state.iteration + 1)
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
    algorithm: Algorithm | AlgorithmSchedule = GRPO,
    prompt_loader: PromptLoader | None = None,
    rewards: RewardSettings | RewardFns | None = None,
    settings: LoopSettings | None = None,
    optimizer_step_fn: OptimizerStepFn | None = None,
    reference_update_fn: ReferenceUpdateFn = keep_reference,
    weight_sync_fn: WeightSyncFn | None = None,
    iteration_hook: IterationHook | None = None,
    eval_fn: EvalFn | None = None,
    eval_every: int = 0,
    checkpoint_fn: CheckpointFn | None = None,
    save_every: int = 0,
    logger: Logger | None = None,
) -> TrainingState:
    """Train until `state.iteration` is `n_iterations`. To resume, pass a state from `load_training_state`.

    Args:
        state: The initial state. Its `source_state`, if any, must belong to this collector; to begin with another
            collector, use `replace(state, source_state={})`.
        collector: Plays the episodes. Its policy must sample from the trained weights. For dynamic sampling, give it a
            `group_filter`. Its source may have a curriculum.
        n_iterations: Total number of iterations, including those before a resume.
        n_groups: Groups per iteration.
        group_size: Episodes per group.
        algorithm: The algorithm; or a schedule `(iteration) -> algorithm`, called before each generation.
        prompt_loader: Problems to play instead of the source's: `(n) -> rows`, such as `PromptBuffer.get_prompts`, or
            a `PromptBuffer`, whose position is then saved. The collector must have exactly one environment.
        rewards: Your reward functions, or with shaping, weights and aggregate a `RewardSettings`; None: the task's.
        settings: The loop's settings.
        optimizer_step_fn: See `training_step`.
        reference_update_fn: See `training_iteration`. If it has a `state_dict`, checkpoints include it.
        weight_sync_fn: Gives the policy the weights before each generation and evaluation; None: `share_weights`.
        iteration_hook: Called after each iteration.
        eval_fn: Measures the state on held-out problems of the train split; the greatest `success` is the best.
        eval_every: Iterations between two evaluations; 0: never. If above 0, the last iteration is evaluated too.
        checkpoint_fn: Saves the best state, the last one, and every `save_every` (`create_checkpoint_fn`).
        save_every: Iterations between two saves; 0: only the best and the last.
        logger: Gets the number of each iteration, from 1, and its metrics (`llm_envs.tracking.loggers`).

    Returns:
        The last state. For each iteration the logger gets the metrics of `training_iteration`, `env/...` of all
        episodes played (`trajectory_metrics`), `eval/...`, `time/collect_s`, `time/learn_s`.

    Raises:
        InvalidConfigError: If settings contradict one another.
        RolloutFailedError: If no episode could be scored in three generations in a row; `checkpoint_fn` has saved.
    """
    _check_arguments(collector, algorithm, eval_fn, eval_every, checkpoint_fn, save_every)
    settings, rewards = settings or LoopSettings(), RewardSettings.of(rewards)
    learn = partial(
        training_iteration,
        rewards=rewards,
        task_weights=checked_weights(rewards, collector.source),
        sampling=collector.sampling,
        optimizer_step_fn=optimizer_step_fn,
        reference_update_fn=reference_update_fn,
        iteration_hook=iteration_hook,
    )
    sync = weight_sync_fn or share_weights
    sync(collector.policy, state)  # a resumed run must not sample its first generation with the policy's old weights
    restore(state.source_state, collector, prompt_loader, reference_update_fn)
    failed, first = FailureCount(), state.iteration
    while state.iteration < n_iterations:
        with step_span(state.iteration + 1):
            start = time.perf_counter()
            current = _algorithm_of(algorithm, state, collector)
            bounded = _with_max_length(settings, current, collector)
            played_at = n_groups, group_size, state.iteration
            groups, played = play_generation(
                collector, *played_at, prompt_loader, algorithm=current, max_function_s=settings.max_function_s
            )
            middle, is_first, before = time.perf_counter(), state.iteration == first, state
            state, metrics = learn(state, groups, algorithm=current, settings=bounded, checks_sampling=is_first)
            try:
                failed.add(*_failures(groups, metrics["scored"]))
            except RolloutFailedError as error:
                raise RolloutFailedError(f"{error} {_save_before_failure(before, checkpoint_fn)}") from error
            metrics |= played | {"time/collect_s": middle - start, "time/learn_s": time.perf_counter() - middle}
            state = replace(state, source_state=source_state(collector, prompt_loader, reference_update_fn))
            sync(collector.policy, state)  # before the evaluation, which must measure the new weights
            is_last, is_best = state.iteration >= n_iterations, False
            if eval_fn is not None and (is_last or state.iteration % eval_every == 0):
                state, is_best, measured = _evaluated(state, eval_fn)
                metrics |= measured
            if checkpoint_fn is not None and (is_best or is_last or (save_every and state.iteration % save_every == 0)):
                checkpoint_fn(state, is_best=is_best)
            if logger is not None:
                with describing("the logger"):
                    logger(state.iteration, metrics)
    state.model.eval()
    return state


def _check_sampling(state: TrainingState, batch: Batch, settings: LoopSettings) -> None:
    """Compare sampled with recomputed log-probabilities."""
    if settings.logps_tolerance is not None:
        gaps = sampling_gaps(_scored(state.model, batch, settings), batch)
        if len(gaps):
            rounding = rounding_of(precision(state.model, settings))
            check_gaps(gaps, settings.logps_tolerance, rounding, state.model)


def _scored(model: torch.nn.Module, batch: Batch, settings: LoopSettings) -> torch.Tensor:
    return score_batch(
        model,
        batch,
        micro_batch_size=settings.micro_batch_size,
        autocast_dtype=settings.autocast_dtype,
        forward=settings.forward,
    )


def _steps(
    state: TrainingState,
    batch: Batch,
    algorithm: Algorithm,
    settings: LoopSettings,
    optimizer_step_fn: OptimizerStepFn | None,
    reference_update_fn: ReferenceUpdateFn,
    reward_kl: float | None,
) -> tuple[TrainingState, list[dict[str, float]], list[int]]:
    """Take the optimizer steps of one generation; return the state, and each step's metrics and number of tokens."""
    selector = limited(algorithm.pair_selector, settings.max_function_s, f"the pair_selector of {algorithm.name!r}")
    algorithm = replace(algorithm, pair_selector=selector)
    log: list[dict[str, float]] = []
    sizes: list[int] = []
    stepped_B = torch.zeros(len(batch), dtype=torch.bool)
    for epoch in range(settings.n_epochs):
        seed = derive_seed(state.seed, "minibatches", state.iteration, epoch)
        for rows in minibatch_rows(batch, settings.n_minibatches, seed=seed):
            before = state.step
            own, part = share_of_generation(algorithm, batch, rows, settings.n_minibatches)
            state, stats = training_step(
                state, part, algorithm=own, optimizer_step_fn=optimizer_step_fn, settings=settings
            )
            log.append(stats)
            sizes.append(part.n_tokens)
            if state.step == before:  # no trained token, or a gradient that is not finite: the reference stays too
                continue
            stepped_B[rows] = True
            if state.reference is not None:
                # The KL of this step's loss, or the generation's if the KL counts in the reward.
                kl = stats.get("kl", reward_kl or 0.0)
                reference = reference_update_fn(state.reference, state.model, step=state.step, kl=kl)
                state = replace(state, reference=reference)
    trained_B = stepped_B.to(batch.mask_BT.device) & batch.mask_BT.any(1)
    n_episodes, n_tokens = len(batch.need("owners_B")[trained_B].unique()), int(batch.mask_BT[trained_B].sum())
    return replace(state, n_episodes=state.n_episodes + n_episodes, n_tokens=state.n_tokens + n_tokens), log, sizes


def _algorithm_of(algorithm: Algorithm | AlgorithmSchedule, state: TrainingState, collector: Collector) -> Algorithm:
    """Return the checked algorithm of the next iteration, with the states of the collector's environments."""
    current = algorithm if isinstance(algorithm, Algorithm) else algorithm(state.iteration)
    if current.by_state is True:
        current = replace(current, by_state=create_state_fn(collector.source.factories))
    _check_algorithm(current, state, collector)
    return current


def _paid(
    state: TrainingState,
    groups: Sequence[TrajectoryGroup],
    algorithm: Algorithm,
    rewards: RewardSettings,
    task_weights: Mapping[str, float] | None,
    settings: LoopSettings,
) -> EpisodeRewards:
    """Return the episodes of the groups with their rewards."""
    if rewards.components and task_weights is None:
        raise InvalidConfigError("components=True needs task_weights: what the tasks declare as reward_weights.")
    if algorithm.overlong and settings.max_length is None:
        raise InvalidConfigError(
            f"{algorithm.name!r} punishes overlong episodes: set LoopSettings.max_length, or replace(..., overlong=0)."
        )
    rewards = with_overlong(rewards, algorithm.overlong, int(settings.max_length or 0)).limited(settings.max_function_s)
    paid = score_episodes([t for group in groups for t in group.trajectories], rewards, task_weights or {})
    if state.iteration == 0:
        warn_of_absent(rewards, paid.columns)
    if failures := count_reasons(paid.trajectories):
        logging.getLogger(__name__).warning(describe_failures(failures, len(paid.trajectories)))
    return paid


def _batch(state: TrainingState, paid: EpisodeRewards, sampling: SamplingParams, settings: LoopSettings) -> Batch:
    """Return the rows of the episodes that are trained on."""
    batch = make_batch(
        paid,
        pad_id=0,
        device=state.device,
        sampling=sampling,
        mask_truncated=settings.mask_truncated,
        trajectory_filter=limited(settings.trajectory_filter, settings.max_function_s, "the trajectory_filter"),
    )
    with autocast(state.device, settings.autocast_dtype):
        return without_filters(state.model, batch)


def _prepared(
    state: TrainingState,
    batch: Batch,
    paid: EpisodeRewards,
    algorithm: Algorithm,
    settings: LoopSettings,
) -> tuple[Batch, dict[str, float]]:
    """Return the batch with all inputs of the algorithm, and metrics."""
    has_pairs, is_paid = algorithm.pair_loss_fn is not None, algorithm.has_paid_kl
    # One pass serves three uses: the ratios' denominators, a KL in the reward, and the reference of pairs.
    if settings.old_logps == "recomputed" or is_paid or (has_pairs and state.reference is None):
        batch = replace(batch, policy_logps_BT=_scored(state.model, batch, settings))
    if settings.old_logps == "recomputed":
        logps_BT, sampled_BT, weigh = batch.policy_logps_BT, batch.need("sampled_logps_BT"), settings.importance_fn
        weights = None if weigh is None else weigh(logps_BT, sampled_BT, batch.mask_BT)
        batch = replace(batch, old_logps_BT=logps_BT, weights=weights)
    if has_pairs and state.reference is None:  # pairs are then measured against the sampling policy
        batch = replace(batch, ref_logps_BT=batch.policy_logps_BT)
    if algorithm.kl_coef or (has_pairs and state.reference is not None):
        assert state.reference is not None
        batch = replace(batch, ref_logps_BT=_scored(state.reference, batch, settings))
    batch, scored = with_advantages(batch, algorithm, paid, limit_s=settings.max_function_s)
    return batch, {} if scored.kl_BT is None else {"kl": float(mean_kl(scored.kl_BT, batch.mask_BT))}


def _paid_metrics(paid: EpisodeRewards) -> dict[str, float]:
    """Return the mean of each column over the episodes that have it, and the share of scored episodes."""
    columns = {name: [v for v in values if v is not None] for name, values in paid.columns.items()}
    metrics = {f"reward/{name}": sum(values) / len(values) for name, values in columns.items() if values}
    return metrics | {"scored": sum(t.status == "ok" for t in paid.trajectories) / len(paid.trajectories)}


def _means(log: Sequence[Mapping[str, float]], sizes: Sequence[int]) -> dict[str, float]:
    """Return means over the tokens, the pairs or the steps of a generation, and the greatest ratio."""
    out: dict[str, float] = {}
    for name in dict.fromkeys(name for stats in log for name in stats):
        listed = [(stats, n_tokens) for stats, n_tokens in zip(log, sizes, strict=True) if name in stats]
        weights = [_weight(name, stats, n_tokens) for stats, n_tokens in listed]
        total = sum(stats[name] * weight for (stats, _), weight in zip(listed, weights, strict=True))
        out[name] = total / max(sum(weights), 1.0)
    if "ratio_max" in out:
        out["ratio_max"] = max(stats["ratio_max"] for stats in log if "ratio_max" in stats)
    return out


def _weight(name: str, stats: Mapping[str, float], n_tokens: int) -> float:
    """Return how much a step counts in a metric's mean: by its tokens or pairs; 1: as any other."""
    if name in TOKEN_MEANS:
        return n_tokens
    return stats["pairs"] if name == "pair_accuracy" else 1.0


def _evaluated(state: TrainingState, eval_fn: EvalFn) -> tuple[TrainingState, bool, dict[str, float]]:
    """Return the state with its best evaluation, whether this is it, and the metrics."""
    measured = {name: float(value) for name, value in eval_fn(state).items()}
    if (value := measured.get("success")) is None:
        raise InvalidConfigError(f"eval_fn returned {sorted(measured)}; success, which finds the best, is not there.")
    # NaN is not equal to itself: an evaluation without a scored episode is never the best.
    is_best = value == value and (state.best is None or value > state.best[0])
    if is_best:
        state = replace(state, best=(value, state.iteration))
    return state, is_best, {f"eval/{name}": number for name, number in measured.items()}


def _failures(groups: Sequence[TrajectoryGroup], scored: float) -> tuple[Counter[str], int]:
    """Return why the episodes of a generation have no score with their numbers, and how many episodes there are."""
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    failures = count_reasons(episodes)
    # `scored` is measured after the reward functions, the groups are as they were played.
    n_unpaid = round(len(episodes) * (1 - scored)) - failures.total()
    return failures + Counter({"a reward function left it unscored (see the warning)": n_unpaid}), len(episodes)


def _save_before_failure(state: TrainingState, checkpoint_fn: CheckpointFn | None) -> str:
    """Save the state before a generation without a score, and say so."""
    if checkpoint_fn is None:
        return "Without a checkpoint_fn nothing is saved."
    checkpoint_fn(state, is_best=False)
    return f"The state after {state.iteration} iterations is saved: resume with load_training_state."


def _check_arguments(
    collector: Collector,
    algorithm: Algorithm | AlgorithmSchedule,
    eval_fn: EvalFn | None,
    eval_every: int,
    checkpoint_fn: CheckpointFn | None,
    save_every: int,
) -> None:
    """Check the arguments of `train`."""
    if eval_every < 0 or save_every < 0:
        raise InvalidConfigError(f"{eval_every=} and {save_every=} must be at least 0.")
    if bool(eval_every) != (eval_fn is not None):
        raise InvalidConfigError(f"{eval_every=} and eval_fn go together: give both or neither.")
    if save_every and checkpoint_fn is None:
        raise InvalidConfigError(f"{save_every=} without a checkpoint_fn: give create_checkpoint_fn(folder).")
    if not callable(algorithm) and not isinstance(algorithm, Algorithm):
        raise InvalidConfigError(f"algorithm is {algorithm!r}; it must be an Algorithm or (iteration) -> one.")
    if not collector.sampling.temperature > 0:
        raise InvalidConfigError(
            f"temperature={collector.sampling.temperature}: groups need samples that differ; set it above 0."
        )


def _with_max_length(settings: LoopSettings, algorithm: Algorithm, collector: Collector) -> LoopSettings:
    """Return the settings with the greatest completion length of an episode, if the algorithm needs it.

    Raises:
        InvalidConfigError: If it is not known. The limit of a turn does not bound an episode.
    """
    is_constant = algorithm.normalisation == "constant" and algorithm.constant is None
    if settings.max_length is not None or not (algorithm.overlong or is_constant):
        return settings
    limits, sampling = collector.limits, collector.sampling
    length, n_turns = limits.max_completion_tokens, limits.max_turns
    if length is None and n_turns is not None:
        # The punishment counts the environment's tokens too, which the limits of turns do not bound.
        turn = min(limits.max_turn_tokens or sampling.max_new_tokens, sampling.max_new_tokens)
        length = None if algorithm.overlong and n_turns > 1 else turn * n_turns
    if length is None:
        why = "punishes overlong episodes" if algorithm.overlong else "divides by the greatest length of an episode"
        raise InvalidConfigError(
            f"{algorithm.name!r} {why}, and an episode of several turns has no limit here: give the collector "
            "limits=RolloutLimits(max_completion_tokens=...), or set LoopSettings.max_length."
        )
    return replace(settings, max_length=float(length))


def _check_algorithm(algorithm: Algorithm, state: TrainingState, collector: Collector | None = None) -> None:
    """Check what the algorithm needs; in `train`, before the episodes are played."""
    if callable(algorithm.kl_coef):
        raise InvalidConfigError(
            f"the kl_coef of {algorithm.name!r} is a schedule, which only the trainers call: give "
            "algorithm=lambda iteration: algorithm.at(coefficient)."
        )
    if algorithm.advantage_fn is None:
        raise InvalidConfigError(f"{algorithm.name!r} has no advantage_fn; only EnvPPOTrainer has a critic.")
    if algorithm.kl_coef and state.reference is None:
        raise InvalidConfigError(
            f"{algorithm.name!r} has kl_coef={algorithm.kl_coef}: give create_training_state(ref_model_fn=...), "
            "frozen_copy or load_teacher(FOLDER, NAME or URL)."
        )
    if algorithm.dynamic_sampling and collector is not None and collector.group_filter is None:
        raise InvalidConfigError(
            f"{algorithm.name!r} samples dynamically: give Collector(group_filter=create_spread_filter())."
        )

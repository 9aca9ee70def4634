"""Reinforcement learning in five lines.

    from llm_envs.trainers.loop.quickstart import quick_start_training

    rows = [{"prompt": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(100)]
    result = quick_start_training("MODEL", prompts=rows, reward_fn=lambda row, reply: reply.answer == row["answer"])
    result.save("trained")

It runs the functional loop (`loop.train`) in this process, on one device. The trained model itself samples, so there is
nothing to configure and no weights are copied. If you need more control, call the same functions with other arguments.
For several GPUs, vLLM or LoRA use `EnvGRPOTrainer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import get_scheduler

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.loading import load_model
from llm_envs.policies.transformers import TransformersPolicy
from llm_envs.rollout import Collector, EnvChoice, PromptSource, RolloutLimits, SeedSource, TrajectoryWriter
from llm_envs.rollout.filters import create_spread_filter
from llm_envs.sources.prompt_task import PromptTask, RewardFn
from llm_envs.sources.prompts import PromptsLike
from llm_envs.sources.source import Envs
from llm_envs.tracking.loggers import Logger, console_logger, jsonl_logger, multi_logger
from llm_envs.trainers.bridge.checks import as_algorithm, load_training_tokenizer, with_split
from llm_envs.trainers.bridge.finite import check_weights
from llm_envs.trainers.bridge.generation import unused_folder
from llm_envs.trainers.bridge.learned import LearnedLog, run_record
from llm_envs.trainers.bridge.teacher import NO_TEACHER
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.references import RefModelFn, frozen_copy
from llm_envs.trainers.loop.held_out import create_eval_fn, hold_out
from llm_envs.trainers.loop.run import LoopSettings, train
from llm_envs.trainers.loop.state import (
    TrainingState,
    create_checkpoint_fn,
    create_training_state,
    latest_checkpoint,
    load_training_state,
)
from llm_envs.types import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["QuickStartResult", "quick_start_training"]

SHOWN = ("env/reward", "env/success", "loss", "grad_norm", "eval/success")


@dataclass(frozen=True, eq=False)
class QuickStartResult:
    """The result of a quick start."""

    model: PreTrainedModel
    """The model after the last iteration."""
    tokenizer: PreTrainedTokenizerBase
    policy: TransformersPolicy
    """Samples from the model: for `evaluate`, or to play."""
    state: TrainingState
    history: Sequence[Mapping[str, float]]
    """The metrics of each iteration, from the first that this call made."""

    def save(self, folder: str | Path) -> None:
        """Write model and tokenizer, for transformers and vLLM to load.

        Raises:
            ModelError: If a weight is not finite.
        """
        check_weights({"the model": self.model}, self.state.step)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def quick_start_training(
    model_name: str | PreTrainedModel,
    *,
    env: Envs | None = None,
    prompts: PromptsLike | None = None,
    reward_fn: RewardFn | None = None,
    num_iterations: int = 50,
    n_groups: int = 8,
    group_size: int = 8,
    algorithm: str | Algorithm = "grpo",
    learning_rate: float = 1e-5,
    max_turn_tokens: int = 256,
    temperature: float = 1.0,
    env_kwargs: Mapping[str, Any] | None = None,
    limits: RolloutLimits | None = None,
    settings: LoopSettings | None = None,
    eval_every: int = 0,
    n_eval: int = 64,
    output_dir: str | Path | None = None,
    resume: bool = False,
    logger: Logger | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: torch.device | str | None = None,
    ref_model_fn: RefModelFn | None = None,
    seed: int = 0,
) -> QuickStartResult:
    """Train a model by reinforcement learning, on an environment or on prompts with a reward.

    Args:
        model_name: A folder, a name on a hub, or a loaded model (then give its tokenizer too).
        env: Id of an environment, or another form that `Collector` takes; its train split is played.
        prompts: In place of `env`: a file, rows or texts (`load_prompts`). With `reward_fn` they become
            a `PromptTask`; one prompt in five is kept for the test split.
        reward_fn: `(row, reply) -> reward`, with `prompts`.
        num_iterations: Generations to learn from.
        n_groups: Problems per generation.
        group_size: Episodes per problem.
        algorithm: A name in `functional.algorithm.ALGORITHMS`, or an algorithm.
        learning_rate: AdamW's; it falls to 0 along a cosine, after a warm-up of a twentieth of the steps.
        max_turn_tokens: Maximum tokens of one turn of the model.
        temperature: Sampling temperature.
        env_kwargs: Arguments of the environment, such as `difficulty`; `split=None` if it has no splits.
        limits: Limits of an episode.
        settings: The loop's settings.
        eval_every: Iterations between two evaluations on held-out problems of the train split (a tenth of them, then
            never trained on); 0: no evaluation.
        n_eval: Episodes of each evaluation.
        output_dir: Folder for `metrics.jsonl` and checkpoints (the two latest, and the best if there are evaluations);
            None: nothing is written.
        resume: Whether to resume from the latest checkpoint in `output_dir`, if there is one.
        logger: Gets each iteration's metrics; None prints a line.
        tokenizer: None loads the model's.
        device: None uses the GPU if there is one; a loaded model is not moved.
        ref_model_fn: Makes the reference of a KL, such as `load_teacher(NAME)`; None: a copy of the model as it is.
        seed: Seed of problems and sampling.

    Raises:
        InvalidConfigError: If not just one of `env` and `prompts` is given, or another argument is wrong.
        ModelError: If the model cannot be loaded, or not trained on conversations.
    """
    chosen, settings = as_algorithm(algorithm), settings or LoopSettings()
    source, kept = _sources(env, prompts, reward_fn, env_kwargs, bool(eval_every), seed)
    if resume and output_dir is None:
        raise InvalidConfigError("resume=True needs the output_dir of the run that is to go on.")
    policy = _load_policy(model_name, tokenizer, device)
    n_steps = num_iterations * settings.n_epochs * settings.n_minibatches
    state = _initial_state(policy.model, chosen, n_steps, learning_rate, ref_model_fn, seed)
    root = None if output_dir is None else Path(output_dir)
    if resume and root is not None and (newest := latest_checkpoint(root)) is not None:
        state = load_training_state(newest, state)
    history: list[Mapping[str, float]] = []
    sampling = SamplingParams(max_new_tokens=max_turn_tokens, temperature=temperature)
    played: dict[str, Any] = {"codec": policy.codec, "sampling": sampling, "limits": limits, "progress": False}
    group_filter = create_spread_filter() if chosen.dynamic_sampling else None
    with (
        Collector(source, policy, seed=seed, group_filter=group_filter, **played) as collector,
        ExitStack() as open_files,
    ):
        learned = None
        if root is not None:
            folder = unused_folder(root / "trajectories" / "process-0")
            writer = open_files.enter_context(TrajectoryWriter(folder, settings={"seed": seed}))
            collector.on_trajectory = writer.write
            facts = _run_facts(policy, collector, settings, chosen)
            learned = LearnedLog(writer, run_record("loop", settings, **facts))
        state = train(
            state,
            collector,
            n_iterations=num_iterations,
            n_groups=n_groups,
            group_size=group_size,
            algorithm=chosen,
            settings=settings,
            eval_fn=create_eval_fn(kept, policy, n=n_eval, seed=seed + 1, **played) if kept else None,
            eval_every=eval_every,
            checkpoint_fn=None if root is None else create_checkpoint_fn(root, tokenizer=policy.tokenizer),
            # A killed run loses at most a tenth of its iterations.
            save_every=0 if root is None else max(num_iterations // 10, 1),
            logger=_logger(logger, history, root),
            learned=learned,
        )
    return QuickStartResult(policy.model, policy.tokenizer, policy, state, history)


def _run_facts(
    policy: TransformersPolicy, collector: Collector, settings: LoopSettings, algorithm: Algorithm
) -> dict[str, Any]:
    """Return the facts of a run that its record begins with (`bridge.learned.run_record`)."""
    return {
        "model": policy.model,
        "codec": policy.codec,
        "sampling": collector.sampling,
        "max_model_len": policy.max_model_len,
        "algorithm": algorithm,
        "unknown": [] if settings.trajectory_filter is None else ["trajectory_filter"],
        "pad_id": 0,
        "processes": 1,
        "task_weights": {},
        "max_completion_tokens": collector.limits.max_completion_tokens,
        "max_episode_tokens": collector.limits.max_episode_tokens,
        "steps_per_iteration": settings.n_epochs * settings.n_minibatches,
        "old_logps": settings.old_logps,
    }


def _logger(logger: Logger | None, history: list[Mapping[str, float]], root: Path | None) -> Logger:
    """Return a logger to the user's (or the console), to the history, and to a file in the folder."""
    loggers = [logger or console_logger(keys=SHOWN), lambda step, metrics: history.append(dict(metrics))]
    return multi_logger(*loggers, *([] if root is None else [jsonl_logger(root / "metrics.jsonl")]))


def _load_policy(
    model_name: str | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, device: torch.device | str | None
) -> TransformersPolicy:
    tokenizer = load_training_tokenizer(model_name, tokenizer, thinking=None)
    if isinstance(model_name, str):
        return TransformersPolicy(load_model(model_name, device=device), tokenizer)
    if device is not None:
        cast(torch.nn.Module, model_name).to(device)
    return TransformersPolicy(model_name, tokenizer)


def _initial_state(
    model: PreTrainedModel,
    algorithm: Algorithm,
    n_steps: int,
    learning_rate: float,
    ref_model_fn: RefModelFn | None,
    seed: int,
) -> TrainingState:
    if algorithm.needs_teacher and ref_model_fn is None:
        raise InvalidConfigError(NO_TEACHER.format(name=algorithm.name))
    if ref_model_fn is not None and not algorithm.kl_coef:
        raise InvalidConfigError(f"ref_model_fn is given, and {algorithm.name!r} has no kl_coef: set one above 0.")
    schedule = partial(
        get_scheduler,
        "cosine_warmup_with_min_lr",
        num_warmup_steps=n_steps // 20,
        num_training_steps=n_steps + 1,  # one more than there are, so that the last step's rate is above 0
        scheduler_specific_kwargs={"min_lr_rate": 0.0},
    )
    # Without a KL, a reference would only take memory.
    made_by = (ref_model_fn or frozen_copy) if algorithm.kl_coef else None
    return create_training_state(model, learning_rate=learning_rate, schedule=schedule, ref_model_fn=made_by, seed=seed)


def _sources(
    env: Envs | None,
    prompts: PromptsLike | None,
    reward_fn: RewardFn | None,
    env_kwargs: Mapping[str, Any] | None,
    holds_out: bool,
    seed: int,
) -> tuple[SeedSource, list[EnvChoice]]:
    """Return the source of training episodes, and the environments of evaluations."""
    if (env is None) == (prompts is None):
        given = "neither" if env is None else "both"
        raise InvalidConfigError(
            f"{given} of env and prompts is given: give env=..., or prompts=... and reward_fn=... ."
        )
    if (prompts is None) != (reward_fn is None):
        raise InvalidConfigError(
            "prompts need reward_fn=(row, reply) -> reward."
            if reward_fn is None
            else "reward_fn is for prompts; an environment pays its own reward."
        )
    if prompts is None:
        assert env is not None
        if (env_kwargs or {}).get("split") == "test":
            raise InvalidConfigError("env_kwargs has split='test': that one is for measuring.")
        if holds_out:
            trained, kept = hold_out(env, env_kwargs=env_kwargs)
            return SeedSource(trained, seed=seed), kept
        return SeedSource(env, seed=seed, env_kwargs=with_split("train", env_kwargs or {})), []
    if env_kwargs:
        raise InvalidConfigError(f"env_kwargs={dict(env_kwargs)!r} go with env: prompts have none.")
    assert reward_fn is not None
    source = PromptSource(PromptTask(prompts, reward_fn), seed=seed)
    if not holds_out:
        return source, []
    trained, kept = hold_out(source.choices)
    return SeedSource(trained, seed=seed), kept

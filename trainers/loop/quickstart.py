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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.chat.codec import ChatCodec
from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.policies.transformers import TransformersPolicy
from llm_envs.rollout import Collector, EnvChoice, PromptSource, RolloutLimits, SeedSource
from llm_envs.rollout.filters import create_spread_filter
from llm_envs.sources.prompt_task import PromptTask, RewardFn
from llm_envs.sources.prompts import PromptsLike
from llm_envs.sources.source import Envs
from llm_envs.tracking.loggers import Logger, console_logger, jsonl_logger, multi_logger

try:
    import torch
except ImportError as error:
    raise MissingExtraError("training needs torch: pip install 'llm-envs[train]'.") from error

from llm_envs.policies.inference.loading import load_model
from llm_envs.trainers.bridge.checks import as_algorithm, load_training_tokenizer
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.references import frozen_copy
from llm_envs.trainers.loop.held_out import create_eval_fn, hold_out
from llm_envs.trainers.loop.run import LoopSettings, train
from llm_envs.trainers.loop.state import (
    TrainingState,
    create_checkpoint_fn,
    create_training_state,
    create_warmup_cosine,
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
        """Write model and tokenizer, for transformers and vLLM to load."""
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
        seed: Seed of problems and sampling.

    Raises:
        InvalidConfigError: If not just one of `env` and `prompts` is given, or another argument is wrong.
        ModelError: If the model cannot be loaded, or not trained on conversations.
    """
    chosen = as_algorithm(algorithm)
    source, kept = _sources(env, prompts, reward_fn, env_kwargs, bool(eval_every), seed)
    if resume and output_dir is None:
        raise InvalidConfigError("resume=True needs the output_dir of the run that is to go on.")
    tokenizer = load_training_tokenizer(model_name, tokenizer, thinking=None)
    model = load_model(model_name, device=device) if isinstance(model_name, str) else model_name
    policy = TransformersPolicy(model, tokenizer)
    played: dict[str, Any] = {
        "codec": ChatCodec(tokenizer),
        "sampling": SamplingParams(max_new_tokens=max_turn_tokens, temperature=temperature),
        "limits": limits,
        "progress": False,
    }
    loop_settings = settings or LoopSettings()
    n_steps = num_iterations * loop_settings.n_epochs * loop_settings.n_minibatches
    state = create_training_state(
        model,
        learning_rate=learning_rate,
        schedule=create_warmup_cosine(n_steps, warmup_steps=n_steps // 20),
        # Without a KL, a reference would only take memory.
        ref_model_fn=frozen_copy if chosen.kl_coef else None,
        # `load_model` has already put a model that was given by name on its device.
        device=device if not isinstance(model_name, str) else None,
        seed=seed,
    )
    root = None if output_dir is None else Path(output_dir)
    if resume and root is not None and (newest := latest_checkpoint(root)) is not None:
        state = load_training_state(newest, state)
    history: list[Mapping[str, float]] = []
    loggers = [logger or console_logger(keys=SHOWN), lambda step, metrics: history.append(dict(metrics))]
    if root is not None:
        loggers.append(jsonl_logger(root / "metrics.jsonl"))
    with Collector(
        source, policy, seed=seed, group_filter=create_spread_filter() if chosen.dynamic_sampling else None, **played
    ) as collector:
        state = train(
            state,
            collector,
            n_iterations=num_iterations,
            n_groups=n_groups,
            group_size=group_size,
            algorithm=chosen,
            settings=loop_settings,
            eval_fn=create_eval_fn(kept, policy, n=n_eval, seed=seed + 1, **played) if kept else None,
            eval_every=eval_every,
            checkpoint_fn=None if root is None else create_checkpoint_fn(root, tokenizer=tokenizer),
            # A killed run loses at most a tenth of its iterations.
            save_every=0 if root is None else max(num_iterations // 10, 1),
            logger=multi_logger(*loggers),
        )
    return QuickStartResult(model, tokenizer, policy, state, history)


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
        common = {"split": "train"} | dict(env_kwargs or {})
        if common["split"] == "test":
            raise InvalidConfigError("env_kwargs has split='test': that one is for measuring.")
        if holds_out:
            trained, kept = hold_out(env, env_kwargs=common)
            return SeedSource(trained, seed=seed), kept
        common = {name: value for name, value in common.items() if not (name == "split" and value is None)}
        return SeedSource(env, seed=seed, env_kwargs=common), []
    if env_kwargs:
        raise InvalidConfigError(f"env_kwargs={dict(env_kwargs)!r} go with env: prompts have none.")
    assert reward_fn is not None
    source = PromptSource(PromptTask(prompts, reward_fn), seed=seed)
    if not holds_out:
        return source, []
    trained, kept = hold_out(source.choices)
    return SeedSource(trained, seed=seed), kept

"""Reinforcement learning in five lines.

    from llm_envs.trainers import quick_start_training

    rows = [{"prompt": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(100)]
    result = quick_start_training("MODEL", prompts=rows, reward_fn=lambda row, reply: reply.answer == row["answer"])
    result.save("trained")

It is `EnvGRPOTrainer` with settings for one process: the trained model itself samples, one step learns from each
generation, and the learning rate falls to 0. If you need more control, use the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, PrinterCallback
from transformers.trainer_utils import get_last_checkpoint

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.loading import context_length
from llm_envs.policies.transformers import TransformersPolicy
from llm_envs.sources.prompt_task import PromptTask, RewardFn
from llm_envs.sources.prompts import PromptsLike
from llm_envs.sources.source import Envs
from llm_envs.tracking.loggers import Logger, console_logger, multi_logger
from llm_envs.trainers.callbacks import LoggerCallback
from llm_envs.trainers.engines.engines import trainer_policy
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.references import RefModelFn
from llm_envs.trainers.grpo.config import EnvGRPOConfig
from llm_envs.trainers.grpo.trainer import EnvGRPOTrainer
from llm_envs.trainers.settings.checks import load_training_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["QuickStartResult", "quick_start_training"]

SHOWN = ("reward", "env/success", "loss", "grad_norm", "eval_env/success")

_DEFAULTS: dict[str, Any] = {
    "lr_scheduler_type": "cosine",
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "disable_tqdm": True,
    "report_to": "none",
}


@dataclass(frozen=True, eq=False)
class QuickStartResult:
    """The result of a quick start."""

    trainer: EnvGRPOTrainer
    policy: TransformersPolicy
    """Samples from the trained model, `policy.model`: for `evaluate`, or to play."""
    history: Sequence[Mapping[str, float]]
    """The logged metrics in order: of each generation from the first that this call made, of each evaluation, and of
    the run."""

    def save(self, folder: str | Path) -> None:
        """Write model and tokenizer, for transformers and vLLM to load.

        Raises:
            ModelError: If a weight is not finite.
        """
        self.trainer.save_model(str(folder))


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
    output_dir: str | Path | None = None,
    resume: bool = False,
    logger: Logger | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    ref_model_fn: RefModelFn | None = None,
    **settings: Any,
) -> QuickStartResult:
    """Train a model by reinforcement learning, on an environment or on prompts with a reward.

    Args:
        model_name: A folder, a name on a hub, or a loaded model (then give its tokenizer too).
        env: Id of an environment, or another form that `EnvGRPOTrainer` takes; its train split is played.
        prompts: In place of `env`: a file, rows or texts (`load_prompts`). With `reward_fn` they become
            a `PromptTask`; one prompt in five is kept for the test split.
        reward_fn: `(row, reply) -> reward`, with `prompts`.
        num_iterations: Generations to learn from.
        n_groups: Problems per generation.
        group_size: Episodes per problem, and rows of a micro-batch.
        algorithm: A name in `functional.algorithm.ALGORITHMS`, or an algorithm.
        learning_rate: AdamW's; it falls to 0 along a cosine, after a warm-up of a twentieth of the steps.
        max_turn_tokens: Maximum tokens of one turn of the model; of an episode 16 times as many, or half the
            model's context.
        output_dir: Folder for `metrics.jsonl`, episodes and checkpoints (the two latest); None: nothing is written.
        resume: Whether to resume from the latest checkpoint in `output_dir`, if there is one.
        logger: Gets the logged metrics; None prints a line.
        tokenizer: None loads the model's.
        ref_model_fn: Makes the reference of a KL, such as `load_teacher(NAME)`; None: a copy of the model as it is.
        **settings: Fields of `EnvGRPOConfig`, such as `env_kwargs`, `max_turns`, `temperature`, `seed` or
            `eval_strategy`.

    Raises:
        InvalidConfigError: If not just one of `env` and `prompts` is given, or another argument is wrong.
        ModelError: If the model cannot be loaded, or not trained on conversations.
    """
    source = _source(env, prompts, reward_fn, settings)
    if resume and output_dir is None:
        raise InvalidConfigError("resume=True needs the output_dir of the run to resume.")
    tokenizer = load_training_tokenizer(model_name, tokenizer, thinking=settings.get("thinking"))
    context = context_length(AutoConfig.from_pretrained(model_name) if isinstance(model_name, str) else model_name)
    history: list[Mapping[str, float]] = []
    loggers = [logger or console_logger(keys=SHOWN), lambda step, metrics: history.append(dict(metrics))]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()) if output_dir is None else output_dir)
        steps = _steps(num_iterations, n_groups, group_size) | {"learning_rate": learning_rate}
        turns = {"max_turn_tokens": max_turn_tokens, "max_completion_length": min(16 * max_turn_tokens, context // 2)}
        kept = _kept(folder, output_dir is not None, num_iterations)
        args = EnvGRPOConfig(**_DEFAULTS | steps | turns | kept | settings)
        trainer = EnvGRPOTrainer(
            model_name,
            source,
            args,
            algorithm=algorithm,
            ref_model_fn=ref_model_fn,
            processing_class=tokenizer,
            callbacks=[LoggerCallback(multi_logger(*loggers))],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)) if resume and folder.exists() else None)
        trainer.close()
    return QuickStartResult(trainer, trainer_policy(trainer), history)


def _source(
    env: Envs | None, prompts: PromptsLike | None, reward_fn: RewardFn | None, settings: Mapping[str, Any]
) -> Any:
    """Return the environment that is played."""
    env_kwargs = settings.get("env_kwargs")
    if env is None and prompts is not None and reward_fn is not None and not env_kwargs:
        return PromptTask(prompts, reward_fn)
    if env is None or prompts is not None or reward_fn is not None:
        named = {"env": env, "env_kwargs": env_kwargs, "prompts": prompts, "reward_fn": reward_fn}
        given = ", ".join(name for name, value in named.items() if value is not None) or "nothing"
        raise InvalidConfigError(f"{given} is given: give env and perhaps env_kwargs, or prompts and reward_fn.")
    if isinstance(env_kwargs, Mapping) and env_kwargs.get("split") == "test":
        raise InvalidConfigError("env_kwargs has split='test': that one is for measuring.")
    return env


def _steps(n_steps: int, n_groups: int, group_size: int) -> dict[str, Any]:
    """Return the settings of one step for each generation, a group in each micro-batch."""
    rows = dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size", "num_generations"), group_size)
    return {"max_steps": n_steps, "warmup_steps": n_steps // 20, "gradient_accumulation_steps": n_groups} | rows


def _kept(folder: Path, is_kept: bool, n_steps: int) -> dict[str, Any]:
    """Return the settings of what a run leaves in its folder. A killed run loses at most a tenth of its steps."""
    if not is_kept:
        return {"output_dir": str(folder), "save_strategy": "no", "save_trajectories": False}
    saved = {"save_strategy": "steps", "save_steps": max(n_steps // 10, 1), "save_total_limit": 2}
    return {"output_dir": str(folder), **saved}

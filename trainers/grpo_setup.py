"""What `EnvGRPOTrainer` checks and makes before TRL's trainer is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.registration import task_spec
from llm_envs.rollout.curriculum import Curriculum
from llm_envs.rollout.source import Envs

try:
    from datasets import Dataset
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

from llm_envs.trainers.grpo_config import EnvGRPOConfig
from llm_envs.trainers.items import Items, make_items
from llm_envs.trainers.settings import check_env_kwargs
from llm_envs.trainers.weight_sync import ColocatedEngine

__all__ = ["as_engine", "check_arguments", "check_origin", "lent", "make_splits"]


def check_arguments(env: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Say what is wrong before a model is loaded.

    Raises:
        InvalidConfigError: If `args` is of another trainer, or an argument is the environment's.
    """
    if isinstance(env, str):
        task_spec(env)
    if args is not None and not isinstance(args, EnvGRPOConfig):
        raise InvalidConfigError(f"args is a {type(args).__name__}; use EnvGRPOConfig, a GRPOConfig with what we need.")
    owned = {"reward_funcs", "train_dataset", "eval_dataset", "rollout_func", "tools", "environment_factory"}
    if taken := sorted(owned & kwargs.keys()):
        raise InvalidConfigError(
            f"{', '.join(taken)}: EnvGRPOTrainer takes these from the environment; leave them out."
        )
    wanted = {"vllm_mode": "colocate", "vllm_tensor_parallel_size": 1, "vllm_enable_sleep_mode": False}
    for name, value in wanted.items() if args is not None and args.use_vllm else ():
        if getattr(args, name) != value:
            raise InvalidConfigError(
                f"{name}={getattr(args, name)!r} is not supported here: each process has an engine of its own, awake, "
                f"on its own device. Use {name}={value!r}."
            )


def make_splits(
    env: Envs | Dataset,
    eval_env: Envs | Dataset | None,
    args: Any,
    curriculum: Curriculum | Mapping[str, Curriculum] | None,
) -> dict[str, Items]:
    """Return what each split plays; `args` are the settings of GRPO, PPO or DPO."""
    kwargs = check_env_kwargs(args.env_kwargs)
    n = args.num_train_seeds
    items = {"train": make_items(env, "train", n, seed=args.seed, env_kwargs=kwargs, curriculum=curriculum)}
    if eval_env is not None or not isinstance(env, Dataset):
        tested = env if eval_env is None else eval_env
        items["test"] = make_items(tested, "test", args.num_eval_seeds, seed=args.seed, env_kwargs=kwargs)
    return items


def as_engine(trainer: Any) -> ColocatedEngine:
    """Return the vLLM engine of a trainer, in this process."""
    args = trainer.args
    return ColocatedEngine(
        trainer.model,
        trainer.accelerator,
        trainer._tokenizer,
        seed=args.seed,
        version=lambda: trainer.state.global_step,
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        max_model_length=args.vllm_max_model_length,
        max_num_seqs=args.max_concurrency,
        model_impl=args.vllm_model_impl,
        trust_remote_code=args.trust_remote_code,
    )


@contextmanager
def lent(args: Any, **values: Any) -> Iterator[None]:
    """Let settings have other values in a block."""
    own = {name: getattr(args, name) for name in values}
    for name, value in values.items():
        setattr(args, name, value)
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(args, name, value)


def check_origin(checkpoint: str, state: Mapping[str, Any] | None, kind: str) -> None:
    """Refuse to resume from what another kind of trainer saved: its optimizer and its steps mean something else.

    Args:
        checkpoint: The folder.
        state: What our trainers write there; None: there is nothing.
        kind: "grpo" or "ppo".

    Raises:
        InvalidConfigError: If so.
    """
    if state is None:
        saved = None
    else:  # earlier versions did not say it
        by_files = "ppo" if (Path(checkpoint) / "critic").exists() else "grpo"
        saved = str(state.get("trainer") or state.get("algorithm") or by_files)
    if saved == kind or (saved, kind) == ("grpo", "ppo"):  # what lacks a critic is refused by the critic
        return
    what = "no checkpoint of this library's GRPO or PPO" if saved is None else f"a checkpoint of {saved.upper()}"
    raise InvalidConfigError(
        f"{checkpoint} is {what}, and this is {kind.upper()}: its steps, optimizer and episodes are no part of this "
        "run. To go on from its weights give the folder as the model, and train() without resume_from_checkpoint."
    )

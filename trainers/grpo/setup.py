"""Checks and helpers of `EnvGRPOTrainer`: arguments, splits, temporary settings, checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from datasets import Dataset

from llm_envs.errors import InvalidConfigError
from llm_envs.registration import task_spec
from llm_envs.rollout.workers.runner import EnvMaker, close_env
from llm_envs.sources.curriculum import Curriculum
from llm_envs.sources.source import Envs
from llm_envs.trainers.episodes.items import EpisodeDataset, make_items
from llm_envs.trainers.grpo.config import EnvGRPOConfig
from llm_envs.trainers.settings.checks import check_engine, check_env_kwargs

logger = logging.getLogger(__name__)

__all__ = [
    "check_arguments",
    "check_generation",
    "make_splits",
    "no_reward",
    "temporarily",
]


def check_arguments(env: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Reject wrong arguments before a model is loaded.

    Raises:
        InvalidConfigError: If `args` belongs to another trainer, or an argument is one that the environment provides.
    """
    if isinstance(env, str):
        task_spec(env)
    if args is not None and not isinstance(args, EnvGRPOConfig):
        raise InvalidConfigError(f"args is a {type(args).__name__}; use EnvGRPOConfig, a GRPOConfig with what we need.")
    owned = {"reward_funcs", "train_dataset", "eval_dataset", "rollout_func", "tools", "environment_factory"}
    if taken := sorted(owned & kwargs.keys()):
        raise InvalidConfigError(
            f"{', '.join(taken)}: EnvGRPOTrainer takes these from the environment; leave them out. "
            "Your own rewards are rewards=FUNCTION, or rewards=trl_reward(FUNCTION) for one of TRL's form."
        )
    if args is not None and args.use_vllm:
        check_engine(args)


def make_splits(
    env: Envs | Dataset,
    eval_env: Envs | Dataset | None,
    args: Any,
    curriculum: Curriculum | Mapping[str, Curriculum] | None,
) -> dict[str, EpisodeDataset]:
    """Return the episodes of each split. `args` are the settings of GRPO, PPO or DPO."""
    kwargs = check_env_kwargs(args.env_kwargs)
    least = int(args.generation_batch_size or 1) // int(args.num_generations or 1)
    settings = {"seed": args.seed, "env_kwargs": kwargs, "curriculum": curriculum, "least": least}
    items = {"train": make_items(env, "train", args.num_train_seeds, **settings)}
    if eval_env is not None or not isinstance(env, Dataset):
        tested = env if eval_env is None else eval_env
        items["test"] = make_items(tested, "test", None, seed=args.seed, env_kwargs=kwargs, most=args.num_eval_seeds)
        if args.eval_strategy != "no":
            _check_test_split(items["test"])
    return items


def _check_test_split(items: EpisodeDataset) -> None:
    """Reject environments without a test split now, and not at the first evaluation."""
    for choice in items.source.choices:
        try:
            close_env(EnvMaker(choice.env_id, choice.kwargs, choice.factory)())
        except InvalidConfigError as error:
            raise InvalidConfigError(
                f"{str(error).rstrip('.')}. Evaluations during training play the test split; eval_env=... replaces it, "
                "and eval_strategy='no' leaves them out."
            ) from error
        except Exception as error:  # one that cannot be made now may be an errored episode later
            logger.debug("%s was not made: %s", choice.env_id, error)


@contextmanager
def temporarily(owner: Any, **values: Any) -> Iterator[None]:
    """Change attributes inside a block and restore them afterwards; a method too."""
    own = {name: vars(owner)[name] for name in values if name in vars(owner)}
    vars(owner).update(values)
    try:
        yield
    finally:
        for name in values:
            del vars(owner)[name]
        vars(owner).update(own)


def no_reward(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
    """Stand in for TRL's reward functions, which are never called."""
    raise AssertionError("TRL asks for a reward, and `score_episodes` has the rewards")


def check_generation(checkpoint: str, saved: str | None, present: str) -> None:
    """Reject a checkpoint whose latest generation was trained by another algorithm than this run would use.

    Args:
        checkpoint: The folder.
        saved: Name of the algorithm of its latest generation; None: a former version's or TRL's, with TRL's own loss.
        present: Name of this run's algorithm for that generation.

    Raises:
        InvalidConfigError: If they differ.
    """
    if saved == present:
        return
    former = "TRL's own loss, as an earlier version had it" if saved is None else repr(saved)
    raise InvalidConfigError(
        f"{checkpoint} was learned by {former}, and in this run that generation is {present!r}'s: resume with the "
        "algorithm of the run, or begin a new run with the folder as its model."
    )

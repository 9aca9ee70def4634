"""What kinds of training a run may be: each a value that says how its trainer is made."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from peft import LoraConfig

from llm_envs.policies import TransformersPolicy
from llm_envs.rollout import RolloutLimits, collect_run
from llm_envs.trainers import (
    EnvDPOConfig,
    EnvDPOTrainer,
    EnvGRPOConfig,
    EnvGRPOTrainer,
    EnvPPOConfig,
    EnvPPOTrainer,
    load_teacher,
)
from llm_envs.trainers.functional.algorithm import ALGORITHMS, Algorithm
from llm_envs.trainers.functional.references import RefModelFn, frozen_copy
from llm_envs.trainers.functional.state_advantages import state_graph, tree_nodes
from llm_envs.trainers.functional.turn_advantages import per_turn
from llm_envs.trainers.grpo.algorithms import with_settings
from llm_envs.types import SamplingParams
from proof.runs import RUNS, Run
from proof.tasks import DATA_SEED, Task
from proof.warm import played_env

__all__ = ["KINDS", "Kind", "play_data"]

MAX_MODEL_LENGTH = 512
"""Context of a vLLM engine, in tokens."""
_OF_PLAY = (
    *("env_kwargs", "groups_per_round", "num_generations", "max_completion_length", "max_turn_tokens"),
    *("save_trajectories", "use_vllm", "vllm_max_model_length"),
)
"""Settings of a run of "dpo-offline" that say how its data set is played, and not how it is trained on."""
TREE = Algorithm(
    "tree", advantage_fn=partial(state_graph, min_visits=2, scale=True), by_state=tree_nodes, branches=0.75
)
"""Credit by branching points (docs/concepts/advantages.md): three quarters of a group continue from turns of others."""


@dataclass(frozen=True)
class Kind:
    """A trainer, as it is used."""

    make: Callable[[Run, Task, Path, dict[str, Any]], Any]
    """(run, task, folder of the warm model, fields of the configuration) -> a trainer."""
    reward: str | None = "reward"
    """What the mean reward of a step is logged as; None where training plays nothing."""
    shown: tuple[str, ...] = ("reward", "env/success")
    """Logged numbers behind the bar."""


def play_data(run: Run, task: Task, warm: Path, folder: Path, *, n_groups: int, group_size: int) -> Path:
    """Have the warm model play the train split into a folder, sampling as in training, on the run's engine.

    The seed is fixed (`DATA_SEED`): the data set is the same for every seed of the training.

    Returns:
        The folder of the collected run.
    """
    shutil.rmtree(folder, ignore_errors=True)
    policy = _open_policy(run.engine, warm)
    try:
        collected = collect_run(
            task.env,
            policy,
            out=folder,
            n_groups=n_groups,
            group_size=group_size,
            codec=policy.codec,
            env_kwargs={**task.env_kwargs, "split": "train"},
            seed=DATA_SEED,
            sampling=SamplingParams(max_new_tokens=task.max_turn_tokens),
            limits=RolloutLimits(max_completion_tokens=task.max_completion_length),
            max_concurrency=128,
        )
    finally:
        asyncio.run(policy.aclose())
    if collected.n_failed:
        raise RuntimeError(f"{collected.n_failed} episodes failed, the first with {collected.first_error}")
    return collected.path


def _open_policy(engine: str, warm: Path) -> Any:
    if engine == "transformers":
        return TransformersPolicy.from_pretrained(warm)
    from llm_envs.policies import VLLMEnginePolicy

    return VLLMEnginePolicy.from_pretrained(
        warm, seed=DATA_SEED, dtype="float32", max_model_len=MAX_MODEL_LENGTH, max_num_seqs=128
    )


def _make_grpo(run: Run, task: Task, warm: Path, settings: dict[str, Any]) -> EnvGRPOTrainer:
    algorithm = with_settings((ALGORITHMS | {"tree": TREE})[run.named], run.changes)
    if run.per_turn_gamma is not None:
        algorithm = replace(algorithm, advantage_fn=partial(per_turn, gamma=run.per_turn_gamma, scale=True))
    return EnvGRPOTrainer(
        str(warm),
        played_env(task, run.agent),
        EnvGRPOConfig(**settings),
        algorithm=algorithm,
        peft_config=_adapter(run),
        ref_model_fn=_teacher(run, Path(settings["output_dir"])),
        context_fn=task.context_fn(trained=run.trains_summaries),
    )


def _teacher(run: Run, out: Path) -> RefModelFn | None:
    """Return what loads the model of the first seed of the run's teacher; None without one."""
    if run.teacher is None:
        return None
    return load_teacher(out.parent / f"{run.teacher}-{RUNS[run.teacher].seeds[0]}" / "model")


def _adapter(run: Run) -> LoraConfig | None:
    if run.lora_rank is None:
        return None
    return LoraConfig(r=run.lora_rank, lora_alpha=2 * run.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")


def _make_switching(run: Run, task: Task, warm: Path, settings: dict[str, Any]) -> EnvGRPOTrainer:
    return EnvGRPOTrainer(str(warm), task.env, EnvGRPOConfig(**settings), algorithm=run.algorithms)


def _make_ppo_shared(run: Run, task: Task, warm: Path, settings: dict[str, Any]) -> EnvPPOTrainer:
    return EnvPPOTrainer(str(warm), task.env, EnvPPOConfig(**settings), peft_config=_adapter(run))


def _make_ppo_separate(run: Run, task: Task, warm: Path, settings: dict[str, Any]) -> EnvPPOTrainer:
    """The critic begins with the warm model's trunk."""
    return EnvPPOTrainer(str(warm), task.env, EnvPPOConfig(**settings), critic=warm)


def _make_pairwise(run: Run, task: Task, warm: Path, settings: dict[str, Any]) -> EnvGRPOTrainer:
    """The reference of the pairs' loss is the warm model, as in DPO."""
    return EnvGRPOTrainer(
        str(warm), task.env, EnvGRPOConfig(**settings), algorithm="pairwise", ref_model_fn=frozen_copy
    )


def _make_dpo_offline(run: Run, task: Task, warm: Path, settings: dict[str, Any]) -> EnvDPOTrainer:
    folder = Path(settings["output_dir"]) / "play"
    sizes = {"n_groups": settings["groups_per_round"], "group_size": settings["num_generations"]}
    config = EnvDPOConfig(**{name: value for name, value in settings.items() if name not in _OF_PLAY})
    source = play_data(run, task, warm, folder, **sizes)
    return EnvDPOTrainer(str(warm), args=config, source=source, peft_config=_adapter(run))


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "grpo": Kind(_make_grpo),
        "switching": Kind(_make_switching),
        "ppo-shared": Kind(_make_ppo_shared),
        "ppo-separate": Kind(_make_ppo_separate),
        "pairwise": Kind(_make_pairwise),
        "dpo-offline": Kind(_make_dpo_offline, reward=None, shown=("loss", "rewards/accuracies")),
    }
)

"""The trainings of `llm-envs train NAME`, also for `accelerate launch`: one function each.

llm-envs train grpo --env llm/Calculator-v0 --model DIR --out runs/grpo --max-steps 20
llm-envs train sft --config run.yaml --learning-rate 1e-5                  # options win over the file
accelerate launch -m llm_envs.trainers.cli.commands ppo --env ...             # on many processes

The options are the fields of the trainer's settings, of TRL's `ModelConfig` (`--use-peft`, `--lora-r`, `--dtype`, ...)
and of the training's dataclass here. Exit codes are the same as for `llm-envs`: 1 for a failure, 2 for wrong arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl import ModelConfig

from llm_envs.cli.arguments import check_one
from llm_envs.cli.main import main as cli
from llm_envs.cli.room_options import hooks
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.vllm.http import API_KEY
from llm_envs.trainers.cli.ending import run_training
from llm_envs.trainers.cli.parser import (
    ENV,
    check_model,
    loading,
    model_arguments,
    parse,
    read_algorithm,
    read_environment,
    read_played,
    read_rewards,
)
from llm_envs.trainers.cli.sft_rl import main as sft_rl
from llm_envs.trainers.dpo.trainer import EnvDPOConfig, EnvDPOTrainer
from llm_envs.trainers.forward.teacher import load_teacher
from llm_envs.trainers.functional.algorithm import ALGORITHMS, PPO, Algorithm
from llm_envs.trainers.grpo.algorithms import with_settings
from llm_envs.trainers.grpo.trainer import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.ppo.trainer import EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.run.checkpoints import check_unused, resume_point
from llm_envs.trainers.sft.trainer import EnvSFTConfig, EnvSFTTrainer

__all__ = [
    "KINDS",
    "TRAININGS",
    "DPOArguments",
    "GRPOArguments",
    "PPOArguments",
    "SFTArguments",
    "dpo",
    "grpo",
    "main",
    "ppo",
    "sft",
    "sft_rl",
]

CRITIC_CARD = "critic.json"
"""File in the folder of a saved critic. A value head has no config.json."""
_ALGORITHM_SETTINGS: dict[str, Any] = {
    "help": 'Fields of the algorithm to change, as a JSON object: \'{"kl_coef": 0.04, "kl_in": "reward"}\'. kl_coef '
    "may be a schedule (linear:FIRST:LAST, cosine:FIRST:LAST, adaptive:INITIAL:TARGET); kl_fn is a name (k1, k2, ...)."
}
_REWARDS: dict[str, Any] = {
    "help": "FILE.py:NAME of your rewards, which are added to the task's: a reward function, a list or a mapping of "
    "them, or a RewardSettings."
}
_DRY_RUN: dict[str, Any] = {
    "help": "Say what would be done (geometry, budgets, what is trained of an episode) and do not train."
}


@dataclass
class GRPOArguments:
    """The environment, and the algorithm."""

    env: str | None = field(default=None, metadata=ENV)
    algorithm: str | None = field(
        default=None,
        metadata={
            "help": f"A published algorithm: {', '.join(ALGORITHMS)}. Or FILE.py:NAME of your own "
            "Algorithm. Left out: what loss_type, beta, epsilon, ... say."
        },
    )
    rewards: str | None = field(default=None, metadata=_REWARDS)
    algorithm_settings: str | None = field(default=None, metadata=_ALGORITHM_SETTINGS)
    teacher: str | None = field(
        default=None,
        metadata={
            "help": "The reference of the algorithm's KL: a folder or a name on a hub, of any size with the model's "
            "tokenizer, or the URL of a vLLM server. For distill and distill_loss, or any algorithm with a kl_coef. "
            "Left out: the model as it is."
        },
    )
    dry_run: bool = field(default=False, metadata=_DRY_RUN)


@dataclass
class PPOArguments:
    """The environment, and the critic."""

    env: str | None = field(default=None, metadata=ENV)
    critic: str | None = field(
        default=None,
        metadata={
            "help": "A folder or a name on a hub: a critic with a trunk of its own and the policy's tokenizer, or "
            "a critic that a run saved. Left out: a value head on the policy's trunk."
        },
    )
    rewards: str | None = field(default=None, metadata=_REWARDS)
    algorithm_settings: str | None = field(default=None, metadata=_ALGORITHM_SETTINGS)
    dry_run: bool = field(default=False, metadata=_DRY_RUN)


@dataclass
class DPOArguments:
    """The source of the pairs."""

    source: str | None = field(
        default=None,
        metadata={
            "help": "A saved data set: the folder of a run, exported pairs, JSONL, ... Pairs from play: train grpo "
            "--algorithm pairwise."
        },
    )
    eval_source: str | None = field(
        default=None, metadata={"help": "A data set whose pairs are evaluated on and not trained."}
    )
    dry_run: bool = field(default=False, metadata=_DRY_RUN)


@dataclass
class SFTArguments:
    """The source of the training data: an environment's oracle, or a saved data set. An agent has no oracle."""

    env: str | None = field(default=None, metadata=ENV)
    source: str | None = field(
        default=None,
        metadata={
            "help": "In place of --env, whose oracle plays, a saved data set: the folder of a run, a JSONL file of "
            "conversations, ... --best-of and --min-reward choose among its episodes."
        },
    )
    dry_run: bool = field(default=False, metadata=_DRY_RUN)


KINDS: dict[str, tuple[type, ...]] = {
    "sft": (SFTArguments, EnvSFTConfig, ModelConfig),
    "grpo": (GRPOArguments, EnvGRPOConfig, ModelConfig, *hooks("TrainingOptions")),
    "ppo": (PPOArguments, EnvPPOConfig, ModelConfig, *hooks("TrainingOptions")),
    "dpo": (DPOArguments, EnvDPOConfig, ModelConfig),
}
"""Training -> the dataclasses of its options."""


def grpo(arguments: Sequence[str]) -> int:
    """Train by GRPO; return the exit code. `--help` lists every setting."""
    chosen, args, model, *others = parse("grpo", KINDS["grpo"], arguments)
    algorithm = _algorithm(read_algorithm(chosen.algorithm), chosen)
    env, name = read_played(chosen.env, others), check_model(model.model_name_or_path)
    further = model_arguments(model, args) | {"rewards": read_rewards(chosen.rewards)}
    if (teacher := chosen.teacher) is not None:
        is_served = teacher.startswith(("http://", "https://"))
        key = os.environ.get(API_KEY)
        further["ref_model_fn"] = load_teacher(teacher if is_served else check_model(teacher, "--teacher"), api_key=key)
    begun = _begin(args, "GRPO", chosen, model)
    with loading(model=name, teacher=teacher):
        trainer = EnvGRPOTrainer(name, env, args, algorithm=algorithm, **further)
    return run_training(trainer, *begun, is_dry=chosen.dry_run)


def ppo(arguments: Sequence[str]) -> int:
    """Train by PPO; return the exit code. `--help` lists every setting."""
    chosen, args, model, *others = parse("ppo", KINDS["ppo"], arguments)
    env, name = read_played(chosen.env, others), check_model(model.model_name_or_path)
    algorithm = None if chosen.algorithm_settings is None else _algorithm(PPO, chosen)
    further: dict[str, Any] = {"algorithm": algorithm, "rewards": read_rewards(chosen.rewards)} | model_arguments(
        model, args
    )
    critic = chosen.critic and check_model(chosen.critic, "--critic", marks=("config.json", CRITIC_CARD))
    begun = _begin(args, "PPO", chosen, model)
    with loading(model=name, critic=critic):
        trainer = EnvPPOTrainer(name, env, args, critic=critic, **further)
    return run_training(trainer, *begun, is_dry=chosen.dry_run)


def dpo(arguments: Sequence[str]) -> int:
    """Train by DPO on the pairs of a saved data set; return the exit code. `--help` lists every setting."""
    chosen, args, model = parse("dpo", KINDS["dpo"], arguments)
    check_one({"--source": chosen.source})
    name = check_model(model.model_name_or_path)
    begun = _begin(args, "DPO", chosen, model)
    if chosen.dry_run:
        args.precompute_ref_log_probs = False  # a dry run must not write files
    sources = {"source": chosen.source, "eval_source": chosen.eval_source}
    with loading(model=name):
        trainer = EnvDPOTrainer(name, args, **sources, **model_arguments(model, args))
    return run_training(trainer, *begun, is_dry=chosen.dry_run)


def sft(arguments: Sequence[str]) -> int:
    """Train on the oracle's episodes or a saved data set; return the exit code. `--help` lists every setting."""
    chosen, args, model = parse("sft", KINDS["sft"], arguments)
    check_one({"--env": chosen.env, "--source": chosen.source})
    name = check_model(model.model_name_or_path)
    begun = _begin(args, "SFT", chosen, model)
    env, further = read_environment(chosen.env), model_arguments(model, args)
    with loading(model=name):
        trainer = EnvSFTTrainer(name, env, args, source=chosen.source, **further)
    return run_training(trainer, *begun, is_dry=chosen.dry_run)


TRAININGS: dict[str, Callable[[Sequence[str]], int]] = {
    "sft": sft,
    "grpo": grpo,
    "ppo": ppo,
    "dpo": dpo,
    "sft-rl": sft_rl,
}


def _algorithm(algorithm: Algorithm | None, chosen: Any) -> Algorithm | None:
    """Return the algorithm with the options' settings; None: the algorithm of TRL's settings."""
    if chosen.algorithm_settings is None:
        return algorithm
    if algorithm is None:
        raise InvalidConfigError("--algorithm-settings changes an algorithm: give --algorithm too.")
    return with_settings(algorithm, chosen.algorithm_settings)


def _begin(args: Any, algorithm: str, chosen: Any, model: ModelConfig) -> tuple[str | None, bool]:
    """Return, before anything is loaded, the checkpoint to resume from or None, and whether the folder exists."""
    checkpoint = resume_point(args, algorithm, model.lora_r if model.use_peft else None)
    if checkpoint is None and not chosen.dry_run:
        check_unused(args.output_dir)
    return checkpoint, Path(args.output_dir).exists()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a training by name, as `llm-envs train` does; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        print(f"llm-envs: error: name one of {', '.join(TRAININGS)}, then its arguments.", file=sys.stderr)
        return 2
    return cli(["train", *given])


if __name__ == "__main__":
    sys.exit(main())

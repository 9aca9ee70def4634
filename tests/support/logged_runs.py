"""Small runs of everything that logs, each of which returns the names that it logged."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from datasets import Dataset
from dense_env import DenseEnv
from families import family_tokenizer
from tiny_folders import save_tiny

from llm_envs.chat import ChatCodec
from llm_envs.data import sft_rows
from llm_envs.policies import OraclePolicy, TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.rewards import create_step_cost
from llm_envs.rollout import Collector, Curriculum, EnvChoice
from llm_envs.rollout.filters import create_spread_filter
from llm_envs.spaces import TextSpace
from llm_envs.tiny_model import tiny_model
from llm_envs.types import SamplingParams, ToolResult, Trajectory

SMALL: dict[str, Any] = {
    "max_steps": 2,
    "per_device_train_batch_size": 16,
    "learning_rate": 1e-2,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
PLAYED: dict[str, Any] = {"max_completion_length": 80, "max_turn_tokens": 6, "num_train_seeds": 64, "num_eval_seeds": 4}
MEASURED: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}

RUNS: dict[str, Callable[[str, Path], set[str]]] = {}
"""Name of a run -> what it logs, given a tiny model's folder and one to write into."""


def register(run: Callable[[str, Path], set[str]]) -> Callable[[str, Path], set[str]]:
    """Add a run."""
    RUNS[run.__name__] = run
    return run


class EventfulEnv(gym.Env[str, str]):
    """Two turns of everything that is counted: components, tools that fail or not, limits, errors, levels."""

    observation_space = action_space = TextSpace()

    def __init__(self, split: str = "train", difficulty: str = "easy") -> None:
        self.split, self.n_turns = split, 0
        self.tool_results: tuple[ToolResult, ...] = ()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.n_turns, self.tool_results = 0, ()
        return f"Say {self.np_random.integers(1000)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.n_turns += 1
        value = sum(map(ord, action)) % 17
        if value == 16:
            raise ConnectionError("the tool's server is gone")
        self.tool_results = (ToolResult("hash", {}, str(value), value % 2 == 0, 0.0),)
        cut = self.n_turns == 2 and value % 3 == 0
        info = {"reward_components": {"hash": value / 17}, "is_success": value > 8}
        return "Go on.", value / 17, self.n_turns == 2 and not cut, cut, info


DENSE = EnvChoice("dense", factory=DenseEnv)
EVENTFUL = EnvChoice("eventful", factory=EventfulEnv)


def make_model(folder: Path, *, hidden_size: int = 32) -> str:
    """Save a tiny model whose every byte is a token."""
    return str(save_tiny(folder, hidden_size=hidden_size, n_heads=2, max_length=192, seed=3))


def logged(trainer: Any) -> set[str]:
    """Train; return the names of all entries."""
    try:
        trainer.train()
    finally:
        if hasattr(trainer, "close"):
            trainer.close()
    return {name for entry in trainer.state.log_history for name in entry} - {"step"}


def episodes(model: str, n_groups: int, group_size: int = 4) -> list[Trajectory]:
    """Play with a tiny model."""
    policy = TransformersPolicy(load_model(model), load_tokenizer(model))
    sampling = SamplingParams(max_new_tokens=6)
    with Collector(DENSE, policy, codec=policy.codec, sampling=sampling, progress=False) as collector:
        return [t for group in collector.collect(n_groups, group_size) for t in group]


def train_grpo(model: str, out: Path, settings: Mapping[str, Any], env: Any = DENSE, **hooks: Any) -> set[str]:
    """Train two steps by GRPO."""
    from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

    args = EnvGRPOConfig(**{**SMALL, **PLAYED, "num_generations": 4, "output_dir": str(out), **settings})
    return logged(EnvGRPOTrainer(model, env, args, **hooks))


@register
def sft(model: str, out: Path) -> set[str]:
    from llm_envs.trainers import EnvSFTConfig, EnvSFTTrainer

    codec = ChatCodec(load_tokenizer(model))
    with Collector("llm/Arithmetic-v0", OraclePolicy(), codec=codec, progress=False) as collector:
        played = [t for group in collector.collect(8) for t in group]
    counted = {"include_num_input_tokens_seen": "all", "max_length": 4096}
    args = EnvSFTConfig(**{**SMALL, **MEASURED, **counted, "output_dir": str(out)})
    return logged(EnvSFTTrainer(model, args=args, source=played, eval_dataset=Dataset.from_list(sft_rows(played))))


@register
def grpo_with_everything(model: str, out: Path) -> set[str]:
    """A mixture, a curriculum, forks, a KL, an entropy bonus, columns, a filter, evaluation."""
    from llm_envs.trainers import RewardSettings

    settings = {"beta": 0.05, "entropy_coef": 0.01, "loss_type": "dapo", **MEASURED}
    return train_grpo(
        model,
        out,
        settings,
        [DENSE, EVENTFUL],
        eval_env=[DENSE, EVENTFUL],
        curriculum={"eventful": Curriculum(["easy", "hard"], min_episodes=1)},
        context_fn=_last_only,
        rewards=RewardSettings(
            reward_fns={"length": lambda trajectory: float(trajectory.n_sampled_tokens)},
            shaping_fns={"cost": create_step_cost(0.1)},
        ),
        group_filter=create_spread_filter(),
    )


@register
def grpo_with_alarm(model: str, out: Path) -> set[str]:
    """An alarm for reward hacking, whose reference is the first step."""
    from llm_envs.evaluation.hacking import AlarmSettings
    from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
    from llm_envs.trainers.grpo.alarm import RewardHackingAlarm

    settings = {**SMALL, **PLAYED, "max_steps": 3, "beta": 0.05, "num_generations": 4, "output_dir": str(out)}
    trainer = EnvGRPOTrainer(model, DENSE, EnvGRPOConfig(**settings))
    trainer.add_callback(RewardHackingAlarm(trainer, lambda t: 0.0, AlarmSettings(reference_steps=1)))
    return logged(trainer)


@register
def grpo_that_switches(model: str, out: Path) -> set[str]:
    """An algorithm by schedule, one of them on pairs, a KL by schedule, and a reference that moves."""
    from llm_envs.trainers.functional.algorithm import GRPO
    from llm_envs.trainers.functional.references import create_ema_update, frozen_copy
    from llm_envs.trainers.schedules import create_linear

    return train_grpo(
        model,
        out,
        {"max_steps": 3, **MEASURED},
        algorithm={0: replace(GRPO, kl_coef=create_linear(0.1, 0.05)), 1: "pairwise"},
        ref_model_fn=frozen_copy,
        reference_update_fn=create_ema_update(0.5),
    )


@register
def grpo_cispo(model: str, out: Path) -> set[str]:
    return train_grpo(model, out, {"loss_type": "cispo", "epsilon_high": 3.0, **MEASURED})


@register
def grpo_aggregated_components(model: str, out: Path) -> set[str]:
    from llm_envs.trainers import RewardSettings

    rewards = RewardSettings(components=True, aggregate="relative")
    return train_grpo(model, out, {"max_steps": 1}, EVENTFUL, rewards=rewards)


@register
def grpo_by_name(model: str, out: Path) -> set[str]:
    """One step of each algorithm."""
    from llm_envs.trainers import load_teacher
    from llm_envs.trainers.functional.algorithm import ALGORITHMS

    found: set[str] = set()
    for name, algorithm in ALGORITHMS.items():
        reference = {"ref_model_fn": load_teacher(model)} if algorithm.needs_teacher else {}
        found |= train_grpo(model, out / name, {"max_steps": 1}, algorithm=name, **reference)
    return found


@register
def ppo(model: str, out: Path) -> set[str]:
    from llm_envs.trainers import EnvPPOConfig, EnvPPOTrainer

    terms = {"beta": 0.05, "entropy_coef": 0.01}
    args = EnvPPOConfig(**{**SMALL, **PLAYED, **MEASURED, **terms, "output_dir": str(out)})
    curriculum = {"eventful": Curriculum(["easy", "hard"], min_episodes=1)}
    further = {"curriculum": curriculum, "context_fn": _last_only, "reference_update_fn": _ema()}
    return logged(EnvPPOTrainer(model, [DENSE, EVENTFUL], args, **further))


@register
def ppo_bootstrapped(model: str, out: Path) -> set[str]:
    from llm_envs.trainers import EnvPPOConfig, EnvPPOTrainer

    cut = {"max_turns": 1, "bootstrap_truncated": True, "gamma": 0.9, "value_learning_rate": 1e-2}
    return logged(
        EnvPPOTrainer(model, DENSE, EnvPPOConfig(**{**SMALL, **PLAYED, **MEASURED, **cut, "output_dir": str(out)}))
    )


@register
def dpo(model: str, out: Path) -> set[str]:
    from llm_envs.trainers import EnvDPOConfig, EnvDPOTrainer

    played = episodes(model, 8)
    args = EnvDPOConfig(**{**SMALL, **MEASURED, "output_dir": str(out), "per_device_train_batch_size": 2})
    return logged(EnvDPOTrainer(model, args, source=played, eval_source=played, reference_update_fn=_ema()))


@register
def loop(model: str, out: Path) -> set[str]:
    """Two algorithms on one state: one on tokens, with all of its terms, one on pairs."""
    from llm_envs.trainers.functional.algorithm import GRPO, PAIRWISE
    from llm_envs.trainers.functional.references import frozen_copy
    from llm_envs.trainers.loop import create_eval_fn, create_training_state, hold_out, train

    policy = TransformersPolicy(load_model(model), load_tokenizer(model))
    settings: dict[str, Any] = {"codec": policy.codec, "sampling": SamplingParams(max_new_tokens=6), "progress": False}
    played, kept = hold_out(EVENTFUL, share=0.2)
    own = replace(GRPO, kl_coef=0.02, entropy_coef=0.01)
    found: set[str] = set()
    measure = create_eval_fn(kept, policy, n=4, **settings)
    with Collector(played, policy, context_fn=_last_only, **settings) as collector:
        state = create_training_state(policy.model, learning_rate=1e-3, ref_model_fn=frozen_copy)
        train(
            state,
            collector,
            n_iterations=1,
            n_groups=4,
            group_size=4,
            algorithm=replace(own, normalisation="token"),
            eval_fn=lambda state: measure(state) | {"own": 1.0},
            eval_every=1,
            logger=lambda step, metrics: found.update(metrics),
        )
    with Collector(played, policy, **settings) as collector:
        state = create_training_state(policy.model, learning_rate=1e-3, ref_model_fn=frozen_copy)
        logger: Any = lambda step, metrics: found.update(metrics)  # noqa: E731  (one line, used once)
        train(state, collector, n_iterations=1, n_groups=4, group_size=4, algorithm=PAIRWISE, logger=logger)
    return found


@register
def stock_trl_rollout_func(model: str, out: Path) -> set[str]:
    from trl import GRPOConfig, GRPOTrainer

    from llm_envs.trainers.stock_trl import env_reward, episode_dataset, rollout_func

    rollout = rollout_func(DENSE)
    terms = {"beta": 0.05, "entropy_coef": 0.01, "bf16": False}
    args = GRPOConfig(**SMALL, **terms, output_dir=str(out), num_generations=4, max_completion_length=80)
    trainer = GRPOTrainer(model, env_reward, args, episode_dataset(DENSE, 8), rollout_func=rollout)
    try:
        return logged(trainer)
    finally:
        rollout.close()


@register
def stock_trl_environment_factory(model: str, out: Path) -> set[str]:
    from trl import GRPOConfig, GRPOTrainer

    from llm_envs.trainers.stock_trl import env_reward, environment_factory, prompt_dataset

    # TRL must know the chat template, and the model have room for the tool's description.
    folder = out / "long"
    tokenizer = family_tokenizer("qwen3_instruct_2507")
    tiny_model(tokenizer, hidden_size=32, n_heads=2, max_length=4096, seed=3).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    task = "llm/Calculator-v0"
    changes = {"max_steps": 1, "per_device_train_batch_size": 4, "output_dir": str(out), "bf16": False}
    args = GRPOConfig(**{**SMALL, **MEASURED, **changes}, num_generations=4, max_completion_length=8)
    played, kept = (prompt_dataset(task, 4, seed=7, split=split) for split in ("train", "test"))
    factory = environment_factory(task)
    return logged(GRPOTrainer(str(folder), env_reward, args, played, kept, environment_factory=factory))


@register
def grpo_of_experts(model: str, out: Path) -> set[str]:
    """A mixture of experts that balances their load."""
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

    tokenizer = load_tokenizer(model)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_experts": 4}
    sizes |= {"shared_expert_intermediate_size": 16, "num_experts_per_tok": 2, "num_hidden_layers": 1}
    config = Qwen2MoeConfig(
        vocab_size=len(tokenizer),
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=192,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **sizes,
    )
    settings = {**SMALL, **PLAYED, **MEASURED, "max_steps": 1, "num_generations": 4, "output_dir": str(out)}
    made = Qwen2MoeForCausalLM(config)
    return logged(EnvGRPOTrainer(made, DENSE, EnvGRPOConfig(**settings), processing_class=tokenizer))


def played_by_command(command: str, out: Path) -> set[str]:
    """Have the oracle play two tasks, with a file as tracker; return what is in the file."""
    from llm_envs.cli.main import main
    from llm_envs.tracking import read_metrics

    arguments = [command, "llm/Calculator-v0", "llm/GuessNumber-v0", "--policy", "oracle", "-n", "4", "--out", str(out)]
    further = ["--difficulty", "easy,hard", "-k", "2"] if command == "eval" else []
    assert main([*arguments, *further, "--report-to", "jsonl"]) in (0, None)
    return {name for record in read_metrics(out / "metrics.jsonl") for name in record} - {"step"}


@register
def collect_command(model: str, out: Path) -> set[str]:
    return played_by_command("collect", out)


@register
def eval_command(model: str, out: Path) -> set[str]:
    return played_by_command("eval", out)


def _last_only(messages: Any) -> Any:
    """See the task and the last thing said: every turn is a row of its own."""
    return [messages[0], messages[-1]] if len(messages) > 1 else messages


def _ema() -> Any:
    from llm_envs.trainers.functional.references import create_ema_update

    return create_ema_update(0.5)


def all_names(runs: Iterable[str], model: str) -> dict[str, set[str]]:
    """Run several; return what each logged."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        return {name: RUNS[name](model, Path(folder) / name) for name in runs}

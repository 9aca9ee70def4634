"""Small settings for tests of trainings, an environment, and ways to compare weights and logs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from dense_env import DenseEnv
from device import rounding
from transformers import LlamaConfig, LlamaForCausalLM

from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.rollout import Collector, EnvChoice
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import (
    EnvDPOConfig,
    EnvDPOTrainer,
    EnvGRPOConfig,
    EnvGRPOTrainer,
    EnvPPOConfig,
    EnvPPOTrainer,
    EnvSFTConfig,
    EnvSFTTrainer,
)
from llm_envs.types import SamplingParams, Trajectory, TrajectoryGroup

TRAINERS: dict[str, tuple[Any, Any]] = {
    "sft": (EnvSFTTrainer, EnvSFTConfig),
    "grpo": (EnvGRPOTrainer, EnvGRPOConfig),
    "ppo": (EnvPPOTrainer, EnvPPOConfig),
    "dpo": (EnvDPOTrainer, EnvDPOConfig),
}
QUIET: dict[str, Any] = {
    "gradient_checkpointing": False,
    "bf16": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
"""Settings of every trainer: float32 (TRL's default is bfloat16 wherever there is a card), each step logged."""
PLAYED: dict[str, Any] = {"max_completion_length": 80, "max_turn_tokens": 8, "num_train_seeds": 64}
"""Settings of trainers that play."""
DENSE = EnvChoice("dense", factory=DenseEnv)


class CoinEnv(DenseEnv):
    """In every second problem all replies earn the same."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.is_flat = seed is not None and seed % 2 == 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        return observation, 0.5 if self.is_flat else reward, *rest


COIN = EnvChoice("coin", factory=CoinEnv)


def last_only(messages: Any) -> Any:
    """See the task and the last thing said, so that each turn has a separate row."""
    return [messages[0], messages[-1]] if len(messages) > 1 else messages


def trained(trainer: Any) -> dict[str, torch.Tensor]:
    """Train; return a copy of the weights."""
    trainer.train()
    return copy.deepcopy(trainer.model.state_dict())


def logged(trainer: Any, name: str) -> list[float]:
    """Return what was logged under a name, in order."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], atol: float = 1e-6) -> None:
    """Require equal weights, up to a tolerance on the CPU."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=rounding(atol))


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of two weights."""
    return max((other[name] - value).abs().max().item() for name, value in one.items())


def save_sharp(folder: Any) -> str:
    """Save a model far from the uniform distribution, so that filters have an effect."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, hidden_size=64, n_heads=2, max_length=192, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def save_biased(folder: Any, n_layers: int = 1, **settings: Any) -> str:
    """Save a model whose attention has biases."""
    tokenizer = tiny_tokenizer()
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "max_position_embeddings": 256}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_hidden_layers=n_layers, attention_bias=True, **sizes, **ids, **settings
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def play_filtered(folder: str, sampling: SamplingParams) -> list[TrajectoryGroup]:
    """Let a saved model play two groups of four episodes."""
    policy = TransformersPolicy(load_model(folder), load_tokenizer(folder))
    with Collector(DENSE, policy, codec=policy.codec, sampling=sampling, progress=False) as collector:
        groups = collector.collect(2, group_size=4)
    return [TrajectoryGroup(group.group_id, "dense", 0, tuple(group)) for group in groups]


def spy_on_episodes(trainer: Any) -> list[list[Trajectory]]:
    """Keep the episodes of each generation from now on."""
    kept: list[list[Trajectory]] = []
    play = trainer._play

    def keep(inputs: Any) -> Any:
        generation = play(inputs)
        kept.append(list(generation.episodes.trajectories))
        return generation

    trainer._play = keep
    return kept

"""GRPO on environments: a subclass of TRL's `GRPOTrainer`."""

from __future__ import annotations

from llm_envs.trainers.grpo.trainer import EnvGRPOConfig, EnvGRPOTrainer

__all__ = ["EnvGRPOConfig", "EnvGRPOTrainer"]

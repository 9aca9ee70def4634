"""PPO on environments: GRPO's trainer with a critic."""

from __future__ import annotations

from llm_envs.trainers.ppo.trainer import EnvPPOConfig, EnvPPOTrainer

__all__ = ["EnvPPOConfig", "EnvPPOTrainer"]

"""DPO on pairs of episodes, stored or played: a subclass of TRL's `DPOTrainer`."""

from __future__ import annotations

from llm_envs.trainers.dpo.trainer import EnvDPOConfig, EnvDPOTrainer

__all__ = ["EnvDPOConfig", "EnvDPOTrainer"]

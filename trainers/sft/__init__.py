"""Supervised fine-tuning on episodes: a subclass of TRL's `SFTTrainer`."""

from __future__ import annotations

from llm_envs.trainers.sft.trainer import EnvSFTConfig, EnvSFTTrainer, oracle_trajectories

__all__ = ["EnvSFTConfig", "EnvSFTTrainer", "oracle_trajectories"]

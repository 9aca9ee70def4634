"""Learning from collected trajectories, imported as `llm_envs.trainers`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_envs.trainers.bridge.credit import RewardSettings
    from llm_envs.trainers.dpo import EnvDPOConfig, EnvDPOTrainer
    from llm_envs.trainers.grpo import EnvGRPOConfig, EnvGRPOTrainer
    from llm_envs.trainers.ppo import EnvPPOConfig, EnvPPOTrainer
    from llm_envs.trainers.sft import EnvSFTConfig, EnvSFTTrainer

__all__ = [
    "EnvDPOConfig",
    "EnvDPOTrainer",
    "EnvGRPOConfig",
    "EnvGRPOTrainer",
    "EnvPPOConfig",
    "EnvPPOTrainer",
    "EnvSFTConfig",
    "EnvSFTTrainer",
    "RewardSettings",
]

if __name__ != "llm_envs.trainers":
    raise ImportError(
        f"this folder was imported as {__name__!r}: import llm_envs.trainers instead (the checkout's root is on "
        "sys.path, and a folder there shadows its real name)."
    )

# Loaded when first asked for: each needs torch, TRL or a server's client.
_LAZY = {
    "EnvDPOConfig": "llm_envs.trainers.dpo",
    "EnvDPOTrainer": "llm_envs.trainers.dpo",
    "EnvGRPOConfig": "llm_envs.trainers.grpo",
    "EnvGRPOTrainer": "llm_envs.trainers.grpo",
    "EnvPPOConfig": "llm_envs.trainers.ppo",
    "EnvPPOTrainer": "llm_envs.trainers.ppo",
    "EnvSFTConfig": "llm_envs.trainers.sft",
    "EnvSFTTrainer": "llm_envs.trainers.sft",
    "RewardSettings": "llm_envs.trainers.bridge.credit",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)

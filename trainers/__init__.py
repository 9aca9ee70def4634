"""Learning from collected trajectories, imported as `llm_envs.trainers`."""

from __future__ import annotations

import importlib
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from llm_envs.errors import MissingExtraError

if TYPE_CHECKING:
    from llm_envs.trainers.dpo import EnvDPOConfig, EnvDPOTrainer
    from llm_envs.trainers.episodes.rewards import RewardSettings
    from llm_envs.trainers.forward.teacher import load_teacher
    from llm_envs.trainers.grpo import EnvGRPOConfig, EnvGRPOTrainer
    from llm_envs.trainers.grpo.quickstart import QuickStartResult, quick_start_training
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
    "QuickStartResult",
    "RewardSettings",
    "load_teacher",
    "quick_start_training",
]

if __name__ != "llm_envs.trainers":
    raise ImportError(
        f"this folder was imported as {__name__!r}: import llm_envs.trainers instead (the checkout's root is on "
        "sys.path, and a folder there shadows its real name)."
    )

# Checked here once, so that the modules below can import these packages plainly.
for _name in ("torch", "transformers", "accelerate", "datasets", "trl"):
    if find_spec(_name) is None:
        raise MissingExtraError(f"training needs {_name}: pip install 'llm-envs[train]'.")

# A name that TRL and PEFT use; users cannot do anything about it.
warnings.filterwarnings("ignore", r"`(is_)?gradient_checkpointing\w*` is deprecated", FutureWarning)

# Loaded when first asked for, because TRL takes seconds to import.
_LAZY = {
    "llm_envs.trainers.dpo": ("EnvDPOConfig", "EnvDPOTrainer"),
    "llm_envs.trainers.episodes.rewards": ("RewardSettings",),
    "llm_envs.trainers.forward.teacher": ("load_teacher",),
    "llm_envs.trainers.grpo": ("EnvGRPOConfig", "EnvGRPOTrainer"),
    "llm_envs.trainers.grpo.quickstart": ("QuickStartResult", "quick_start_training"),
    "llm_envs.trainers.ppo": ("EnvPPOConfig", "EnvPPOTrainer"),
    "llm_envs.trainers.sft": ("EnvSFTConfig", "EnvSFTTrainer"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

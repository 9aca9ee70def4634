"""The plain training loop, without TRL."""

from __future__ import annotations

from llm_envs.trainers.loop.held_out import HeldOutEnv, create_eval_fn, hold_out, is_held_out
from llm_envs.trainers.loop.run import EvalFn, IterationHook, WeightSyncFn, train, training_iteration
from llm_envs.trainers.loop.sharing import share_adapter, share_weights
from llm_envs.trainers.loop.state import (
    TrainingState,
    best_checkpoint,
    create_checkpoint_fn,
    create_optimizer_step,
    create_training_state,
    latest_checkpoint,
    load_training_state,
    save_training_state,
)
from llm_envs.trainers.loop.step import LoopSettings, training_step

__all__ = [
    "EvalFn",
    "HeldOutEnv",
    "IterationHook",
    "LoopSettings",
    "TrainingState",
    "WeightSyncFn",
    "best_checkpoint",
    "create_checkpoint_fn",
    "create_eval_fn",
    "create_optimizer_step",
    "create_training_state",
    "hold_out",
    "is_held_out",
    "latest_checkpoint",
    "load_training_state",
    "save_training_state",
    "share_adapter",
    "share_weights",
    "train",
    "training_iteration",
    "training_step",
]

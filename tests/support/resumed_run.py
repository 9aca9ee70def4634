"""A small GRPO run that kills itself on demand: `python resumed_run.py MODEL OUT KILL_AT`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from device import exact_kernels
from trainings import DENSE, QUIET
from transformers import TrainerCallback

from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer


class Kill(TrainerCallback):
    """Leave without a word at the end of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(model: str, out: str, *, kill_at: int = 0, resume: str | None = None) -> None:
    """Train ten steps with a checkpoint after five."""
    args = EnvGRPOConfig(
        output_dir=out,
        max_steps=10,
        **QUIET | {"save_strategy": "steps", "save_steps": 5},
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=64,
        max_turn_tokens=12,
        num_train_seeds=64,
        beta=0.02,
        seed=3,
    )
    trainer = EnvGRPOTrainer(model, DENSE, args, callbacks=[Kill(kill_at)])
    try:
        trainer.train(resume_from_checkpoint=resume)
    finally:
        trainer.close()


if __name__ == "__main__":
    with exact_kernels():
        train(sys.argv[1], sys.argv[2], kill_at=int(sys.argv[3]))

"""A small run of the functional loop that kills itself on demand: `python looped_run.py MODEL OUT KILL_AT`."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from dense_env import DenseEnv
from device import exact_kernels
from transformers import get_scheduler

from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.rollout import Collector, EnvChoice, RolloutLimits
from llm_envs.tracking import jsonl_logger
from llm_envs.trainers.functional.algorithm import GRPO
from llm_envs.trainers.functional.references import KLTriggeredUpdate, frozen_copy
from llm_envs.trainers.loop import (
    LoopSettings,
    TrainingState,
    create_checkpoint_fn,
    create_eval_fn,
    create_training_state,
    hold_out,
    load_training_state,
    train,
)
from llm_envs.types import SamplingParams


def start_run(model: str, out: str, *, kill_at: int = 0, resume: str | None = None) -> TrainingState:
    """Train ten iterations of two steps, with a checkpoint after each fifth."""
    policy = TransformersPolicy(load_model(model), load_tokenizer(model))
    settings: dict[str, Any] = {
        "codec": policy.codec,
        "sampling": SamplingParams(max_new_tokens=8),
        "limits": RolloutLimits(max_completion_tokens=64),
        "progress": False,
    }
    played, kept = hold_out(EnvChoice("dense", factory=DenseEnv), share=0.2)
    state = create_training_state(
        policy.model,
        learning_rate=3e-3,
        schedule=partial(get_scheduler, "cosine", num_warmup_steps=3, num_training_steps=20),
        ref_model_fn=frozen_copy,
        seed=3,
    )
    if resume is not None:
        state = load_training_state(resume, state)

    def hook(state: TrainingState, groups: object, metrics: object) -> None:
        if state.iteration == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with Collector(played, policy, seed=3, **settings) as collector:
        return train(
            state,
            collector,
            n_iterations=10,
            n_groups=4,
            group_size=4,
            algorithm=dataclasses.replace(GRPO, kl_coef=0.02),
            settings=LoopSettings(n_minibatches=2, micro_batch_size=4),
            reference_update_fn=KLTriggeredUpdate(0.005),
            iteration_hook=hook,
            eval_fn=create_eval_fn(kept, policy, n=4, seed=5, **settings),
            eval_every=5,
            checkpoint_fn=create_checkpoint_fn(out),
            save_every=5,
            logger=jsonl_logger(Path(out) / "metrics.jsonl"),
        )


if __name__ == "__main__":
    with exact_kernels():
        start_run(sys.argv[1], sys.argv[2], kill_at=int(sys.argv[3]))

"""Ends a training early without losing it: after SIGTERM it saves a checkpoint, and it prints how to resume."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from llm_envs.trainers.run.checkpoints import find_checkpoints

__all__ = ["resumable"]

_ON_ITS_WAY = b"llm-envs: SIGTERM: after this step a checkpoint is saved and the training ends; another ends it now\n"


@contextmanager
def resumable(trainer: Trainer, option: str = "--resume-from-checkpoint") -> Iterator[None]:
    """While the block trains, make the first SIGTERM end the training behind a step, with a checkpoint.

    Args:
        trainer: The trainer.
        option: The option that resumes it, for the message.

    Raises:
        KeyboardInterrupt: If the training was ended early; the message has how to resume.
    """
    stop = _StopAfterStep()
    trainer.add_callback(stop)

    def handle(number: int, frame: object) -> None:
        if stop.is_asked:
            signal.raise_signal(signal.SIGINT)
        stop.is_asked = True
        os.write(2, _ON_ITS_WAY)  # not `print`, which the signal may have interrupted

    try:
        before = signal.signal(signal.SIGTERM, handle)
    except ValueError:  # not the main thread: the command is embedded in another program
        before = None
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(_how_to_resume(trainer, option)) from error
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
        trainer.remove_callback(stop)
    if stop.has_stopped:
        raise KeyboardInterrupt(_how_to_resume(trainer, option))


class _StopAfterStep(TrainerCallback):
    """Stops a training behind a step, on all ranks behind the same one."""

    def __init__(self) -> None:
        self.is_asked = self.has_stopped = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save and stop if this rank or another was asked to."""
        ranks = PartialState()
        asked = self.is_asked
        if ranks.num_processes > 1:  # a signal reaches the ranks at different times
            asked = bool(reduce(torch.tensor([float(asked)], device=ranks.device), "sum").item())
        if asked:
            self.has_stopped = state.global_step < state.max_steps
            control.should_save = control.should_training_stop = True


def _how_to_resume(trainer: Trainer, option: str) -> str:
    folder, state = trainer.args.output_dir, trainer.state
    done = f"{state.global_step} of {state.max_steps} steps are done"
    if there := find_checkpoints(str(folder)):
        return f"{done}, {there[-1]} has the newest checkpoint. To resume, repeat the command with {option} true."
    return f"{done}, and {folder} has no checkpoint yet: repeat the command to begin again."

"""Ends a training early without losing it: after SIGTERM it saves a checkpoint, and it prints how to resume."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from llm_envs.cli.next_line import name_next
from llm_envs.data.files import replacing
from llm_envs.errors import LLMEnvsError, counted
from llm_envs.tracking.loggers import visible_text
from llm_envs.trainers.cli.dry_run import describe_training
from llm_envs.trainers.dpo.trainer import EnvDPOTrainer
from llm_envs.trainers.grpo.trainer import EnvGRPOTrainer
from llm_envs.trainers.run.checkpoints import find_checkpoints
from llm_envs.trainers.sft.trainer import EnvSFTTrainer

__all__ = ["resumable", "run_training"]

_ON_ITS_WAY = b"llm-envs: SIGTERM: after this step a checkpoint is saved and the training ends; another ends it now\n"


def run_training(
    trainer: EnvGRPOTrainer | EnvDPOTrainer | EnvSFTTrainer,
    checkpoint: str | None,
    had_folder: bool,
    *,
    is_dry: bool,
    option: str = "--resume",
) -> int:
    """Train and save, or describe the training; return the exit code: 1 if there was nothing to learn from.

    Args:
        trainer: The trainer; one that samples is closed at the end.
        checkpoint: The checkpoint to resume from; None: a new run.
        had_folder: Whether the output folder existed before the trainer; else a dry run removes it.
        is_dry: Whether to describe the training only.
        option: The option that resumes it, for messages.
    """
    try:
        if is_dry:
            if isinstance(trainer, EnvGRPOTrainer):
                n = counted(int(trainer.num_generations or 1), "episode")
                print(f"the plan follows when the model has played one group of {n}", file=sys.stderr, flush=True)
            described, problem = describe_training(trainer, colour=sys.stdout.isatty())
            print(described)
            if not had_folder:  # transformers has made it
                with suppress(OSError):
                    Path(str(trainer.args.output_dir)).rmdir()
            if problem is not None:
                print(f"llm-envs: {visible_text(problem)}", file=sys.stderr)
            return 0 if problem is None else 1
        with resumable(trainer, option):
            trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        trainer.save_state()  # a run too short for a checkpoint would otherwise lose its metrics
        if trainer.accelerator.is_main_process:
            print(f"the model is in {trainer.args.output_dir}")
            name_next("report", trainer.args.output_dir)
        if isinstance(trainer, EnvGRPOTrainer) and trainer.learning.learned_nothing:
            return 1
    except LLMEnvsError:
        raise
    except Exception:
        # Before the first step the one-line message is enough, and the run can be repeated with --debug.
        if trainer.state.global_step:
            _keep_traceback(trainer)
        raise
    finally:
        if isinstance(trainer, EnvGRPOTrainer):
            trainer.close()
    return 0


def _keep_traceback(trainer: Trainer) -> None:
    """Write the traceback of a failure to the output folder, as hours of training are not repeated with --debug."""
    path = Path(trainer.args.output_dir or ".") / f"traceback-{trainer.accelerator.process_index}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8", opener=replacing) as file:
            file.write(traceback.format_exc())
    except OSError:  # often a full disk, which may be why the training failed
        traceback.print_exc()
        return
    steps = counted(trainer.state.global_step, "step")
    print(f"llm-envs: it failed after {steps}; the traceback is in {path}", file=sys.stderr)


@contextmanager
def resumable(trainer: Trainer, option: str = "--resume") -> Iterator[None]:
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
        return f"{done}, {there[-1]} has the newest checkpoint. To resume, repeat the command with {option}."
    return f"{done}, and {folder} has no checkpoint yet: repeat the command to begin again."

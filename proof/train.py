"""One seed of a run: training from the warm start, and what the test episodes say after it."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import transformers

from llm_envs.trainers.callbacks import ProgressLineCallback
from proof.kinds import KINDS, MAX_MODEL_LENGTH
from proof.runs import Run
from proof.tasks import Task
from proof.warm import measure

__all__ = ["settings_of", "train_run", "train_seed"]


def train_seed(run: Run, task: Task, warm: Path, seed: int, out: Path) -> dict[str, Any]:
    """Train once and measure.

    Returns:
        `seed`, `steps`, `train_rewards` (mean of each step that played), `outcomes` after training, the times, and with
        `run.measure_every` a `curve`: the successes of the test episodes after that many steps.
    """
    started, cpu_started = perf_counter(), _cpu_seconds()
    trainer = _make_trainer(run, task, warm, seed, out)
    curve = _Curve(run.measure_every, task, out / "model")
    if run.measure_every:
        curve.trainer = trainer
        trainer.add_callback(curve)
    try:
        trainer.train()
        trainer.save_model(str(out / "model"))
    finally:
        _close(trainer)
    seconds = perf_counter() - started - curve.seconds
    cpu_seconds = _cpu_seconds() - cpu_started - curve.cpu_seconds
    key = KINDS[run.kind].reward
    rewards = [round(entry[key], 4) for entry in trainer.state.log_history if key in entry]
    return {
        "seed": seed,
        "steps": trainer.state.global_step,
        "train_rewards": rewards,
        "outcomes": measure(out / "model", task, run.agent),
        **({"curve": curve.successes} if run.measure_every else {}),
        "train_seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
    }


def train_run(run: Run, task: Task, warm: Path, seed: int, out: Path, watch: Callable[[Any], None]) -> float:
    """Train once, after `watch` has seen the trainer; return the seconds, with what is measured on the way."""
    started = perf_counter()
    trainer = _make_trainer(run, task, warm, seed, out)
    watch(trainer)
    try:
        trainer.train()
    finally:
        _close(trainer)
    return perf_counter() - started


class _Curve(transformers.TrainerCallback):  # type: ignore[misc]
    """Measures the test episodes every so many steps; its own time is kept apart from the training's."""

    def __init__(self, every: int, task: Task, folder: Path) -> None:
        self._every, self._task, self._folder = every, task, folder
        self.trainer: Any = None
        self.successes: dict[str, list[float]] = {}
        self.seconds = self.cpu_seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the model and measure it."""
        if state.global_step % self._every:
            return
        started, cpu_started = perf_counter(), _cpu_seconds()
        self.trainer.save_model(str(self._folder))
        self.successes[str(state.global_step)] = measure(self._folder, self._task)["successes"]
        self.seconds += perf_counter() - started
        self.cpu_seconds += _cpu_seconds() - cpu_started


def settings_of(run: Run, task: Task, seed: int) -> dict[str, Any]:
    """Return the fields of the trainer's configuration, without where it writes."""
    return {
        "env_kwargs": dict(task.env_kwargs),
        "max_completion_length": task.max_completion_length,
        "max_turn_tokens": task.max_turn_tokens,
        "lr_scheduler_type": "linear",
        "use_vllm": run.engine == "vllm",
        "seed": seed,
        **run.settings,
    }


def _make_trainer(run: Run, task: Task, warm: Path, seed: int, out: Path) -> Any:
    kind = KINDS[run.kind]
    settings = {
        "output_dir": str(out),
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "save_trajectories": False,
        "report_to": "none",
        "disable_tqdm": True,
        **({"vllm_max_model_length": MAX_MODEL_LENGTH} if run.engine == "vllm" else {}),
        **settings_of(run, task, seed),
    }
    trainer = kind.make(run, task, warm, settings)
    trainer.add_callback(ProgressLineCallback(f"{run.name}, seed {seed}", kind.shown))
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def _close(trainer: Any) -> None:
    if hasattr(trainer, "close"):  # a trainer that plays
        trainer.close()


def _cpu_seconds() -> float:
    """Return the computing time of this process and of its children that have ended (an engine's, once closed)."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)

"""Callbacks for any of the trainers."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from llm_envs.tracking.progress import can_draw

__all__ = ["LoggerCallback", "ProgressLineCallback"]


class LoggerCallback(TrainerCallback):
    """Pass a trainer's metrics to a logger: any function of (step, metrics).

    Args:
        logger: Called on the main process with the numbers of each logging step.
    """

    def __init__(self, logger: Callable[[int, Mapping[str, float]], None]) -> None:
        self.logger = logger

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Call the logger on the main process."""
        if state.is_world_process_zero and logs:
            # Logs may contain other values than numbers, which a logger does not take.
            numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
            self.logger(state.global_step, numbers)


class ProgressLineCallback(TrainerCallback):
    """Show one line of progress with a few metrics, instead of a line of all metrics at each logging step.

    On a terminal the line is a bar; elsewhere a new line is written every few seconds. Construct the trainer with
    `disable_tqdm=True`, which silences its own bar, and remove transformers' `PrinterCallback`.

    Args:
        name: Text before the bar.
        keys: Names of the metrics to show after the bar.
        every_s: Seconds between two lines, where standard error is not a terminal.
    """

    def __init__(self, name: str, keys: Sequence[str], *, every_s: float = 5.0) -> None:
        self.name, self.keys, self.every_s = name, tuple(keys), every_s
        self._bar: tqdm[Any] | None = None
        self._shown: dict[str, str] = {}
        self._written_at = -math.inf

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar on the main process."""
        if state.is_world_process_zero and can_draw(sys.stderr):
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self.name, dynamic_ncols=True)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Move the bar to the current step."""
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show the chosen metrics."""
        shown = {key.split("/")[-1]: f"{float(logs[key]):.3g}" for key in self.keys if logs and key in logs}
        self._shown |= shown
        if self._bar is not None and shown:
            self._bar.set_postfix(shown)
        elif state.is_world_process_zero and time.monotonic() - self._written_at >= self.every_s:
            self._write(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
        elif state.is_world_process_zero:
            self._write(state)

    def _write(self, state: TrainerState) -> None:
        self._written_at = time.monotonic()
        metrics = "".join(f", {name} {value}" for name, value in self._shown.items())
        print(f"{self.name}: {state.global_step}/{state.max_steps} steps{metrics}", file=sys.stderr, flush=True)

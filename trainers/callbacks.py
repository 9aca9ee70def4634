"""Callbacks for any of the trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

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
    """Show one progress bar with a few metrics, instead of a line of all metrics at each logging step.

    Construct the trainer with `disable_tqdm=True`, which silences its own bar, and remove transformers'
    `PrinterCallback`.

    Args:
        name: Text before the bar.
        keys: Names of the metrics to show after the bar.
    """

    def __init__(self, name: str, keys: Sequence[str]) -> None:
        self.name, self.keys = name, tuple(keys)
        self._bar: tqdm[Any] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar on the main process."""
        if state.is_world_process_zero:
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
        if self._bar is not None and shown:
            self._bar.set_postfix(shown)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()

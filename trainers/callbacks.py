"""Callbacks for any of the trainers."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerState
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from llm_envs.tracking.describing import describing
from llm_envs.tracking.progress import can_draw

__all__ = ["LoggerCallback", "ProgressLineCallback", "guard_trackers"]


class LoggerCallback(TrainerCallback):
    """Pass a trainer's metrics to a logger: any function of (step, metrics).

    Args:
        logger: Called on the main process with the numbers of each logging step.
    """

    def __init__(self, logger: Callable[[int, Mapping[str, float]], None]) -> None:
        self.logger = logger

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
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

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Open the bar on the main process."""
        if state.is_world_process_zero and can_draw(sys.stderr):
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self.name, dynamic_ncols=True)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Move the bar to the current step."""
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Show the chosen metrics."""
        numbers = {key: logs[key] for key in self.keys if logs and logs.get(key) is not None}
        self._shown |= {key.split("/")[-1]: f"{float(number):.3g}" for key, number in numbers.items()}
        if self._bar is not None:
            self._bar.set_postfix(self._shown)  # the last log of a training has other numbers
        elif state.is_world_process_zero and time.monotonic() - self._written_at >= self.every_s:
            self._write(state)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
        elif state.is_world_process_zero:
            self._write(state)

    def _write(self, state: TrainerState) -> None:
        self._written_at = time.monotonic()
        metrics = "".join(f", {name} {value}" for name, value in self._shown.items())
        print(f"{self.name}: {state.global_step}/{state.max_steps} steps{metrics}", file=sys.stderr, flush=True)


_TRACKERS = (*INTEGRATION_TO_CALLBACK.values(), PrinterCallback, ProgressCallback, LoggerCallback, ProgressLineCallback)
_STARTS = ("on_init_end", "on_train_begin")
"""Before the first step. An error there, such as a missing login, ends the run when nothing can be lost yet."""


def guard_trackers(callbacks: Iterable[TrainerCallback]) -> None:
    """Let trackers fail without ending a training: a failure while training is a warning, and disables the tracker.

    Args:
        callbacks: A trainer's. Only the trackers of transformers (`report_to`) and the callbacks of this module
            are changed.
    """
    for callback in callbacks:
        if isinstance(callback, _TRACKERS) and not isinstance(callback.on_log, _Guarded):
            failed: list[str] = []
            for event in dir(TrainerCallback):
                if event.startswith("on_") and event not in _STARTS:
                    setattr(callback, event, _Guarded(getattr(callback, event), type(callback).__name__, failed))


class _Guarded:
    """An event of a tracker. `failed` is shared by a tracker's events, and not empty once one has failed."""

    def __init__(self, call: Callable[..., Any], name: str, failed: list[str]) -> None:
        self._call, self._name, self._failed = call, name, failed

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if not self._failed:
            self._failed.append(self._name)
            with describing(f"the tracker {self._name}"):
                self._call(*args, **kwargs)
                self._failed.clear()

"""Callbacks for any of the trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

__all__ = ["LoggerCallback"]


class LoggerCallback(TrainerCallback):
    """Hand what a trainer logs to a logger: any function of (step, metrics).

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
        """Pass the numbers on."""
        if state.is_world_process_zero and logs:
            numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
            self.logger(state.global_step, numbers)

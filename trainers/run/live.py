"""Files that `llm-envs watch` reads of a running training: `metrics.jsonl`, and the live file of each process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerState

from llm_envs.tracking.describing import describing
from llm_envs.tracking.live import collector_facts, live_file
from llm_envs.tracking.loggers import jsonl_logger

__all__ = ["METRICS_NAME", "MetricsFile", "shown_live"]

METRICS_NAME = "metrics.jsonl"


class MetricsFile(TrainerCallback):
    """Append the numbers of each logging step to `metrics.jsonl`, unless another logger writes that file.

    Args:
        folder: The trainer's `output_dir`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / METRICS_NAME
        self._size = self._now()
        self._is_ours = True

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Append a line on the main process; an error is a warning, after which nothing more is written."""
        self._is_ours &= self._now() == self._size
        if not (state.is_world_process_zero and logs and self._is_ours):
            return
        self._is_ours = False
        with describing(str(self.path)):
            numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
            jsonl_logger(self.path)(state.global_step, numbers)
            self._is_ours, self._size = True, self._now()

    def _now(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


@contextmanager
def shown_live(trainer: Trainer) -> Iterator[None]:
    """Write a training's metrics and live file while the block lasts.

    Args:
        trainer: One of TRL's, of ours: its state has the steps, and its player, if any, the counts of episodes.
    """
    folder = trainer.args.output_dir
    if not folder:
        yield
        return

    def facts() -> dict[str, Any]:
        state, player = trainer.state, getattr(trainer, "_player", None)
        played: dict[str, Any] = {} if player is None else collector_facts(player.collector.stats)
        waited = {} if player is None else {"waited_s": player.time_shares.waited_s}
        return {"kind": "training", "step": state.global_step, "steps": state.max_steps} | played | waited

    metrics = MetricsFile(folder)
    trainer.add_callback(metrics)
    try:
        with live_file(folder, facts, process=trainer.accelerator.process_index):
            yield
    finally:
        trainer.remove_callback(metrics)

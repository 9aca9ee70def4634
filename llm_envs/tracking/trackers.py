"""One class for each tracker of `tracking.tracker_logger`: TensorBoard, W&B, Trackio, and our own files.

The first three are accelerate's trackers. They start as late as possible, and do not print to standard output.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_envs.errors import extra_needed
from llm_envs.tracking.loggers import Logger, trajectory_table, visible_text
from llm_envs.types import Trajectory, inspect_trajectory

__all__ = ["COLUMNS", "AccelerateTracker", "FileTracker", "TensorBoard", "Tracker", "Trackio", "WandB"]

DEFAULT_PROJECT = "llm-envs"
MAX_CHARACTERS = 4000
"""Maximum length of a conversation in a table."""

COLUMNS = ("env", "seed", "member", "reward", "success", "turns", "tokens", "stop", "conversation")
"""Columns of a table of episodes."""


class Tracker:
    """One tracker."""

    name = ""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a step's finite numbers."""
        raise NotImplementedError

    def table(self, step: int, trajectories: Sequence[Trajectory], name: str) -> None:
        """Log episodes; a tracker without tables does nothing."""

    def close(self) -> None:
        """End the run."""


class FileTracker(Tracker):
    """A file logger, started with the first step."""

    def __init__(self, name: str, make: Callable[[], Logger]) -> None:
        self.name, self._make = name, make
        self._log: Logger | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics."""
        self._log = self._log or self._make()
        self._log(step, metrics)


class AccelerateTracker(Tracker):
    """One of accelerate's trackers."""

    def __init__(self, module: str, class_name: str) -> None:
        package = module.split(".")[-1]
        with extra_needed(f"{self.name} needs accelerate and {package}: pip install 'llm-envs[logging]'."):
            importlib.import_module(module)
            from accelerate import PartialState, tracking
        PartialState()  # required by accelerate's own logging, which the trackers use
        self._class: Any = getattr(tracking, class_name)
        self._tracker: Any = None

    def _start(self, *arguments: Any, **settings: Any) -> None:
        with contextlib.redirect_stdout(sys.stderr):  # standard output may be JSON for another program
            tracker = self._class(*arguments, **settings)
            tracker.start()
            self._tracker = tracker

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics to accelerate's tracker."""
        self._tracker.log(dict(metrics), step=step)

    def close(self) -> None:
        """End the tracker's run."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            with contextlib.redirect_stdout(sys.stderr):
                tracker.finish()


class TensorBoard(AccelerateTracker):
    """`tensorboard/` in the run's folder, started with the first step."""

    name = "tensorboard"

    def __init__(
        self, folder: Path, run_name: str | None, config: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        super().__init__("torch.utils.tensorboard", "TensorBoardTracker")
        self._where = folder / "tensorboard"
        self._run_name, self._config, self._settings = run_name, config, settings

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log scalars."""
        self._begin()
        super().log(step, metrics)

    def table(self, step: int, trajectories: Sequence[Trajectory], name: str) -> None:
        """Log a text."""
        self._begin()
        self._text(name, trajectory_table(trajectories, width=80), step)

    def _begin(self) -> None:
        if self._tracker is None:
            name = "" if self._run_name is None else self._run_name.replace("/", "_").replace(os.sep, "_")
            self._start(name, str(self._where), **self._settings)
            text = json.dumps(self._config, indent=1, default=str, ensure_ascii=False)
            self._text("config", text, 0)

    def _text(self, name: str, text: str, step: int) -> None:
        # TensorBoard renders texts as Markdown; four spaces make it code.
        self._tracker.log({name: "".join(f"    {line}\n" for line in text.splitlines())}, step=step)


class WandB(AccelerateTracker):
    """A run of Weights & Biases, offline unless `WANDB_MODE` or the settings change that."""

    name = "wandb"

    def __init__(
        self, project: str | None, run_name: str | None, config: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        mode = settings.get("mode") or os.environ.get("WANDB_MODE") or "offline"
        if mode != "online":  # otherwise the library reports its errors and its start to its makers
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        super().__init__("wandb", "WandBTracker")
        given: dict[str, Any] = {"mode": mode, "name": run_name, "config": dict(config)}
        given["settings"] = {"console": "off"}  # it would capture the terminal's output
        wandb: Any = importlib.import_module("wandb")
        if wandb.run is not None:  # another run in this process, which we must not end
            given["reinit"] = "create_new"
        self._start(project or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT, **given | dict(settings))
        self._last = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log numbers; W&B drops an earlier step's, so they are logged at the present step, with theirs as `step`."""
        late = {"step": step} if step < self._last else {}
        self._last = max(self._last, step)
        super().log(self._last, {**metrics, **late})

    def table(self, step: int, trajectories: Sequence[Trajectory], name: str) -> None:
        """Log a `wandb.Table`."""
        rows = [_row(trajectory) for trajectory in trajectories]
        self._tracker.log_table(name, columns=list(COLUMNS), data=rows, step=step)


class Trackio(AccelerateTracker):
    """A run of Trackio, on this machine unless `TRACKIO_SPACE_ID` or the settings change that."""

    name = "trackio"

    def __init__(
        self, project: str | None, run_name: str | None, config: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        super().__init__("trackio", "TrackioTracker")
        given: dict[str, Any] = {"name": run_name, "config": dict(config)}
        self._start(project or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT, **given | dict(settings))

    def table(self, step: int, trajectories: Sequence[Trajectory], name: str) -> None:
        """Log a `trackio.Table`."""
        trackio: Any = importlib.import_module("trackio")
        # Trackio renders texts as Markdown: show a model's text as code.
        rows = [[*cells, _fenced(text)] for *cells, text in map(_row, trajectories)]
        self._tracker.log({name: trackio.Table(columns=list(COLUMNS), data=rows)}, step=step)

    def close(self) -> None:
        """End the run, and keep the library from ending it again at exit, with a message on standard output."""
        run = None if self._tracker is None else self._tracker.tracker
        super().close()
        with contextlib.suppress(ImportError, AttributeError):
            current = importlib.import_module("trackio.context_vars").current_run
            if run is not None and current.get() is run:
                current.set(None)


def _row(trajectory: Trajectory) -> list[Any]:
    """Return the cells of an episode: JSON types, in the order of `COLUMNS`."""
    t, words = trajectory, visible_text(inspect_trajectory(trajectory))
    if len(words) > MAX_CHARACTERS:
        words = words[: MAX_CHARACTERS - 1] + "…"
    reward = float(t.reward) if t.status == "ok" and math.isfinite(t.reward) else None
    success = None if t.is_success is None else bool(t.is_success)
    counts = len(t.turns), t.n_sampled_tokens
    return [visible_text(t.env_id), int(t.seed), t.member, reward, success, *counts, t.stop_reason.value, words]


def _fenced(text: str) -> str:
    """Return text as a Markdown code block, even if it contains backticks."""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"

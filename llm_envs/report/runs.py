"""The folders that a report is made of: where a run's trajectories and metrics lie, whoever wrote it.

A run is the folder of a `TrajectoryWriter` (`llm-envs collect`), a trainer's `output_dir` with `trajectories/`, an
evaluation's folder, or a single file of trajectories. What a kill left half-written is read as far as it goes, and
said.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_envs.errors import StoreError
from llm_envs.reporting import read_metrics, visible_text
from llm_envs.rollout.store import iter_trajectories
from llm_envs.rollout.store_folder import MANIFEST_NAME, read_manifest
from llm_envs.types import Trajectory

__all__ = ["ReportRun", "open_run", "read_curves"]

STATE_NAME, METRICS_NAME = "trainer_state.json", "metrics.jsonl"

MAX_CURVE_POINTS = 2000
"""Points of one curve that the page keeps, evenly spaced: a screen has no more columns."""


@dataclass(slots=True)
class ReportRun:
    """One run as a report sees it."""

    path: Path
    name: str
    """Short, and different from those of the report's other runs."""
    parts: tuple[Path, ...]
    """Folders of trajectories, or one file, in order."""
    settings: Mapping[str, Any]
    """Of the first part's manifest."""
    curves: Mapping[str, list[tuple[float, float]]]
    """Metric -> (step, value), ascending; empty where nothing was logged."""
    tokenizer: Path | None
    """A folder of the run that has a tokenizer."""
    notes: list[str] = field(default_factory=list)
    """What was missing or damaged, a line each. Reading adds to it."""

    def trajectories(self) -> Iterator[tuple[int, Trajectory]]:
        """Yield (index of the part, trajectory) in the order of finishing; a torn line is left out and noted."""
        for index, part in enumerate(self.parts):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for trajectory in iter_trajectories(part):
                    yield index, trajectory
            self.notes += [visible_text(str(warning.message)) for warning in caught]


def open_run(path: str | Path, name: str | None = None) -> ReportRun:
    """Find out what there is of a run; its trajectories are read later.

    Args:
        path: A folder, or a file of trajectories.
        name: How the report calls it; None is the folder's name.

    Raises:
        StoreError: If there is nothing that a report could show.
    """
    run = Path(path)
    if not run.exists():
        raise StoreError(f"{run} does not exist: give the folder of a run.")
    notes: list[str] = []
    parts = _parts(run)
    curves = read_curves(run, notes) if run.is_dir() else {}
    if not parts and not curves:
        read_manifest(run)  # says what is missing, and which folders below hold runs
    if not parts:
        notes.append(f"{run} has metrics and no trajectories: a trainer keeps them with save_trajectories.")
    folders = [part for part in parts if part.is_dir()]
    settings = read_manifest(folders[0]).settings if folders else {}
    return ReportRun(run, name or run.resolve().name, tuple(parts), settings, curves, _tokenizer(run), notes)


def read_curves(run: Path, notes: list[str]) -> dict[str, list[tuple[float, float]]]:
    """Return what a training logged: metric -> (step, value), ascending; empty if nothing is there.

    Args:
        run: A trainer's `output_dir`: `trainer_state.json` there, else of the last checkpoint that can be read, and
            `metrics.jsonl`, which `reporting.jsonl_logger` writes. Of a step that was logged twice the
            later counts.
        notes: What cannot be read is added here.
    """
    checkpoints = sorted(run.glob("checkpoint-*"), key=lambda folder: _numbers(folder.name), reverse=True)
    records: list[Mapping[str, Any]] = []
    for state in (folder / STATE_NAME for folder in (run, *checkpoints)):
        if not state.is_file():
            continue
        try:
            history = json.loads(state.read_text(encoding="utf-8"))["log_history"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            notes.append(f"{state} cannot be read ({type(error).__name__}: {error}); an earlier one is taken, if any.")
            continue
        if history:
            records += [record for record in history if isinstance(record, dict)]
            break
    if (run / METRICS_NAME).is_file():
        try:
            records += read_metrics(run / METRICS_NAME)
        except (StoreError, OSError, ValueError, AttributeError) as error:
            notes.append(f"{run / METRICS_NAME} cannot be read: {error}")
    curves: dict[str, dict[float, float]] = {}
    for record in records:
        step: Any = record.get("step")
        for key, value in record.items() if _is_number(step) else ():
            if key not in ("step", "epoch") and _is_number(value):
                curves.setdefault(key, {})[step] = value
    return {key: _thinned(sorted(points.items())) for key, points in curves.items()}


def _parts(run: Path) -> list[Path]:
    """Return where the trajectories lie: here, in `trajectories/`, or in its folders, one for each process."""
    if run.is_file() or (run / MANIFEST_NAME).exists():
        return [run]
    below = run / "trajectories"
    if (below / MANIFEST_NAME).exists():
        return [below]
    return sorted((path.parent for path in below.glob(f"*/{MANIFEST_NAME}")), key=lambda path: _numbers(path.name))


def _tokenizer(run: Path) -> Path | None:
    """Return the run's own folder, or its last checkpoint's, if it has a tokenizer."""
    checkpoints = sorted(run.glob("checkpoint-*"), key=lambda folder: _numbers(folder.name), reverse=True)
    return next((folder for folder in (run, *checkpoints) if (folder / "tokenizer_config.json").is_file()), None)


def _numbers(name: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", name)], name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep at most `MAX_CURVE_POINTS`, evenly spaced, the last among them."""
    stride = math.ceil(len(points) / MAX_CURVE_POINTS)
    return points if stride <= 1 else points[::-1][::stride][::-1]

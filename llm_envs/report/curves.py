"""The metrics that a training logged over its steps, from the trainer's state and from our log files."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llm_envs.errors import StoreError
from llm_envs.problems import is_number
from llm_envs.tracking.loggers import read_metrics

__all__ = ["Curves", "checkpoints", "read_curves"]

Curves = Mapping[str, list[tuple[float, float]]]
"""Metric -> (step, value), ascending."""

STATE_NAME = "trainer_state.json"
METRICS = re.compile(r"(?:(?P<stage>.+?)[_.-]?)?metrics\.(?:jsonl|csv)")
"""`metrics.jsonl`, `metrics.csv`, and `sft_metrics.jsonl` for one of several stages."""

MAX_POINTS = 2000
"""Points of one curve that the page keeps, evenly spaced: a screen has no more columns."""


def read_curves(run: Path, notes: list[str]) -> dict[str, list[tuple[float, float]]]:
    """Return the logged metrics: metric -> (step, value), ascending; empty if nothing was logged.

    Args:
        run: A trainer's `output_dir`: its `trainer_state.json`, or else the last readable checkpoint's, and the
            files of `jsonl_logger` and `csv_logger` whose names end with `metrics`. The text before that names a stage:
            `loss` in `sft_metrics.jsonl` is `sft/loss`. If a step was logged twice, the later record counts.
        notes: Gets a line for each file that cannot be read.
    """
    curves: dict[str, dict[float, float]] = {}
    _add(curves, _state(run, notes))
    for path in sorted(run.glob("*metrics.*")):
        found = METRICS.fullmatch(path.name)
        if found is None or not path.is_file():
            continue
        try:
            _add(curves, read_metrics(path), f"{found['stage']}/" if found["stage"] else "")
        except (StoreError, OSError, ValueError, AttributeError, csv.Error) as error:
            notes.append(f"{path} cannot be read: {error}")
    sorted_curves = {key: sorted(points.items()) for key, points in curves.items()}
    # Backwards, so that the last point stays.
    return {key: points[:: -math.ceil(len(points) / MAX_POINTS)][::-1] for key, points in sorted_curves.items()}


def checkpoints(run: Path) -> list[Path]:
    """Return the folders of checkpoints, the newest first."""
    found = [path for path in run.glob("checkpoint-*") if path.is_dir()]
    return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)], reverse=True)


def _state(run: Path, notes: list[str]) -> list[dict[str, Any]]:
    for state in (folder / STATE_NAME for folder in (run, *checkpoints(run))):
        if not state.is_file():
            continue
        try:
            if history := read_metrics(state):
                return history
        except OSError as error:
            notes.append(f"{error} An earlier one is taken, if any.")
    return []


def _add(curves: dict[str, dict[float, float]], records: Iterable[Mapping[str, Any]], stage: str = "") -> None:
    for record in records:
        step: Any = record.get("step")
        for key, value in record.items() if is_number(step) else ():
            if key not in ("step", "epoch") and is_number(value):
                curves.setdefault(f"{stage}{key}", {})[step] = value

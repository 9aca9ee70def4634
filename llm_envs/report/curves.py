"""The metrics that a training logged over its steps, from the trainer's state and from our log files."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from llm_envs.errors import StoreError
from llm_envs.problems import is_number
from llm_envs.tracking.loggers import read_metrics

__all__ = ["Curves", "checkpoints", "curve_files", "read_curve_file", "read_curves"]

Curves = Mapping[str, list[tuple[float, float]]]
"""Metric -> (step, value), ascending."""

STATE_NAME = "trainer_state.json"
METRICS_NAME = "metrics.jsonl"
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
    for path, stage in curve_files(run, notes):
        try:
            for key, step, value in read_curve_file(path, stage):
                curves.setdefault(key, {})[step] = value
        except (StoreError, OSError, ValueError, AttributeError, csv.Error) as error:
            notes.append(f"{path} cannot be read: {error}")
    sorted_curves = {key: sorted(points.items()) for key, points in curves.items()}
    # Backwards, so that the last point stays.
    return {key: points[:: -math.ceil(len(points) / MAX_POINTS)][::-1] for key, points in sorted_curves.items()}


def checkpoints(run: Path) -> list[Path]:
    """Return the folders of checkpoints, the newest first."""
    found = [path for path in run.glob("checkpoint-*") if path.is_dir()]
    return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)], reverse=True)


def curve_files(run: Path, notes: list[str] | None = None, *, has_state: bool = True) -> list[tuple[Path, str]]:
    """Return the files with metrics of a run's folder, in the order in which they count, and the prefix of each.

    Args:
        run: A trainer's `output_dir`.
        notes: Gets a line for each trainer's state that cannot be read, if given.
        has_state: Whether a trainer's state is among them; it is read to see whether it has metrics.
    """
    states = _states(run) if has_state else iter(())
    state = next((path for path in states if _has_history(path, notes)), None)
    found = [] if state is None else [(state, "")]
    for path in sorted(run.glob("*metrics.*")):
        name = METRICS.fullmatch(path.name)
        if name is not None and path.is_file():
            found.append((path, f"{name['stage']}/" if name["stage"] else ""))
    return found


def read_curve_file(path: Path, stage: str = "") -> list[tuple[str, float, float]]:
    """Return (metric, step, value) of a file, as they were logged; `stage` goes before each name."""
    return [
        (f"{stage}{key}", record["step"], value)
        for record in read_metrics(path)
        if is_number(record.get("step"))
        for key, value in record.items()
        if key not in ("step", "epoch") and is_number(value)
    ]


def _states(run: Path) -> Iterator[Path]:
    return (path for folder in (run, *checkpoints(run)) if (path := folder / STATE_NAME).is_file())


def _has_history(state: Path, notes: list[str] | None) -> bool:
    try:
        return bool(read_metrics(state))
    except (StoreError, OSError) as error:
        if notes is not None:
            notes.append(f"{error} An earlier one is taken, if any.")
        return False

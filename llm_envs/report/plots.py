"""Training curves, as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError, extra_needed
from llm_envs.problems import is_number
from llm_envs.tracking.loggers import read_metrics

__all__ = ["plot_training_curves"]

LINE, FAINT, INK, GRID = "#2a6fbb", "#a9c8ea", "#333333", "#dddddd"
PANEL_INCHES = (4.4, 2.8)


def plot_training_curves(
    records: Sequence[Mapping[str, Any]] | str | Path,
    path: str | Path,
    *,
    keys: Sequence[str] | None = None,
    title: str | None = None,
    smoothing: float = 0.8,
) -> Path:
    """Draw one panel for each metric over the steps: the values faint, their running mean on top.

    Args:
        records: One mapping per step, with a number under `step`: the result of `read_metrics`, or the file for it
            (`metrics.jsonl`, `metrics.csv`, `trainer_state.json`). A metric may be missing or NaN in some.
        path: The picture to write; its suffix decides the format (`.png`, `.svg`, `.pdf`).
        keys: Which metrics, in order; None draws every numeric one.
        title: Written above the panels.
        smoothing: Weight of the past in the running mean, in [0, 1); 0 draws only the values.

    Returns:
        The path.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        InvalidConfigError: If there is nothing to draw, or a key is in no record.
        StoreError: If the file cannot be read as one of these.
    """
    if isinstance(records, str | Path):
        records = read_metrics(records)
    if not 0 <= smoothing < 1:
        raise InvalidConfigError(f"smoothing is {smoothing!r}; it must be in [0, 1).")
    curves = {key: _points(records, key) for key in _chosen(records, keys)}
    # The canvas has no window, and none of pyplot's global state.
    with extra_needed("Plots need matplotlib: pip install 'llm-envs[logging]'."):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    columns = min(len(curves), 3)
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for index, (key, points) in enumerate(curves.items()):
        _draw(figure.add_subplot(rows, columns, index + 1), key, points, smoothing)
    if title is not None:
        figure.suptitle(title, color=INK)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    return target


def running_mean(values: Sequence[float], smoothing: float) -> list[float]:
    """Return the bias-corrected exponential mean `m_t / (1 - s^t)` with `m_t = s·m_{t-1} + (1-s)·x_t`."""
    out: list[float] = []
    mean = 0.0
    for count, value in enumerate(values, start=1):
        mean = smoothing * mean + (1 - smoothing) * value
        out.append(mean / (1 - smoothing**count))
    return out


def _points(records: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(record["step"], record[key]) for record in records if "step" in record and is_number(record.get(key))]


def _chosen(records: Sequence[Mapping[str, Any]], keys: Sequence[str] | None) -> list[str]:
    known = [key for key in dict.fromkeys(key for record in records for key in record) if key != "step"]
    known = [key for key in known if _points(records, key)]
    if not known:
        raise InvalidConfigError("There is nothing to plot: no record has a `step` and a finite number.")
    missing = [key for key in keys or () if key not in known]
    if missing:
        raise InvalidConfigError(f"No record has {', '.join(missing)}; there are {', '.join(sorted(known))}.")
    return known if keys is None else list(keys)


def _draw(axes: Any, key: str, points: Sequence[tuple[float, float]], smoothing: float) -> None:
    steps, values = zip(*points, strict=True)
    if smoothing == 0 or len(points) == 1:
        axes.plot(steps, values, color=LINE, linewidth=1.6, marker="o" if len(points) == 1 else None)
    else:
        axes.plot(steps, values, color=FAINT, linewidth=1.0)
        axes.plot(steps, running_mean(values, smoothing), color=LINE, linewidth=1.8)
    axes.set_title(key, loc="left", fontsize=10, color=INK)
    axes.set_xlabel("step", fontsize=8, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)

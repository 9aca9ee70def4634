"""The plots of `docs/results/scale.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def _new(n: int) -> Any:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "scale", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    return pyplot.subplots(1, n, figsize=(8, 3), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})


def plot_scale(rows: Rows, weights: Rows, path: Path) -> None:
    """Plot episodes/s of a GPU over the number of GPUs, and the pause for new weights."""
    figure, (left, right) = _new(2)
    for mode in dict.fromkeys(row["mode"] for row in rows):
        some = [row for row in rows if row["mode"] == mode]
        left.plot([r["gpus"] for r in some], [r["episodes_per_s"] / r["gpus"] for r in some], ".-", label=mode)
    left.set(xscale="log", xlabel="GPUs", ylabel="episodes/s of a GPU", ylim=(0, None))
    left.legend(fontsize=6)
    for transport in ("whole", "delta", "nccl"):
        right.plot([row["gpus"] for row in weights], [row[transport] for row in weights], ".-", label=transport)
    right.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="seconds a step for new weights")
    right.legend(fontsize=6)
    _save(figure, path)


def plot_measured(rows: Rows, path: Path) -> None:
    """Plot simulated over measured seconds."""
    figure, axes = _new(1)
    for is_fitted, label in ((False, "predicted"), (True, "fitted")):
        some = [row for row in rows if (row["use"] == "fitted") == is_fitted]
        axes.plot([r["measured_s"] for r in some], [r["simulated_s"] for r in some], ".", label=label)
    ends = [0.2, 100.0]
    axes.plot(ends, ends, "k-", lw=0.5)
    for factor in (0.85, 1.15):
        axes.plot(ends, [factor * end for end in ends], "k:", lw=0.5)
    axes.set(xscale="log", yscale="log", xlabel="measured, s", ylabel="simulated, s")
    axes.legend()
    _save(figure, path)

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.report import plot_training_curves
from llm_envs.report.plots import running_mean

RECORDS = [{"step": step, "reward": step / 10, "note": "text", "loss": math.nan if step else 1.0} for step in range(5)]


def test_running_mean_is_bias_corrected() -> None:
    # m1 = 0.5*2 = 1, /(1-0.5) = 2;  m2 = 0.5*1 + 0.5*4 = 2.5, /(1-0.25) = 10/3
    assert running_mean([2.0, 4.0], 0.5) == pytest.approx([2.0, 10 / 3])
    assert running_mean([2.0, 4.0], 0.0) == [2.0, 4.0]


def test_it_writes_a_picture_with_a_panel_for_each_metric(tmp_path: Path) -> None:
    path = plot_training_curves(RECORDS, tmp_path / "new" / "curves.svg", title="A run")
    assert path.read_text(encoding="utf-8").count('id="axes_') == 2
    assert (
        plot_training_curves(RECORDS, tmp_path / "c.svg", keys=["reward"])
        .read_text(encoding="utf-8")
        .count('id="axes_')
        == 1
    )
    assert plot_training_curves(RECORDS, tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_it_says_what_there_is_to_plot(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="No record has rewrad; there are loss, reward"):
        plot_training_curves(RECORDS, tmp_path / "c.png", keys=["rewrad"])
    with pytest.raises(InvalidConfigError, match="nothing to plot"):
        plot_training_curves([{"step": 1, "a": math.nan}], tmp_path / "c.png")
    with pytest.raises(InvalidConfigError, match=r"smoothing is 1; it must be in \[0, 1\)"):
        plot_training_curves(RECORDS, tmp_path / "c.png", smoothing=1)


def test_importing_the_reports_loads_no_plotting(tmp_path: Path) -> None:
    code = "import sys, llm_envs.report; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingExtraError, match=r"llm-envs\[logging\]"):
        plot_training_curves(RECORDS, tmp_path / "c.png")

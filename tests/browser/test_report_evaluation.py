"""Evaluations in the report: their tables, thresholds, pass@k, and two compared as `llm-envs eval --compare` does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from chromium import Chromium
from report_runs import make_episode, write_evaluation

from llm_envs.evaluation import Results, compare
from llm_envs.report import write_report

pytestmark = [pytest.mark.browser, pytest.mark.smoke]

NONE = "\N{EN DASH}"


def evaluations(folder: Path, **asked: float) -> list[Path]:
    """Return two evaluations of four problems, twice each: of the second's problems one is lost, two are won."""
    won = {"before": (0, 1), "after": (0, 2, 3)}
    out = []
    for name, seeds in won.items():
        episodes = [make_episode(seed, member, is_success=seed in seeds) for seed in range(4) for member in range(2)]
        out.append(write_evaluation(folder / name, episodes, model=name))
        if asked:
            results = Results.load(out[-1])
            replace(results, thresholds={task.name: asked for task in results}).save(out[-1])
    return out


def test_an_evaluation_has_its_table_and_its_thresholds(chromium: Chromium, tmp_path: Path) -> None:
    write_report(evaluations(tmp_path, min_success=0.6, max_errors=0.0), tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    table = "[aria-label=Scores] tbody tr"
    lines = [line.split("\t") for line in chromium.texts(table)]
    assert [[cell.split("\n")[0] for cell in line] for line in lines] == [
        ["before", "50%", "llm/Sums-v0 easy", "2", "50%", "50%", "0.25", "4", "8"],
        ["after", "75%", "llm/Sums-v0 easy", "2", "75%", "75%", "0.5", "4", "8"],
    ]
    low, high = Results.load(tmp_path / "after").tasks[0].pass_hat[2].interval
    assert lines[1][5].strip() == f"75%\n{100 * low:.0f}% to {100 * high:.0f}%"
    thresholds = [line.split("\t")[2:] for line in chromium.texts("[aria-label=Thresholds] tbody tr")]
    assert thresholds == [
        ["success at least 60%", "50%", "missed"], ["errors at most 0%", "0%", "reached"],
        ["success at least 60%", "75%", "reached"], ["errors at most 0%", "0%", "reached"],
    ]  # fmt: skip
    conduct = [line.split("\t") for line in chromium.texts("[aria-label=Conduct] tbody tr")]
    assert conduct[0] == ["before", "llm/Sums-v0 easy", "2", "3", "0.5", NONE, "0%", "0%", "0%", "terminated 8"]
    plot = chromium.js("document.querySelector('figure svg[aria-label^=\"pass@k\"]').getAttribute('aria-label')")
    assert "after, pass^k: 75%" in plot and "at k=1" in plot and "at k=2" in plot
    chromium.unfold()
    assert "numpy" in chromium.text("[aria-label=Versions]")
    assert chromium.problems() == []


def test_two_evaluations_are_compared_as_eval_compares_them(chromium: Chromium, tmp_path: Path) -> None:
    write_report(evaluations(tmp_path), tmp_path / "report.html")
    chromium.open(tmp_path / "report.html", hash="#compare")
    table = "[aria-label='Evaluations compared'] tbody tr"
    (task,) = compare(Results.load(tmp_path / "after"), Results.load(tmp_path / "before")).tasks
    (line,) = [line.split("\t") for line in chromium.texts(table)]
    low, high = task.success.interval
    assert line[:3] + line[6:] == ["llm/Sums-v0 easy", "50%", "75%", "2 / 1 / 1", "1 / 2 / 1 / 0", "4", "0"]
    assert line[3].strip() == f"+25.0%\n{100 * low:.1f}% to +{100 * high:.1f}%" and low < 0 < high
    assert line[4] == f"{task.p_value:g}"
    chromium.unfold()
    assert chromium.texts("[aria-label='Settings that differ'] tbody tr") == ['model\t"before"\t"after"']
    # Turned round: the same with the other sign.
    chromium.choose("label:nth-of-type(1) select", "after")
    chromium.choose("label:nth-of-type(2) select", "before")
    (line,) = [line.split("\t") for line in chromium.texts(table)]
    assert line[:3] + line[6:] == ["llm/Sums-v0 easy", "75%", "50%", "1 / 1 / 2", "1 / 1 / 2 / 0", "4", "0"]
    assert line[3].strip() == f"-25.0%\n{-100 * high:.1f}% to +{-100 * low:.1f}%"
    other = write_evaluation(tmp_path / "other", [make_episode(9, member) for member in range(2)])
    write_report([tmp_path / "before", other], tmp_path / "report.html")
    chromium.open(tmp_path / "report.html", hash="#compare")
    assert "have no problem in common" in chromium.text() and "the seeds do not match" in chromium.text()


def test_results_alone_are_shown(chromium: Chromium, tmp_path: Path) -> None:
    alone = []
    for folder in evaluations(tmp_path / "runs"):
        (tmp_path / folder.name).mkdir()
        alone.append(tmp_path / folder.name / "results.json")
        (folder / "results.json").rename(alone[-1])
    write_report([path.parent for path in alone], tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    assert len(chromium.texts("[aria-label=Scores] tbody tr")) == 2
    assert chromium.texts("figcaption") == ["pass@k and pass^k: llm/Sums-v0 easy"]
    chromium.go("#compare")
    assert len(chromium.texts("[aria-label='Evaluations compared'] tbody tr")) == 1
    assert chromium.problems() == []

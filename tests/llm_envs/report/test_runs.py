from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_runs import make_episode, write_run

from llm_envs.errors import StoreError
from llm_envs.report.runs import open_run, read_curves
from llm_envs.report.site import write_report


def write_state(folder: Path, *history: dict[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    return folder


def test_a_trainers_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "trajectories" / "process-10", [make_episode(3)])
    write_run(tmp_path / "trajectories" / "process-2", [make_episode(2)])
    write_state(tmp_path / "checkpoint-2", {"step": 1, "reward": 0.5})
    write_state(
        tmp_path / "checkpoint-10",
        {"step": 1, "reward": 0.5, "epoch": 0.1},
        {"step": 10, "reward": 0.75, "note": "text", "loss": float("nan")},
        {"step": 10, "eval_loss": 2},
    )
    run = open_run(tmp_path)
    assert [(part, t.seed) for part, t in run.trajectories()] == [(0, 2), (1, 3)]
    assert run.curves == {"reward": [(1, 0.5), (10, 0.75)], "eval_loss": [(10, 2)]}
    assert run.notes == []


def test_a_file_and_a_folder_with_trajectories_in_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "trajectories", [make_episode(5)])
    assert [t.seed for _, t in open_run(tmp_path).trajectories()] == [5]
    (file,) = [path for path in folder.iterdir() if path.suffix in (".parquet", ".jsonl")]
    assert [t.seed for _, t in open_run(file).trajectories()] == [5]


def test_a_half_written_state_is_said_and_the_one_before_taken(tmp_path: Path) -> None:
    write_state(tmp_path / "checkpoint-1", {"step": 1, "reward": 0.5})
    write_state(tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text('{"log_history": [{"st')
    notes: list[str] = []
    assert read_curves(tmp_path, notes) == {"reward": [(1, 0.5)]}
    assert len(notes) == 1 and "checkpoint-2/trainer_state.json cannot be read (JSONDecodeError" in notes[0]


def test_our_own_metrics_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "reward": 1}\n{"step": 1, "reward": 3, "b": null}\n{"ste')
    assert read_curves(tmp_path, []) == {"reward": [(1, 3), (2, 1)]}


def test_a_long_curve_is_thinned_to_its_end(tmp_path: Path) -> None:
    write_state(tmp_path, *({"step": step, "reward": step} for step in range(5001)))
    points = read_curves(tmp_path, [])["reward"]
    assert len(points) == 1667 and points[-1] == (5000, 5000) and points[-2] == (4997, 4997)


def test_metrics_without_trajectories_are_still_a_report(tmp_path: Path) -> None:
    write_state(tmp_path, {"step": 1, "reward": 0.5})
    notes = write_report([tmp_path], tmp_path / "report.html")
    assert notes == [f"{tmp_path} has metrics and no trajectories: a trainer keeps them with save_trajectories."]


def test_what_has_nothing_to_show_is_refused_in_a_line(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    with pytest.raises(StoreError, match="none does not exist"):
        write_report([tmp_path / "none"], out)
    with pytest.raises(StoreError, match=r"holds no run: there is no manifest\.json in it\. There are runs below"):
        write_run(tmp_path / "deep" / "er" / "run", [make_episode()])
        write_report([tmp_path / "deep"], out)
    with pytest.raises(StoreError, match="empty holds no finished episode yet: there is nothing to report"):
        write_report([write_run(tmp_path / "empty", [])], out)
    assert not out.exists()


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, [])
    (run / "log-00000.jsonl").write_text(make_episode(1).to_json() + "\n" + make_episode(2).to_json()[:200])
    notes = write_report([run], tmp_path / "report.html")
    assert "the last line is torn" in notes[0] and "and left out" in notes[0]
    (run / "log-00000.jsonl").write_text("{}\n" + make_episode(2).to_json() + "\n")
    with pytest.raises(StoreError, match=r"log-00000\.jsonl"):
        write_report([run], tmp_path / "report.html")

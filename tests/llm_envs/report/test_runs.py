from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from report_runs import make_episode, write_evaluation, write_run

from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.report import write_report
from llm_envs.report.curves import read_curves
from llm_envs.report.runs import ReportRun, open_runs
from llm_envs.tracking import csv_logger, jsonl_logger


def open_run(path: Path) -> ReportRun:
    """Return the one run that is there."""
    (run,) = open_runs(path)
    return run


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
    assert len(notes) == 1 and "checkpoint-2/trainer_state.json has no `log_history`" in notes[0]


def test_our_own_metrics_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "reward": 1}\n{"step": 1, "reward": 3, "b": null}\n{"ste')
    assert read_curves(tmp_path, []) == {"reward": [(1, 3), (2, 1)]}


def test_tables_and_the_files_of_several_stages(tmp_path: Path) -> None:
    log = csv_logger(tmp_path / "metrics.csv")
    log(1, {"reward": 0.5})
    log(2, {"reward": float("nan"), "loss": 2})
    log(3, {"reward": 0.75, "loss": 1})
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("4,0.9")  # a kill
    jsonl_logger(tmp_path / "sft_metrics.jsonl")(20, {"loss": 5.0})
    (tmp_path / "other.csv").write_text("step,reward\n9,9\n")
    notes: list[str] = []
    curves = read_curves(tmp_path, notes)
    assert curves == {"reward": [(1, 0.5), (3, 0.75)], "loss": [(2, 2), (3, 1)], "sft/loss": [(20, 5)]}
    assert notes == []
    (tmp_path / "metrics.csv").write_bytes(b"step,reward\n\xff\n")
    assert "loss" not in read_curves(tmp_path, notes) and len(notes) == 1 and "metrics.csv cannot be read" in notes[0]


def test_named_runs_of_one_folder_are_told_apart(tmp_path: Path) -> None:
    demo = tmp_path / "demo"
    for age, name in enumerate(("untrained", "after-warm-up", "after-GRPO")):
        folder = write_run(demo / "trajectories" / name, [make_episode(is_success=age == 2)])
        os.utime(folder / "manifest.json", (age, age))
    jsonl_logger(demo / "metrics.jsonl")(1, {"reward": 0.5})
    (demo / "model").mkdir()
    (demo / "model" / "tokenizer_config.json").write_text("{}")
    runs = open_runs(demo)
    assert [run.name for run in runs] == ["demo", "demo/untrained", "demo/after-warm-up", "demo/after-GRPO"]
    assert [(len(run.parts), sorted(run.curves)) for run in runs] == [(0, ["reward"]), (1, []), (1, []), (1, [])]
    assert all(run.tokenizer == demo / "model" and run.notes == [] for run in runs)
    (demo / "metrics.jsonl").unlink()
    assert [run.name for run in open_runs(demo)] == ["demo/untrained", "demo/after-warm-up", "demo/after-GRPO"]


def test_a_process_without_a_manifest_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "trajectories" / "process-0", [make_episode()])
    lost = tmp_path / "trajectories" / "process-1"
    lost.mkdir()
    run = open_run(tmp_path)
    assert len(run.parts) == 1 and run.notes == [f"{lost} is left out: there is no manifest.json in it."]


def evaluation_settings(n: int) -> dict[str, Any]:
    task = ["sums", "llm/Sums-v0", {"difficulty": "easy"}, n, 2]
    return {"eval": [task], "group_size": 2}


def test_an_evaluation_with_its_results(tmp_path: Path) -> None:
    episodes = [make_episode(1, member) for member in range(2)]
    folder = write_evaluation(tmp_path / "eval", episodes, **evaluation_settings(1), model=str(tmp_path / "model"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    for path in (folder, folder / "results.json"):
        run = open_run(path)
        assert run.results is not None and [task.name for task in run.results] == ["sums"]
        assert (run.parts, run.tokenizer) == ((folder,), tmp_path / "model")
        assert len(list(run.trajectories())) == 2 and run.notes == []


def test_results_alone_are_still_a_report(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "eval", [make_episode(1, member) for member in range(2)])
    alone = tmp_path / "alone"
    alone.mkdir()
    (folder / "results.json").rename(alone / "results.json")
    notes = write_report([alone], tmp_path / "report.html")
    assert notes == [f"{alone} has results and no trajectories: they were kept in its folder."]
    write_report([alone / "results.json"], tmp_path / "report.html")


def test_results_of_another_version_are_said_and_the_episodes_counted(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "eval", [make_episode(1, member) for member in range(2)])
    results = folder / "results.json"
    results.write_text(results.read_text().replace('"version": 1', '"version": 9', 1))
    run = open_run(folder)
    assert run.results is None and len(run.notes) == 1
    assert "results.json is of version 9" in run.notes[0] and "counted from the trajectories" in run.notes[0]
    results.write_text("{")
    assert "is damaged" in open_run(folder).notes[0]
    with pytest.raises(InvalidConfigError, match=r"results\.json is damaged: it is not JSON"):
        open_runs(results)
    (folder / "manifest.json").unlink()
    with pytest.raises(InvalidConfigError, match=r"results\.json is damaged"):
        open_runs(folder)


def test_a_half_written_evaluation_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "eval", [make_episode(1, 0)], **evaluation_settings(3))
    notes = write_report([run], tmp_path / "report.html")
    assert notes[0] == f"{run} is half-written: it has 1 of 6 episodes; --resume goes on."


def test_results_alone_are_no_half_written_run(tmp_path: Path) -> None:
    episodes = [make_episode(seed, member) for seed in range(3) for member in range(2)]
    run = write_evaluation(tmp_path / "eval", episodes, **evaluation_settings(3))
    alone = tmp_path / "alone.json"
    alone.write_text((run / "results.json").read_text())
    assert write_report([alone], tmp_path / "report.html") == []


def test_a_state_whose_history_is_none_is_noted(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text('{"log_history": 3}')
    notes: list[str] = []
    assert read_curves(tmp_path, notes) == {} and "trainer_state.json has no `log_history`" in notes[0]


def test_a_run_of_another_version_or_without_its_manifest(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_episode()])
    manifest = run / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"format": 2', '"format": 7'))
    with pytest.raises(StoreError, match="has format 7; this version reads 1 and 2"):
        open_runs(run)
    manifest.write_text(text[:20])
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        open_runs(run)
    manifest.unlink()
    (file,) = [path for path in run.iterdir() if path.suffix in (".parquet", ".jsonl")]
    with pytest.raises(StoreError, match=rf"no manifest\.json\. .* can be read alone: llm-envs report {file}"):
        open_runs(run)
    assert len(list(open_run(file).trajectories())) == 1


def test_a_long_curve_is_thinned_to_its_end(tmp_path: Path) -> None:
    write_state(tmp_path, *({"step": step, "reward": step} for step in range(5001)))
    points = read_curves(tmp_path, [])["reward"]
    assert len(points) == 1667 and points[-1] == (5000, 5000) and points[-2] == (4997, 4997)


def test_metrics_without_trajectories_are_still_a_report(tmp_path: Path) -> None:
    write_state(tmp_path, {"step": 1, "reward": 0.5})
    notes = write_report([tmp_path], tmp_path / "report.html")
    assert notes == [
        f"{tmp_path} has metrics and no trajectories: a trainer that plays keeps them with save_trajectories."
    ]


def test_what_has_nothing_to_show_is_refused_in_a_line(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    with pytest.raises(StoreError, match="none does not exist"):
        write_report([tmp_path / "none"], out)
    with pytest.raises(StoreError, match=r"holds no run: it has no manifest\.json\. Its subfolders hold runs"):
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
    assert "the last line is torn" in notes[0] and "and was skipped" in notes[0]
    (run / "log-00000.jsonl").write_text("{}\n" + make_episode(2).to_json() + "\n")
    with pytest.raises(StoreError, match=r"log-00000\.jsonl"):
        write_report([run], tmp_path / "report.html")

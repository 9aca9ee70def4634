"""The state of a run, and its alarms."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from report_runs import make_episode

from llm_envs.report.live_runs import LiveRun, live_runs
from llm_envs.types import RolloutError


def run_in(folder: Path) -> LiveRun:
    (run,) = live_runs([(folder, "run")], [])
    return run


def write_live(folder: Path, **facts: object) -> None:
    now = time.time()
    record = {"began": now - 10, "updated": now, "ended": None, "kind": "training", "done": 0, **facts}
    (folder / "live-0.json").write_text(json.dumps(record))


def test_processes_are_added_up(tmp_path: Path) -> None:
    write_live(tmp_path, done=20, tokens=400, running=1, step=3, steps=9)
    (tmp_path / "live-1.json").write_text((tmp_path / "live-0.json").read_text())
    (tmp_path / "live-2.json").write_text('["not one"]')
    status = run_in(tmp_path).status()
    assert status["state"] == "running" and (status["done"], status["running"], status["step"]) == (40, 2, 3)
    assert status["episodes_per_s"] == pytest.approx(4.0, abs=0.01)
    assert status["tokens_per_s"] == pytest.approx(80.0, abs=0.2)


def test_silence_failures_and_ends_are_alarms(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert run.status()["state"] == "no live file" and run.status()["alarms"] == []
    write_live(tmp_path, updated=time.time() - 100)
    assert run.status()["state"] == "silent" and "No sign of life for 100 s" in run.status()["alarms"][0]
    write_live(tmp_path, ended="finished")
    assert run.status()["alarms"] == []
    write_live(tmp_path, ended="ValueError: no")
    assert run.status()["alarms"] == ["The run ended with ValueError: no"]
    write_live(tmp_path)
    for n in range(10):
        failed = make_episode(n, status="errored", error=RolloutError("E", "e", "env.step"), is_success=None)
        run.count(failed if n < 3 else make_episode(n), n)
    assert run.status()["alarms"] == ["3 of the newest 10 episodes failed or have no score."]


def test_groups_that_teach_nothing_are_an_alarm_of_trainings(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    write_live(tmp_path)
    for group in range(8):
        for member in range(2):
            run.count(make_episode(group, member), group)
    assert run.status()["alarms"] == ["In each of the newest 8 groups all rewards are equal: they teach nothing."]
    run.count(make_episode(9, 0), 9)
    run.count(make_episode(9, 1, is_success=False), 9)
    assert run.status()["alarms"] == []

"""The live file: what a run does now, and how it ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_envs.policies import OraclePolicy
from llm_envs.rollout import collect_run
from llm_envs.tracking import live
from llm_envs.tracking.live import live_file


def read(folder: Path) -> dict:
    return json.loads((folder / "live-0.json").read_text())


def test_it_says_how_the_run_ended(tmp_path: Path) -> None:
    with live_file(tmp_path, lambda: {"done": 1}):
        assert read(tmp_path)["ended"] is None and read(tmp_path)["done"] == 1
    assert read(tmp_path)["ended"] == "finished"
    with pytest.raises(KeyboardInterrupt), live_file(tmp_path, dict):
        raise KeyboardInterrupt
    assert read(tmp_path)["ended"] == "KeyboardInterrupt: "
    with live_file("s3://bucket/run", lambda: 1 / 0):  # nothing is written there
        pass


def test_a_folder_that_cannot_be_written_to_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "live-0.json").mkdir()
    with live_file(tmp_path, dict):
        pass
    assert len(caplog.records) == 1 and "live-0.json" in caplog.text


def test_a_collection_writes_its_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(live, "EVERY_S", 0.0)

    def look(trajectory: object) -> None:
        seen.append(read(tmp_path / "run"))

    collect_run("llm/Arithmetic-v0", OraclePolicy(), out=tmp_path / "run", n_groups=3, on_trajectory=look)
    assert all(record["total"] == 3 and record["ended"] is None for record in seen)
    last = read(tmp_path / "run")
    assert (last["done"], last["success"], last["reward"], last["running"], last["open"]) == (3, 3, 3.0, 0, [])

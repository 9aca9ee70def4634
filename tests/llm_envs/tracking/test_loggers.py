from __future__ import annotations

import io
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from llm_envs.errors import StoreError
from llm_envs.policies import ReplayPolicy
from llm_envs.rollout import Collector
from llm_envs.testing import NumbersEnv
from llm_envs.tracking import console_logger, csv_logger, jsonl_logger, multi_logger, read_metrics, trajectory_table
from llm_envs.types import StopReason


def test_jsonl_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    log = jsonl_logger(path)
    log(0, {"reward": 0.5, "loss": math.nan})
    log(1, {"reward": 1.0, "loss": math.inf})
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert lines == [{"step": 0, "reward": 0.5, "loss": None}, {"step": 1, "reward": 1.0, "loss": None}]
    records = read_metrics(path)
    assert [record["reward"] for record in records] == [0.5, 1.0]
    assert all(math.isnan(record["loss"]) for record in records)


def test_a_torn_last_line_is_left_out_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1, "rew')
    assert read_metrics(path) == [{"step": 0}]
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(StoreError, match="line 2 is not JSON"):
        read_metrics(path)


def test_a_second_logger_on_the_same_file_appends(tmp_path: Path) -> None:
    for step in (0, 1):
        jsonl_logger(tmp_path / "m.jsonl")(step, {"a": 1})
    assert [record["step"] for record in read_metrics(tmp_path / "m.jsonl")] == [0, 1]


LINKS = {
    "a link": lambda path, victim: path.symlink_to(victim),
    "a hard link": lambda path, victim: path.hardlink_to(victim),
    "a pipe": lambda path, victim: os.mkfifo(path),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("logger", [jsonl_logger, csv_logger])
def test_nothing_is_written_through_a_link_or_waits_for_a_pipe(logger, kind: str, tmp_path: Path) -> None:
    path, victim = tmp_path / "metrics", tmp_path / "precious"
    victim.write_text("step,loss\nimportant")
    LINKS[kind](path, victim)
    with pytest.raises(OSError) as raised:
        logger(path)(1, {"loss": 1.0})
    assert raised.value.filename == str(path)
    assert victim.read_text() == "step,loss\nimportant"


def test_console_shows_the_chosen_metrics_in_order() -> None:
    stream = io.StringIO()
    console_logger(keys=["success", "missing", "reward"], stream=stream)(3, {"reward": 0.123456, "success": 1, "x": 9})
    assert stream.getvalue() == "step     3  success 1  reward 0.1235\n"


def test_several_at_once_in_order() -> None:
    seen: list[tuple[str, int]] = []
    both = multi_logger(lambda step, _: seen.append(("a", step)), lambda step, _: seen.append(("b", step)))
    both(7, {})
    assert seen == [("a", 7), ("b", 7)]


class TestCSV:
    def test_a_row_a_step_and_a_new_column_when_a_metric_is_new(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "metrics.csv"
        log = csv_logger(path)
        log(0, {"reward": 0.5, "loss": math.nan})
        log(1, {"loss": 0.25, "reward": 1})
        log(2, {"eval/success": 0.75})
        csv_logger(path)(3, {"reward": 2.0})  # a resumed run
        assert path.read_text().split() == [
            "step,reward,loss,eval/success",
            "0,0.5,,",
            "1,1.0,0.25,",
            "2,,,0.75",
            "3,2.0,,",
        ]
        assert [file.name for file in path.parent.iterdir()] == ["metrics.csv"]

    def test_a_row_that_a_kill_cut_short_is_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "m.csv"
        for left in ("step,a\r\n0,1.0\r\n1,2.", "step,a"):
            path.write_bytes(left.encode())
            csv_logger(path)(1, {"a": 2.0})
            assert path.read_text().splitlines()[-1] == "1,2.0" and path.read_text().splitlines()[0] == "step,a"
        assert path.read_text().split() == ["step,a", "1,2.0"]


def test_a_table_of_trajectories() -> None:
    with Collector(NumbersEnv, ReplayPolicy(["two\nlines"] * 9), progress=False) as collector:
        (group,) = collector.collect(1, 1)
    (played,) = group.trajectories
    failed = replace(played, member=1, status="errored", is_success=None, turns=(), stop_reason=StopReason.ERROR)
    head, first, second = trajectory_table([played, failed]).splitlines()
    assert head.split() == ["env", "seed", "member", "reward", "success", "turns", "tokens", "stop", "last", "words"]
    cells = [str(played.seed), "0", f"{played.reward:.3g}", "no", str(len(played.turns)), "0", played.stop_reason.value]
    assert first.split()[1:] == [*cells, "two", "lines"]
    assert second.split()[2:] == ["1", "errored", "-", "0", "0", "error"]
    assert trajectory_table([played], width=5).endswith("two…") and "two" not in trajectory_table([played], width=0)


class TestReadingBack:
    """The three forms in which steps are kept, as `read_metrics` and `plot_training_curves` take them."""

    STEPS = ((1, {"reward": 0.25, "loss": math.nan}), (2, {"reward": 0.5, "eval/success": 1.0}))

    def test_csv(self, tmp_path: Path) -> None:
        log = csv_logger(tmp_path / "metrics.csv")
        for step, metrics in self.STEPS:
            log(step, metrics)
        with (tmp_path / "metrics.csv").open("a") as file:
            file.write("3,0.7")  # cut short
        first, second = read_metrics(tmp_path / "metrics.csv")
        assert (first["step"], first["reward"], second["step"], second["eval/success"]) == (1, 0.25, 2, 1.0)
        assert math.isnan(first["loss"]) and math.isnan(first["eval/success"]) and isinstance(first["step"], int)
        (tmp_path / "other.csv").write_text("name,step\nx,1\n")
        with pytest.raises(StoreError, match=r"line 2 is not a row of numbers with a `step` \(ValueError"):
            read_metrics(tmp_path / "other.csv")

    def test_the_state_of_a_trainer(self, tmp_path: Path) -> None:
        history = [{"step": step, "epoch": step / 10, **metrics} for step, metrics in self.STEPS]
        state = {"global_step": 2, "log_history": history}  # a real one: tests/trainers/test_callbacks_report_to.py
        (tmp_path / "trainer_state.json").write_text(json.dumps(state))
        assert [r["reward"] for r in read_metrics(tmp_path / "trainer_state.json")] == [0.25, 0.5]
        (tmp_path / "other.json").write_text("[1]")
        with pytest.raises(StoreError, match="has no `log_history`"):
            read_metrics(tmp_path / "other.json")

    def test_a_plot_of_each(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        from llm_envs.report import plot_training_curves

        for step, metrics in self.STEPS:
            multi_logger(csv_logger(tmp_path / "m.csv"), jsonl_logger(tmp_path / "m.jsonl"))(step, metrics)
        state = {"log_history": [{"step": step, **metrics} for step, metrics in self.STEPS]}
        (tmp_path / "trainer_state.json").write_text(json.dumps(state))
        pictures = []
        for name in ("m.csv", "m.jsonl", "trainer_state.json"):
            picture = plot_training_curves(tmp_path / name, tmp_path / f"{name}.svg", keys=["reward", "eval/success"])
            pictures.append(re.findall(r' d="([^"]*)"', picture.read_text()))
        assert pictures[0] == pictures[1] == pictures[2] and pictures[0]

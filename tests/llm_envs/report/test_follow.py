"""Runs are followed by their files: each episode once, through compacting, a torn line, and a run begun again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from report_runs import make_episode, write_run

from llm_envs.data.log import AppendLog
from llm_envs.report.follow import EpisodeTail, MetricsTail, Restarted
from llm_envs.rollout import TrajectoryWriter
from llm_envs.tracking import jsonl_logger


def seeds(tail: EpisodeTail, limit: int = 100) -> list[int]:
    return [trajectory.seed for _, trajectory in tail.read(limit)]


def test_an_empty_log_may_make_room_for_another(tmp_path: Path) -> None:
    """A writer that ends removes its empty log, and the next one may begin a log of the same name."""
    tail = EpisodeTail(tmp_path / "run")
    with TrajectoryWriter(tmp_path / "run") as writer:
        writer.write(make_episode(1))
        assert seeds(tail) == [1]
        writer.compact()
        (tmp_path / "run" / "log-00001.jsonl").touch()
        assert seeds(tail) == []
        (tmp_path / "run" / "log-00001.jsonl").rename(tmp_path / "kept")  # so that its inode is not used again
        (tmp_path / "run" / "log-00001.jsonl").write_text(make_episode(2).to_json() + "\n")
        assert seeds(tail) == [2]


def test_each_episode_is_read_once_through_logs_and_shards(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path / "run") as writer:
        tail = EpisodeTail(tmp_path / "run")
        assert seeds(tail) == []
        for seed in (1, 2, 3):
            writer.write(make_episode(seed))
        assert seeds(tail, 2) == [1, 2]
        writer.compact()  # the third is read from the shard
        writer.write(make_episode(4))
        assert seeds(tail) == [3, 4]
        writer.compact()
        assert seeds(tail) == []
    with TrajectoryWriter(tmp_path / "run", resume=True) as writer:
        writer.write(make_episode(5))
        ((place, trajectory),) = tail.read(9)
        assert tail.at(place) == trajectory
    assert tail.at(place) == trajectory  # now from the shard
    assert seeds(EpisodeTail(tmp_path / "run")) == [1, 2, 3, 4, 5]


def test_a_torn_line_waits_and_a_damaged_one_is_noted(tmp_path: Path) -> None:
    path, line = tmp_path / "run.jsonl", make_episode(1).to_json()
    tail = EpisodeTail(path)
    path.write_text(line[:50])
    assert seeds(tail) == []
    path.write_text(line + "\nno JSON\n")
    assert seeds(tail) == [1] and "line 2: not a trajectory" in tail.notes[0]


def test_a_run_begun_again_is_noticed(tmp_path: Path) -> None:
    tail = EpisodeTail(write_run(tmp_path / "run", [make_episode(1)]))
    assert seeds(tail) == [1]
    shutil.rmtree(tmp_path / "run")
    with TrajectoryWriter(tmp_path / "run"), pytest.raises(Restarted):
        tail.read(1)
    log = AppendLog(tmp_path / "run.jsonl")
    log.append(make_episode(1))
    log.close()
    tail = EpisodeTail(tmp_path / "run.jsonl")
    tail.read(1)
    (tmp_path / "run.jsonl").write_text("")
    with pytest.raises(Restarted):
        tail.read(1)


def test_metrics_are_read_from_where_they_were_read_to(tmp_path: Path) -> None:
    log, tail = jsonl_logger(tmp_path / "metrics.jsonl"), MetricsTail(tmp_path)
    log(1, {"loss": 2.0})
    assert tail.read() == [("loss", 1, 2.0)]
    assert tail.read() == []
    log(2, {"loss": float("inf"), "reward": 0.5})
    (key, step, value), other = tail.read()
    assert (key, step) == ("loss", 2) and value != value and other == ("reward", 2, 0.5)
    (tmp_path / "sft_metrics.csv").write_text("step,loss\n1,3.0\n")
    assert tail.read() == [("sft/loss", 1, 3.0)]

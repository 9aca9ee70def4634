"""Trajectories on disk: nothing finished is lost, whatever cuts the writing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from llm_envs.errors import StoreError
from llm_envs.policies.scripted import OraclePolicy
from llm_envs.rollout import Collector, TrajectoryWriter, read_run, read_trajectories
from llm_envs.rollout.store import LOG_NAME, MANIFEST_NAME
from llm_envs.testing import ByteCodec, NumbersEnv
from llm_envs.types import Message, Trajectory


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    collector = Collector(NumbersEnv, OraclePolicy(), codec=ByteCodec(), env_kwargs={"n_turns": 2})
    return [t for group in collector.collect(4) for t in group]


def write(path: Path, trajectories: list[Trajectory], **settings: object) -> None:
    with TrajectoryWriter(path, settings={"seed": 1}, **settings) as writer:  # type: ignore[arg-type]
        for trajectory in trajectories:
            writer.write(trajectory)


def test_round_trip(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    write(tmp_path / "a" / "run", trajectories)
    run = read_run(tmp_path / "a" / "run")
    assert list(run.trajectories) == trajectories
    assert [t.timings for t in run.trajectories] == [t.timings for t in trajectories]
    assert run.settings == {"seed": 1} and run.torn is None
    assert read_trajectories(tmp_path / "a" / "run" / LOG_NAME) == trajectories


def test_every_trajectory_is_on_disk_when_write_returns(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    writer = TrajectoryWriter(tmp_path / "run")
    for count, trajectory in enumerate(trajectories, start=1):
        writer.write(trajectory)
        assert len(read_trajectories(tmp_path / "run")) == count
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        writer.write(trajectories[0])


@pytest.mark.parametrize("text", ["\u2028 \x85 \r\n", "half a pair \ud83d", '"quotes"\\', "é😀"])
def test_any_text_survives(tmp_path: Path, trajectories: list[Trajectory], text: str) -> None:
    trajectory = replace(trajectories[0], messages=(Message("user", text),))
    write(tmp_path / "run", [trajectory, trajectory])
    assert [t.messages[0].content for t in read_trajectories(tmp_path / "run")] == [text, text]


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_torn_last_line_is_reported_and_removed_on_resuming(
    tmp_path: Path, trajectories: list[Trajectory], kept: int
) -> None:
    write(tmp_path / "run", trajectories)
    log = tmp_path / "run" / LOG_NAME
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3]) + lines[3][:kept])
    with pytest.warns(UserWarning, match="torn"):
        assert read_trajectories(tmp_path / "run") == trajectories[:3]
    run = read_run(tmp_path / "run")
    assert run.torn is not None and run.torn.encode() == lines[3][:kept]
    assert list(run.trajectories) == trajectories[:3]
    with TrajectoryWriter(tmp_path / "run", settings={"seed": 1}, resume=True) as writer:
        assert writer.removed is not None
        writer.write(trajectories[3])
    assert read_trajectories(tmp_path / "run") == trajectories


def test_a_log_that_is_one_torn_line(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    write(tmp_path / "run", [])
    (tmp_path / "run" / LOG_NAME).write_bytes(b"x" * 200_000)
    assert read_run(tmp_path / "run").torn == "x" * 200_000
    write(tmp_path / "run", trajectories, resume=True)
    assert read_trajectories(tmp_path / "run") == trajectories


def test_a_damaged_line_in_the_middle_is_an_error_that_says_where(
    tmp_path: Path, trajectories: list[Trajectory]
) -> None:
    write(tmp_path / "run", trajectories)
    log = tmp_path / "run" / LOG_NAME
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + b'{"env_id": 3}\n' + lines[1])
    with pytest.raises(StoreError, match="line 2"):
        read_trajectories(tmp_path / "run")


def test_another_run_is_never_overwritten(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    write(tmp_path / "run", trajectories)
    with pytest.raises(StoreError, match="holds a run already"):
        TrajectoryWriter(tmp_path / "run", settings={"seed": 1})
    with pytest.raises(StoreError, match="seed: 1 there, 2 here"):
        TrajectoryWriter(tmp_path / "run", settings={"seed": 2}, resume=True)
    assert read_trajectories(tmp_path / "run") == trajectories


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="not empty"):
        TrajectoryWriter(tmp_path)
    with pytest.raises(StoreError, match="holds no run"):
        read_trajectories(tmp_path)
    with pytest.raises(StoreError, match="does not exist"):
        read_trajectories(tmp_path / "nothing.jsonl")


def test_another_format_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "run", [])
    manifest = json.loads((tmp_path / "run" / MANIFEST_NAME).read_text())
    (tmp_path / "run" / MANIFEST_NAME).write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(StoreError, match="format 99"):
        read_run(tmp_path / "run")
    with pytest.raises(StoreError, match="format 99"):
        TrajectoryWriter(tmp_path / "run", resume=True)


def test_a_killed_process_loses_no_finished_trajectory(tmp_path: Path) -> None:
    script = """
        import sys
        from llm_envs.policies.scripted import OraclePolicy, with_latency
        from llm_envs.rollout import Collector, TrajectoryWriter
        from llm_envs.testing import NumbersEnv

        def emit(trajectory):
            writer.write(trajectory)
            print(trajectory.group_id, flush=True)

        writer = TrajectoryWriter(sys.argv[1])
        Collector(NumbersEnv, with_latency(OraclePolicy(), 0.005), on_trajectory=emit, max_concurrency=8).collect(5000)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reported = [process.stdout.readline().strip() for _ in range(50)]
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    reported += process.stdout.read().split("\n")
    process.wait()
    process.stdout.close()
    saved = [t.group_id for t in read_run(tmp_path / "run").trajectories]
    assert len(set(saved)) == len(saved) >= 50
    assert {line for line in reported[:-1] if line} <= {*saved}


@pytest.mark.parametrize("line", ['{"messages": [5]}', "5", "[]", "{}", '{"messages": 5}'])
def test_a_line_that_is_no_trajectory(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(StoreError, match="line 1: no trajectory"):
        read_trajectories(tmp_path / "a.jsonl")


@pytest.mark.parametrize("manifest", [b"[]", b"\xff\xfe\x00", b"{", b'{"format": 1}', b'{"format": 1, "settings": []}'])
def test_a_damaged_manifest(tmp_path: Path, trajectories: list[Trajectory], manifest: bytes) -> None:
    write(tmp_path / "run", trajectories)
    (tmp_path / "run" / MANIFEST_NAME).write_bytes(manifest)
    with pytest.raises(StoreError, match=r"is damaged.*reads the log alone"):
        read_run(tmp_path / "run")
    with pytest.raises(StoreError, match="is damaged"):
        TrajectoryWriter(tmp_path / "run", resume=True)
    assert read_trajectories(tmp_path / "run" / LOG_NAME) == trajectories


def test_a_manifest_that_a_kill_left_half_written(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    (tmp_path / (MANIFEST_NAME + ".tmp")).write_text("{")
    write(tmp_path, trajectories)
    assert list(read_run(tmp_path).trajectories) == trajectories


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(StoreError, match="choose another"):
            TrajectoryWriter(path)


def test_runs_below_a_folder_are_named(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    write(tmp_path / "trajectories" / "process-0", trajectories)
    for read in (read_run, read_trajectories):
        with pytest.raises(StoreError, match=r"holds no run.*process-0\."):
            read(tmp_path)

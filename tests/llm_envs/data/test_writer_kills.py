"""Nothing finished is lost and nothing is repeated, whatever cuts the writing: kills, full disks, limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from llm_envs.rollout import read_run, read_trajectories

pytestmark = pytest.mark.slow

SUPPORT = Path(__file__).resolve().parents[2] / "support"

needs_posix = pytest.mark.skipif(os.name != "posix", reason="forks, and limits what a process may write")


def killed_collection(*arguments: object) -> Any:
    pytest.importorskip("pyarrow")
    command = [sys.executable, str(SUPPORT / "killed_collection.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_posix
def test_a_collection_killed_at_20_random_moments_has_every_episode_once(tmp_path: Path) -> None:
    """SIGKILL at 20 moments drawn from a fixed seed, resumed each time; episodes fail and logs are compacted meanwhile.

    What is checked is in `killed_collection.check`: each episode once, with its own seed, every shard readable, nothing
    left over.
    """
    report = killed_collection("random", tmp_path, 20, 20)
    assert report["kills"] == 20
    assert report["where"].get("log+manifest+shard", 0) >= 3  # kills came when there was something to lose


@needs_posix
def test_a_kill_before_any_step_on_the_file_system_loses_and_repeats_nothing(tmp_path: Path) -> None:
    report = killed_collection("steps", tmp_path, 1, 8)
    steps = report["steps"]
    assert report["n_steps"] > 20 and len(steps) > 20  # about as many; the compacting thread may look once more
    for part in (0, 1):  # each log was compacted, in this order
        shard, log = f"shard-{part:05d}.parquet", f"log-{part:05d}.jsonl"
        order = [f"open {shard}.tmp", f"os.rename {shard}.tmp", "os.rename manifest.json.tmp", f"os.remove {log}"]
        places = [steps.index(order[0])]
        for step in order[1:]:
            places.append(steps.index(step, places[-1]))


def run_limited(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Write 100 trajectories in a process; `body` says under which limits."""
    head = """
        import resource, sys
        from dataclasses import replace
        from llm_envs.errors import StoreError
        from llm_envs.policies import OraclePolicy
        from llm_envs.rollout import Collector, TrajectoryWriter
        from llm_envs.testing import ByteCodec, NumbersEnv

        def limit(n_bytes):
            resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))

        (group,) = Collector(NumbersEnv, OraclePolicy(), codec=ByteCodec()).collect(1)
        trajectories = [replace(group.trajectories[0], member=member) for member in range(100)]
        size = len(trajectories[0].to_json())
    """
    code = textwrap.dedent(head) + textwrap.dedent(body)
    return subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)


@needs_posix
def test_a_write_that_the_system_refuses_is_taken_back(tmp_path: Path) -> None:
    """As on a full disk: half a line can be written and no more. When there is room again, the writer goes on."""
    done = run_limited(
        tmp_path / "run",
        """
        with TrajectoryWriter(sys.argv[1]) as writer:
            limit(20 * size)
            failed = []
            for trajectory in trajectories[:50]:
                try:
                    writer.write(trajectory)
                except StoreError as error:
                    failed.append((trajectory.member, str(error)))
            print(failed[0])
            limit(resource.RLIM_INFINITY)
            for member, _ in failed:
                writer.write(trajectories[member])
        """,
    )
    assert "could not be written (File too large). All earlier ones are safe; make room and resume" in done.stdout
    assert done.returncode == 0 and done.stderr == ""
    assert sorted(t.member for t in read_trajectories(tmp_path / "run")) == list(range(50))


@needs_posix
def test_a_refused_write_ends_the_collection_and_what_was_finished_is_there(tmp_path: Path) -> None:
    done = run_limited(
        tmp_path / "run",
        """
        from llm_envs.rollout import collect_run
        limit(20 * size)
        try:
            collect_run(NumbersEnv, OraclePolicy(), out=sys.argv[1], n_groups=100, codec=ByteCodec())
        except StoreError as error:
            print(error)
        limit(resource.RLIM_INFINITY)
        done = collect_run(NumbersEnv, OraclePolicy(), out=sys.argv[1], n_groups=100, codec=ByteCodec(), resume=True)
        print(done.n_before, done.n_finished)
        """,
    )
    said, counts = done.stdout.splitlines()
    n_before, n_finished = map(int, counts.split())
    assert "could not be written" in said
    assert 10 <= n_before <= 20 and n_finished == 100
    assert len({t.group_id for t in read_trajectories(tmp_path / "run")}) == 100


@needs_posix
def test_a_shard_for_which_there_is_no_room_leaves_the_log(tmp_path: Path) -> None:
    done = run_limited(
        tmp_path / "run",
        """
        with TrajectoryWriter(sys.argv[1]) as writer:
            for trajectory in trajectories:
                writer.write(trajectory)
            limit(2000)
        """,
    )
    assert done.returncode == 0
    assert "could not be compacted and stays as it is; nothing is lost" in done.stderr
    assert [t.member for t in read_run(tmp_path / "run").trajectories] == list(range(100))
    assert {entry.name for entry in (tmp_path / "run").iterdir()} == {"log-00000.jsonl", "manifest.json", "writer.lock"}


@needs_posix
def test_a_child_that_a_killed_process_leaves_does_not_keep_the_folder(tmp_path: Path) -> None:
    script = """
        import os, signal, sys, time
        from llm_envs.rollout import TrajectoryWriter
        writer = TrajectoryWriter(sys.argv[1])
        reader, has_begun = os.pipe()
        if (child := os.fork()) == 0:
            os.write(has_begun, b".")
            time.sleep(600)
            os._exit(0)
        os.read(reader, 1)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.wait()
        try:
            from llm_envs.rollout import TrajectoryWriter

            TrajectoryWriter(tmp_path / "run", resume=True).close()
        finally:
            os.kill(child, 9)
